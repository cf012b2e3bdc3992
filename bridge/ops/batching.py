"""One more batch dimension for any op: the part of vmap that needs no framework."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from bridge.ops.definition import Op, Role


class Move(enum.Enum):
    """The preparation of an operand for the batched call."""

    KEEP = "keep"  # absent, or shared by all batches as it is
    FRONT = "front"  # move its batch dimension to the front
    BROADCAST = "broadcast"  # add a batch dimension in front
    ALIGN = "align"  # FRONT, then dimensions of size 1 after it up to the rank of the first operand


_ONE_FOR_EACH_BATCH = (Role.ROW, Role.INTEGER)


def batch_call(
    op: Op, params: Any, present: Sequence[bool], batched: Sequence[bool]
) -> tuple[Any, list[Move]]:
    """Returns the parameters of the batched call and the preparation of each operand.

    All results have the batch dimension in front. The new dimension is only more rows, unless a row
    vector or an integer is batched, or the op treats batches separately. Then each batch has its
    own row vectors and integers.
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
            # An unbatched mask or table broadcasts as before: the first operand, which fills the
            # space, gives the batch dimension of the results.
            moves.append(Move.ALIGN if is_batched else Move.KEEP)
        else:
            moves.append(Move.FRONT if is_batched else Move.BROADCAST)
    return (params.with_batch() if separate else params), moves
