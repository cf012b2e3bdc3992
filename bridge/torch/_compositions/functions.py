"""The functions of tensors that compositions need; `bridge.ops.compositions` describes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge.ops import PROGRAM
from bridge.ops.definition import Call
from bridge.torch._adapter.arrays import entry
from bridge.torch._adapter.autograd import call, is_watched
from bridge.torch._adapter.kernels import dtype_word, new_memory
from bridge.torch._adapter.products import product
from bridge.torch._compositions.gathers import cast, entries, table, taken, taken_apart, where_own
from bridge.torch._compositions.maps import mapped

__all__ = [
    "cast",
    "concatenated",
    "entries",
    "entry",
    "expanded",
    "filled",
    "has_trees",
    "in_parts",
    "is_unrolled",
    "long_rows",
    "mapped",
    "moved",
    "numbers",
    "over_chunks",
    "product",
    "reshaped",
    "results",
    "rows",
    "run",
    "table",
    "taken",
    "taken_apart",
    "where_own",
]


def run(made: Call[Any]) -> Any:
    return results(made)[0]


def results(made: Call[Any]) -> tuple[Any, ...]:
    return call(PROGRAM, made.operands, made.params)


def moved(x: Tensor, dim: int, place: int) -> Tensor:
    return x.movedim(dim, place)


def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.reshape(shape)


def long_rows(arrays: Sequence[Tensor], dim: int) -> Sequence[Tensor]:
    is_free = not torch.is_grad_enabled() and all([x.is_contiguous() for x in arrays])
    return [x.flatten(dim) for x in arrays] if is_free and arrays[0].ndim > dim + 1 else arrays


def expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.expand(shape)


def concatenated(arrays: Sequence[Tensor], dim: int) -> Tensor:
    first = arrays[0]
    if torch.is_grad_enabled() or is_watched(arrays) or len({each.dtype for each in arrays}) > 1:
        return torch.cat(list(arrays), dim)
    shape = list(first.shape)
    shape[dim] = sum([each.shape[dim] for each in arrays])
    made = new_memory(tuple(shape), dtype_word(first.dtype), first)
    return torch.cat(list(arrays), dim, out=made)


def filled(like: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    return like.new_full(shape, value)


def numbers(like: Tensor, start: int, count: int) -> Tensor:
    return torch.arange(start, start + count, device=like.device)


def rows(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    return x.narrow(dim, start, count)


is_unrolled, has_trees = True, True


def over_chunks(step: Callable[[int], Any], dim: int, chunks: Any) -> Any:
    return step(chunks.start)


def in_parts(
    function: Callable[..., tuple[Tensor, ...]],
    operands: Sequence[Any],
    sizes: Sequence[int],
    steps: Sequence[int],
) -> tuple[Tensor, ...]:
    if list(sizes) == list(steps):
        return function(*operands)
    starts = itertools.product(*map(range, [0] * len(sizes), sizes, steps))
    parts = [[slice(i, i + n) for i, n in zip(each, steps, strict=True)] for each in starts]
    made = [
        function(*[None if x is None else _part(x, part, sizes) for x in operands])
        for part in parts
    ]
    return tuple([_whole(results, sizes, steps) for results in zip(*made, strict=True)])


def _part(x: Tensor, part: Sequence[slice], sizes: Sequence[int]) -> Tensor:
    for dim, (own, size) in enumerate(zip(part, sizes, strict=True)):
        if x.shape[dim] != 1 or size == 1:
            x = x.narrow(dim, own.start, own.stop - own.start)
    return x


def _whole(results: Sequence[Tensor], sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """Joins the results of parts, dimension by dimension from the last one."""
    for dim in reversed(range(len(sizes))):
        count = sizes[dim] // steps[dim]
        if count > 1:
            groups = [results[i : i + count] for i in range(0, len(results), count)]
            results = [concatenated(group, dim) for group in groups]
    (whole,) = results
    return whole
