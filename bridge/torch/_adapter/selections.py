"""Choices of columns in torch: an op of the dispatcher whose result has no derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge.ops import Role
from bridge.ops.selection import NAME, Selection
from bridge.torch._adapter.below_autograd import BelowAutograd
from bridge.torch._adapter.dispatcher import library, meet_dtensors
from bridge.torch._adapter.kernels import in_memory


def columns_of(x: Tensor, words: Tensor | None, params: Selection) -> Tensor:
    """Returns int64 `[..., count]`, columns of the rows of x `[..., cols]`.

    Args:
      words: int64 `[..., 2]`, the seed and the offset of each row, for a draw.
    """
    meet_dtensors()
    return torch.ops.bridge.selection.default(  # type: ignore[no-any-return]
        x, words, params.count, params.temperature, params.top_k, params.top_p, params.min_p
    )


def _empty(x: Tensor, words: Tensor | None, count: int, *numbers: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], count), dtype=torch.int64)


def _run(
    x: Tensor,
    words: Tensor | None,
    count: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> Tensor:
    result = _empty(x, words, count)
    if result.numel() == 0:
        return result
    x, words = in_memory(x, Role.FULL).contiguous(), None if words is None else words.contiguous()
    threads = torch.get_num_threads()
    _native.run_selection(x, words, result, temperature, top_k, top_p, min_p, threads)
    return result


def _vmap(info: Any, in_dims: Any, x: Tensor, words: Tensor | None, *numbers: Any) -> Any:
    def in_front(each: Any, dim: Any) -> Any:
        if each is None:
            return None
        return each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)

    operands = in_front(x, in_dims[0]), in_front(words, in_dims[1])
    return torch.ops.bridge.selection.default(*operands, *numbers), 0


def _autograd(keys: Any, *arguments: Any) -> Any:
    return BelowAutograd(torch.ops.bridge.selection.default, keys)(*arguments)


library.define(
    f"{NAME}(Tensor x, Tensor? words, SymInt count, float temperature, SymInt top_k, float top_p, "
    "float min_p) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _platform in ("CPU", "CUDA"):
    library.impl(NAME, _run, _platform)
torch.library.register_fake(f"bridge::{NAME}", _empty, lib=library)
torch.library.register_vmap(f"bridge::{NAME}", _vmap, lib=library)
library.impl(NAME, _autograd, "Autograd", with_keyset=True)
