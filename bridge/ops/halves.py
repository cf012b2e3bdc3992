"""Halves arrays split along the last dimension: the exchange of columns between devices.

With n parts, `[first | second]` has 2·n blocks. Device s holds the blocks 2·s and 2·s + 1. Its part
of a call needs the blocks s and n + s, its columns of both halves. So block b moves from device
b // 2 to device b % n, and each device sends one part. The halves of a result move back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bridge.ops.definition import Role


def rounds(parts: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns two permutations of the devices, (source, target), that move all blocks.

    A source sends block `half(source, parts)` in the first round and its other block in the second.
    An even target receives its columns of the first half in the first round, an odd target in the
    second.
    """
    first, second = [], []
    for source in range(parts):
        own = half(source, parts)
        first.append((source, (2 * source + own) % parts))
        second.append((source, (2 * source + 1 - own) % parts))
    return first, second


def half(source: Any, parts: int) -> Any:
    """Returns the block, 0 or 1 of a device's two, to send in the first round.

    With an odd number of parts it is 0. With an even number, devices s and s + parts/2 have the
    same target for their block 2·s, so the second half of the devices sends block 2·s + 1 first.
    """
    return 0 * source if parts % 2 else 2 * source // parts


def in_own_columns(
    move: Callable[[Any], Any], roles: Sequence[Role], arrays: Sequence[Any]
) -> tuple[Any, ...]:
    """Applies `move` to the Halves arrays; other arrays and None stay."""
    return tuple(
        move(array) if role is Role.HALVES and array is not None else array
        for array, role in zip(arrays, roles, strict=True)
    )
