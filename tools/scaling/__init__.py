"""`python -m bridge scaling`: collectives fitted on this machine, modelled to 65,536 devices."""

from tools.scaling.command import add_arguments, run

__all__ = ["add_arguments", "run"]
