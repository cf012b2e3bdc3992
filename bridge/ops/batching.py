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


def batch_call(
    op: Op, params: Any, present: Sequence[bool], batched: Sequence[bool]
) -> tuple[Any, list[Move]]:
    """Returns the parameters of the batched call and what to do with each operand.

    The results all carry the batch dimension in front. While no row vector is batched and no column
    sums are asked for, the new dimension is only more rows; otherwise every batch gets row vectors
    of its own.
    """
    roles = op.operand_roles(len(present))
    rows_batched = any(
        is_batched and role is Role.ROW for role, is_batched in zip(roles, batched, strict=True)
    )
    separate = rows_batched or params.batch_ndim > 0 or op.needs_separate_batches(params)
    moves = []
    for role, is_present, is_batched in zip(roles, present, batched, strict=True):
        if not is_present or (role is Role.ROW and not separate):
            moves.append(Move.KEEP)
        else:
            moves.append(Move.FRONT if is_batched else Move.BROADCAST)
    return (params.with_batch() if separate else params), moves
