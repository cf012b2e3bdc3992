"""How any op takes one more batch dimension: the part of vmap that needs no framework."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from bridge.ops.definition import Op, Role


class Move(enum.Enum):
    """What to do with an operand before the batched call."""

    KEEP = "keep"  # absent, or shared by all batches as it is
    FRONT = "front"  # bring its batch dimension to the front
    BROADCAST = "broadcast"  # give it a batch dimension in front
    ALIGN = (
        "align"  # FRONT, then dimensions of size 1 behind it up to the rank of the first operand
    )


_ONE_FOR_EACH_BATCH = (Role.ROW, Role.INTEGER)


def batch_call(
    op: Op, params: Any, present: Sequence[bool], batched: Sequence[bool]
) -> tuple[Any, list[Move]]:
    """Returns the parameters of the batched call and what to do with each operand.

    The results all carry the batch dimension in front. While no operand that every batch has one of
    is batched, and the op does not tell batches apart, the new dimension is only more rows;
    otherwise every batch gets row vectors and integers of its own.
    """
    roles = op.operand_roles(len(present), params)
    own_batched = any(
        is_batched and role in _ONE_FOR_EACH_BATCH
        for role, is_batched in zip(roles, batched, strict=True)
    )
    separate = own_batched or params.batch_ndim > 0 or op.needs_separate_batches(params)
    moves = []
    for role, is_present, is_batched in zip(roles, present, batched, strict=True):
        if not is_present or (role in _ONE_FOR_EACH_BATCH and not separate):
            moves.append(Move.KEEP)
        elif role.broadcasts:
            # A mask that is not batched broadcasts as it did; the results' batch is the first
            # operand's, which fills the space.
            moves.append(Move.ALIGN if is_batched else Move.KEEP)
        else:
            moves.append(Move.FRONT if is_batched else Move.BROADCAST)
    return (params.with_batch() if separate else params), moves
