"""Convolutions of arrays that are split over devices, in any framework.

The space of a convolution has images, and the channels of x and of y, or their groups if there are
several. Every device computes its part of images and channels. An index over which a kind sums is
gathered, and so are kernels and dimensions of space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.ops.convolution import OPERANDS, RESULT, ConvolutionParams, Shape, in_order
from bridge.ops.splitting import Split

IMAGES, OUT, IN = range(3)  # of one group
GROUPS = 1

_DIMS = {"x": (IMAGES, IN), "w": (OUT, IN), "y": (IMAGES, OUT)}
_DIMS_OF_GROUPS = {"x": (IMAGES, GROUPS), "w": (GROUPS, None), "y": (IMAGES, GROUPS)}
_SUMMED = {"forward": IN, "input": OUT, "weight": IMAGES}


def space_of(shapes: Sequence[Shape], params: ConvolutionParams) -> Shape:
    """Returns the space of a convolution of operands with these stored shapes."""
    sizes = {
        name: in_order(shape, params.order(name))
        for name, shape in zip(OPERANDS[params.kind], shapes, strict=False)
    }
    images = (sizes.get("x") or sizes["y"])[0]
    if params.groups != 1:
        return images, params.groups
    x, w, y = (sizes.get(name) for name in "xwy")
    out = y[1] if y else w[0] if w else 0
    return images, out, x[1] if x else w[1] if w else 0


def dims_of(shapes: Sequence[Shape], params: ConvolutionParams) -> list[list[int | None]]:
    """Maps the stored dimensions of all operands and of the result to those of the space."""
    dims = _DIMS if params.groups == 1 else _DIMS_OF_GROUPS
    names = [*OPERANDS[params.kind], RESULT[params.kind]]
    found: list[list[int | None]] = []
    for name in names:
        order = params.order(name)
        own: list[int | None] = [None] * len(order)
        for d, dim in zip(order, dims[name], strict=False):
            own[d] = dim
        found.append(own)
    if len(shapes) == 3:
        found.insert(2, [dims[names[-1]][1]])
    return found


def supported(split: Split, params: ConvolutionParams) -> Split:
    """Returns the part of a split of the space that devices can keep."""
    summed = _SUMMED[params.kind] if params.groups == 1 or params.kind == "weight" else None
    axes = tuple(
        () if dim == summed or size == 0 or size % split.parts(dim) else split.axes[dim]
        for dim, size in enumerate(split.shape)
    )
    return replace(split, axes=axes)


def own_params(params: ConvolutionParams, split: Split) -> ConvolutionParams:
    """Returns the parameters of a device's part."""
    if params.groups == 1:
        return params
    return replace(params, groups=params.groups // split.parts(GROUPS))
