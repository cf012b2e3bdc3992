"""`python -m bridge bench`: bridge compared with the frameworks' own operations, in one process."""

from tools.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
