"""`python -m bridge bench`: bridge beside what each framework offers, in one process."""

from tools.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
