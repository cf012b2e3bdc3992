"""Functions of tensors for compositions that both frameworks share.

bridge/jax/_adapter/arrays.py has the same for JAX; `bridge.ops.arrays` describes them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import FakeTensor, functorch_active
from bridge.torch._adapter.autocast import cast as autocast
from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.autograd import has_modes
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredFunction
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import dtype_word, spec_of
from bridge.torch._adapter.overrides import is_overridden

__all__ = [
    "autocast",
    "cast",
    "checked",
    "concatenated",
    "constant",
    "dtype_of",
    "entry",
    "known",
    "last_columns",
    "packed",
    "parts",
    "spec_of",
    "unpacked",
    "with_whole_rows",
    "zeros",
]


def entry(op: Any, name: str = "") -> DeclaredFunction:
    return DeclaredFunction(op, name) if name else op.entry("torch")  # type: ignore[no-any-return]


def known(function: str, name: str, value: Any, expected: str = "a number") -> Any:
    return fixed(value)


def checked(
    name: str, required: int, integers: Sequence[str] = (), /, **tensors: Any
) -> tuple[Any, ...]:
    check_tensors(name, required, **tensors)
    return tuple(tensors.values())


def dtype_of(x: Tensor) -> str:
    return dtype_word(x.dtype)


def cast(x: Tensor, dtype: str) -> Tensor:
    return x.to(getattr(torch, dtype))


def constant(x: Tensor) -> Tensor:
    return x.detach()


def concatenated(first: Tensor, *others: Tensor) -> Tensor:
    return joined((first, *(other.to(first.dtype) for other in others)), -1)  # type: ignore[no-any-return]


def parts(x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return x.split([*sizes], -1)  # type: ignore[no-any-return,no-untyped-call]


def packed(codes: Tensor) -> Tensor:
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)


def unpacked(values: Tensor) -> Tensor | None:
    if values.dtype not in (torch.float4_e2m1fn_x2, torch.uint8):
        return None
    pairs = values.view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).view(torch.int8)


def with_whole_rows(x: Tensor) -> Tensor:
    return x


def zeros(like: Tensor, shape: Sequence[int], dtype: str) -> Tensor:
    return like.new_zeros(shape, dtype=getattr(torch, dtype))


def last_columns(x: Any) -> Any:
    """Returns the last column that each query sees; None for an x that is refused or overrides."""
    # A tiny call takes less time than making them. A GPU's memory may belong to the graph of a
    # capture.
    is_plain = type(x) is Tensor and x.is_cpu and x.dim() >= 2 and not x.is_nested
    if is_plain and not (torch.compiler.is_compiling() or has_modes() or functorch_active()):
        return _stored_last_columns(x.shape)
    if not isinstance(x, Tensor) or is_overridden((x,)) or x.is_nested or x.dim() < 2:
        return None
    if isinstance(x, FakeTensor) and not torch.compiler.is_compiling():
        with x.fake_mode:  # which may be off
            return _last_columns(x.shape, x.device)
    return _last_columns(x.shape, x.device)


def _last_columns(shape: Sequence[int], device: Any) -> Tensor:
    queries, keys = shape[-2:]
    return torch.arange(keys - queries, keys, device=device).expand(shape[:-1])


@functools.lru_cache(maxsize=64)
def _stored_last_columns(shape: torch.Size) -> Tensor:
    with torch.inference_mode(mode=False):
        return _last_columns(shape, "cpu")
