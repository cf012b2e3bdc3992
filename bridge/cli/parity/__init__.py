"""`python -m bridge parity`: torch bits against JAX bits, and both against float64."""

from bridge.cli.parity.command import add_arguments, run

__all__ = ["add_arguments", "run"]
