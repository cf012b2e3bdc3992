"""Maps between places of tensors, for compositions (`bridge.catalogue.vision.taps`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import forward_ad, is_functorch_wrapped
from bridge.ops import Role
from bridge.ops.compositions import MAPS
from bridge.torch._adapter.autograd import is_traced
from bridge.torch._adapter.kernels import dtype_word, in_memory, new_memory


def mapped(
    kind: str,
    x: Tensor,
    others: tuple[Tensor, ...],
    shape: tuple[int, ...],
    inner: bool,
    by_gathers: Callable[..., Tensor],
) -> Tensor:
    if not all(map(_is_plain, (x, *others))):
        return by_gathers(x, *others)
    result = new_memory(shape, "int32" if kind == "largest" else dtype_word(x.dtype), x)
    along = len(shape) - 1 - inner
    table = weights = chosen = None
    if kind in ("chosen", "of_chosen"):
        like = list(x.shape)
        like[along] = others[0].shape[along]
        chosen = others[0].expand(like).to(torch.int32).contiguous()
    elif kind != "row_mean":
        table, weights = others[0], others[1] if len(others) > 1 else None
    given = in_memory(x.detach(), Role.FULL).contiguous()
    number, threads = MAPS.index(kind), torch.get_num_threads()
    _native.run_taps(number, given, table, weights, chosen, result, inner, threads)
    return result


def _is_plain(x: Tensor) -> bool:
    """True for a tensor on the CPU that nothing differentiates, batches or traces."""
    if not x.is_cpu or is_functorch_wrapped(x) or is_traced((x,)):
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(x).tangent is None
