"""Functions of tensors for compositions that both frameworks share.

bridge/jax/_adapter/arrays.py has the same for JAX; `bridge.ops.arrays` describes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge.torch._adapter.autocast import cast as autocast
from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredFunction
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.kernels import dtype_word, spec_of

__all__ = [
    "autocast",
    "cast",
    "checked",
    "concatenated",
    "dtype_of",
    "entry",
    "known",
    "last_columns",
    "spec_of",
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


def concatenated(first: Tensor, second: Tensor) -> Tensor:
    return joined((first, second.to(first.dtype)), -1)  # type: ignore[no-any-return]


def with_whole_rows(x: Tensor) -> Tensor:
    return x


def zeros(like: Tensor, shape: Sequence[int], dtype: str) -> Tensor:
    return like.new_zeros(shape, dtype=getattr(torch, dtype))


def last_columns(x: Tensor) -> Tensor:
    queries, keys = x.shape[-2:]
    return torch.arange(keys - queries, keys, device=x.device).expand(x.shape[:-1])
