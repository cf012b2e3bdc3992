"""Checks of sizes in constructors of drop-ins."""

from __future__ import annotations

from typing import Any

from bridge.ops.scalars import whole_number


def check_sizes(module: Any, **sizes: Any) -> None:
    """Refuses a size that is not an integer from 0 on, or a tuple of such, before torch allocates.

    Raises:
      TypeError, ValueError: a wrong size; the message names the module's class and the argument.
    """
    for argument, size in sizes.items():
        for each in size if isinstance(size, (tuple, list)) else (size,):
            whole_number(type(module).__name__, argument, each)
