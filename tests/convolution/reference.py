"""Convolutions as matrix products of explicit patches: the definition of their sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge.ops.convolution import OPERANDS, RESULT, ConvolutionParams
from bridge.ops.product import ProductParams
from bridge.torch._adapter.kernels import dtype_word
from bridge.torch._adapter.products import product

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def gathered(x: Tensor, places: Sequence[Any]) -> Tensor:
    """Returns `[n, c, p1, t1, p2, t2, …]`: x at the places `[p, t]` of each dimension.

    A place outside of x has +0.
    """
    for d, index in enumerate(places):
        dim = 2 + 2 * d
        size = x.shape[dim]
        with_zero = torch.cat([x, x.new_zeros(*x.shape[:dim], 1, *x.shape[dim + 1 :])], dim)
        inside = torch.where((index >= 0) & (index < size), index, size)
        taken = with_zero.index_select(dim, inside.reshape(-1))
        x = taken.reshape(*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    return x


def rows_of(patches: Tensor, groups: int, group: int) -> Tensor:
    """Returns `[n, places…, taps…, c]` of a group's channels."""
    dims = (patches.ndim - 2) // 2
    own = patches.shape[1] // groups
    part = patches[:, group * own : (group + 1) * own]
    return part.permute(0, *range(2, 2 + 2 * dims, 2), *range(3, 3 + 2 * dims, 2), 1)


def convolution(a: Tensor, b: Tensor, bias: Any, params: ConvolutionParams, by: Product) -> Tensor:
    """Returns the result of the products `by(left, right, bias)`, one or more for each group."""
    run = {"forward": _forward, "input": _input, "weight": _weight}[params.kind]
    return run(a, b, bias, params, by)


def _forward(x: Tensor, w: Tensor, bias: Any, params: ConvolutionParams, by: Product) -> Tensor:
    places = [
        (torch.arange(size) * s - p)[:, None] + torch.arange(taps) * d
        for size, s, p, d, taps in zip(
            params.sizes, params.stride, params.padding, params.dilation, w.shape[2:], strict=True
        )
    ]
    patches, groups = gathered(x, places), params.groups
    found, own = [], w.shape[0] // groups
    for group in range(groups):
        rows = rows_of(patches, groups, group)
        part = slice(group * own, (group + 1) * own)
        kernel = w[part].permute(*range(2, w.ndim), 1, 0)
        terms = w.shape[1:].numel()
        made = by(
            rows.reshape(x.shape[0] * torch.Size(params.sizes).numel(), terms),
            kernel.reshape(terms, own),
            None if bias is None else bias[part],
        )
        found.append(made.reshape(x.shape[0], *params.sizes, own))
    return torch.cat(found, -1).movedim(-1, 1)


def _input(y: Tensor, w: Tensor, bias: Any, params: ConvolutionParams, by: Product) -> Tensor:
    groups, own, outs = params.groups, w.shape[1], w.shape[0] // params.groups
    result: Any = None
    residues = itertools.product(*map(range, params.stride))
    for residue in residues:
        at, taps, places = [], [], []
        for r, size, s, p, d, count in zip(
            residue,
            params.sizes,
            params.stride,
            params.padding,
            params.dilation,
            w.shape[2:],
            strict=True,
        ):
            own_places = torch.tensor([q for q in range(size) if (q + p - r) % s == 0], dtype=int)
            own_taps = torch.tensor([t for t in range(count) if (r - t * d) % s == 0], dtype=int)
            at.append(own_places)
            taps.append(own_taps)
            places.append((own_places[:, None] + p - own_taps * d) // s)
        patches, kernel = gathered(y, places), w
        for dim, own_taps in enumerate(taps):
            kernel = kernel.index_select(2 + dim, own_taps)
        counts = [len(each) for each in at]
        terms = torch.Size([len(each) for each in taps]).numel() * outs
        found = []
        for group in range(groups):
            rows = rows_of(patches, groups, group)
            part = kernel[group * outs : (group + 1) * outs].permute(*range(2, w.ndim), 0, 1)
            made = by(
                rows.reshape(y.shape[0] * torch.Size(counts).numel(), terms),
                part.reshape(terms, own),
                None if bias is None else bias[group * own : (group + 1) * own],
            )
            found.append(made.reshape(y.shape[0], *counts, own))
        made = torch.cat(found, -1).movedim(-1, 1)
        if result is None:
            result = made.new_zeros(y.shape[0], own * groups, *params.sizes)
        if made.numel():
            index = (slice(None), slice(None), *torch.meshgrid(*at, indexing="ij"))
            result[index] = made
    return result


def _weight(x: Tensor, y: Tensor, bias: Any, params: ConvolutionParams, by: Product) -> Tensor:
    places = [
        (torch.arange(size) * s - p)[:, None] + torch.arange(taps) * d
        for size, s, p, d, taps in zip(
            y.shape[2:], params.stride, params.padding, params.dilation, params.sizes, strict=True
        )
    ]
    patches, groups = gathered(x, places), params.groups
    outs, own = y.shape[1] // groups, x.shape[1] // groups
    terms = y.shape[0] * y.shape[2:].numel()
    found = []
    for group in range(groups):
        rows = rows_of(patches, groups, group)
        columns = torch.Size(params.sizes).numel() * own
        left = y[:, group * outs : (group + 1) * outs].movedim(1, 0)
        made = by(left.reshape(outs, terms), rows.reshape(terms, columns), None)
        found.append(made.reshape(outs, *params.sizes, own))
    return torch.cat(found, 0).movedim(-1, 1)


def by_bridge(dtype: str) -> Product:
    """Returns `matmul` with a result of this dtype."""

    def run(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
        return product(left, right, bias, ProductParams(dtype))

    return run


def in_float64(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    made = left.double() @ right.double()
    return made if bias is None else made + bias.double()


def stand_in(
    kind: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    y: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    tensor_cores: bool,
    threads: int,
    allocate: Any,
) -> None:
    """The native `run_convolution`, by products of patches."""
    word = ("forward", "input", "weight")[kind]
    given = {"x": x, "w": w, "y": y}
    result = given[RESULT[word]]
    a, b = (given[name] for name in OPERANDS[word])
    dtype = dtype_word(result.dtype)
    lists = tuple(result.shape[2:]), tuple(stride), tuple(padding), tuple(dilation)
    params = ConvolutionParams(word, dtype, *lists, groups)
    result.copy_(convolution(a, b, bias, params, by_bridge(dtype)))
