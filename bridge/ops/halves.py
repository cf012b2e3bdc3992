"""Arrays in halves whose last dimension is split: which device needs which columns.

With n parts, `[first | second]` has 2·n blocks. Device s holds the blocks 2·s and 2·s + 1. Its part
of a call needs the blocks s and n + s, its columns of both halves. So block b moves from device
b // 2 to device b % n, and each device sends one part. A result in halves moves back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.ops.definition import Role


def rounds(parts: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Two permutations of the devices, (source, target), that move all blocks.

    A source sends `half(source, parts)` in the first one and its other block in the second. An even
    target receives its columns of the first half in the first one, an odd target in the second.
    """
    first, second = [], []
    for source in range(parts):
        own = half(source, parts)
        first.append((source, (2 * source + own) % parts))
        second.append((source, (2 * source + 1 - own) % parts))
    return first, second


def half(source: Any, parts: int) -> Any:
    """The block of its two, 0 or 1, that a device sends in the first round; 0 for odd `parts`.

    With an even number of parts the blocks 2·s of both halves of the devices have the same targets,
    so that the second half of them begins with the block 2·s + 1.
    """
    return 0 * source if parts % 2 else 2 * source // parts


def in_own_columns(
    move: Callable[[Any], Any], roles: Sequence[Role], arrays: Sequence[Any]
) -> tuple[Any, ...]:
    """The arrays, of which those in halves were moved; None stays."""
    return tuple(
        move(array) if role is Role.HALVES and array is not None else array
        for array, role in zip(arrays, roles, strict=True)
    )
