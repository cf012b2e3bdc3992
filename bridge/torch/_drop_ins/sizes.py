"""The check of sizes in constructors of drop-ins."""

from __future__ import annotations

from typing import Any

from bridge.ops.scalars import whole_number


def check_sizes(module: Any, **sizes: Any) -> None:
    """Refuses a size that is no integer from 0 on, or has one in it, before torch allocates.

    Raises:
      TypeError, ValueError: named by the module's class and the argument.
    """
    for argument, size in sizes.items():
        for each in size if isinstance(size, (tuple, list)) else (size,):
            whole_number(type(module).__name__, argument, each)
