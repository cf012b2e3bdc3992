"""Convolutions: shapes, and derivatives, which are convolutions again.

Three arrays belong to a convolution: x `[n, ci, *space]`, w `[co, ci/groups, *kernel]` and y
`[n, co, *places]`. Two of them are the operands and the third is the result, so there are three
kinds. Each kind is linear in each operand, and the derivative towards an operand is another kind.

Two indices of channels hold a group and a channel of the group, the group as the slow part. The
arrays share five indices then: x has n, g and i, w has g, o and i, and y has n, g and o. A batch
goes into the index that the arrays with the batch share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bridge.ops.product import ArrayFunctions, ProductParams, takes_tensor_cores
from bridge.ops.product import workspace_bytes as workspace_of_product
from bridge.ops.sums import sum_of_rows

Shape = tuple[int, ...]

KINDS = ("forward", "input", "weight")
OPERANDS = {"forward": ("x", "w"), "input": ("y", "w"), "weight": ("x", "y")}
RESULT = {"forward": "y", "input": "x", "weight": "w"}
_KIND_OF = {result: kind for kind, result in RESULT.items()}
_INDICES = {"x": ("n", "gi"), "w": ("go", "i"), "y": ("n", "go")}


@dataclass(frozen=True)
class ConvolutionParams:
    """Parameters of a convolution.

    Attributes:
      kind: "forward" for y of x and w, "input" for x of y and w, "weight" for w of x and y.
      dtype: the result's, to which the sum is rounded once.
      sizes: the result's dimensions of space.
      stride, padding, dilation: one number for each dimension of space. The position t of the
        kernel reads x for place p of y at p·stride − padding + t·dilation. Outside of x are zeros.
      groups: the number of groups of channels.
      bits: as of a product (`ProductParams`), with two of x, w and y as its operands.
      orders: the dimensions of x, w and y as they are stored: dimension i above is dimension
        order[i] of the array. None if they are stored in this order.
    """

    kind: str
    dtype: str
    sizes: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    bits: str | None = "portable"
    orders: tuple[Shape, Shape, Shape] | None = None

    def order(self, name: str) -> Shape:
        """Returns the order in which x, w or y is stored."""
        if self.orders is None:
            return tuple(range(len(self.stride) + 2))
        return self.orders["xwy".index(name)]


class Arrays(ArrayFunctions, Protocol):
    """The functions of a framework that the rules need."""

    def convolution(self, a: Any, b: Any, bias: Any, params: ConvolutionParams) -> Any:
        """Returns the convolution, which can be differentiated."""

    def repeated(self, x: Any, count: int) -> Any:
        """Returns x `count` times, in a new first dimension."""

    def zeros(self, like: Any, shape: Shape, dtype: str) -> Any:
        """Returns zeros on the device of `like`."""


def in_order(shape: Sequence[int], order: Sequence[int]) -> Shape:
    """Returns the sizes of channels and space from a stored shape."""
    return tuple(shape[d] for d in order)


def stored(sizes: Sequence[int], order: Sequence[int]) -> Shape:
    """Returns the stored shape of an array with these sizes."""
    found = [0] * len(order)
    for size, d in zip(sizes, order, strict=True):
        found[d] = size
    return tuple(found)


def result_shape(a: Shape, b: Shape, bias: Shape | None, params: ConvolutionParams) -> Shape:
    """Returns the stored shape of the result.

    Raises:
      ValueError: if the operands do not fit each other.
    """
    one, two = OPERANDS[params.kind]
    ndim, groups = len(params.stride) + 2, params.groups
    fits = len(a) == len(b) == ndim and groups > 0
    if fits:
        left, right = in_order(a, params.order(one)), in_order(b, params.order(two))
        if params.kind == "weight":
            fits = left[0] == right[0] and left[1] % groups == right[1] % groups == 0
            channels = right[1], left[1] // groups
        elif params.kind == "forward":
            fits = left[1] == right[1] * groups and right[0] % groups == 0
            channels = left[0], right[0]
        else:
            fits = left[1] == right[0] and right[0] % groups == 0
            channels = left[0], right[1] * groups
        fits = fits and (bias is None or tuple(bias) == channels[1:])
    if not fits:
        given = ", ".join(str(list(each)) for each in (a, b, bias) if each is not None)
        raise ValueError(
            f"convolution: operands of shapes {given} do not fit each other in {groups} groups"
        )
    return stored((*channels, *params.sizes), params.order(RESULT[params.kind]))


def has_tensor_cores(params: ConvolutionParams, dtypes: Sequence[str], is_on_cuda: bool) -> bool:
    """Returns True if tensor cores compute a convolution of two arrays and perhaps a bias.

    Raises:
      ValueError: the bits are those of tensor cores, on a CPU.
    """
    return takes_tensor_cores("convolution", params.bits, (*dtypes, params.dtype), is_on_cuda)


def workspace_bytes(a: Shape, b: Shape, params: ConvolutionParams) -> int:
    """Returns the bytes of memory on CUDA in which sums wait.

    The classes of places of a strided gradient have fewer terms and rows than are counted here.
    """
    shapes = {
        name: in_order(shape, params.order(name))
        for name, shape in zip(OPERANDS[params.kind], (a, b), strict=True)
    }
    result = RESULT[params.kind]
    shape = result_shape(a, b, None, params)
    shapes[result] = in_order(shape, params.order(result))
    x, w, y = (shapes[name] for name in "xwy")
    groups = params.groups
    outs, ins, positions = w[0] // groups, w[1], _product(w[2:])
    if params.kind == "weight":
        rows, columns, terms = positions * ins, outs, y[0] * _product(y[2:])
    elif params.kind == "forward":
        rows, columns, terms = y[0] * _product(y[2:]), outs, positions * ins
    else:
        rows, columns, terms = x[0] * _product(x[2:]), ins, positions * outs
    left, right = (groups, rows, terms), (groups, terms, columns)
    return workspace_of_product(left, right, ProductParams(params.dtype))


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for size in sizes:
        found = found * size
    return found


def cotangent(
    arrays: Arrays,
    target: str,
    shape: Shape,
    values: Mapping[str, Any],
    params: ConvolutionParams,
    dtype: str,
) -> Any:
    """Returns the cotangent of an operand.

    Args:
      target: the operand, "x", "w" or "y".
      shape: the operand's, as it is stored.
      values: the other operand, and in the place of the result its cotangent.
      dtype: the operand's.
    """
    kind = _KIND_OF[target]
    sizes = in_order(shape, params.order(target))[2:]
    own = replace(params, kind=kind, dtype=dtype, sizes=sizes)
    a, b = (values[name] for name in OPERANDS[kind])
    return arrays.convolution(a, b, None, own)


def cotangent_of_bias(arrays: Arrays, g: Any, params: ConvolutionParams, dtype: str) -> Any:
    """Returns the sum of g over images and places."""
    images, channels, *space = params.order(RESULT[params.kind])
    rows = g.shape[images]
    for d in space:
        rows = rows * g.shape[d]
    moved = arrays.permuted(g, [images, *space, channels])
    own = "float64" if "float64" in (dtype, params.dtype) else "float32"
    found = arrays.reshaped(moved, (1, rows, g.shape[channels]))
    total = arrays.run(sum_of_rows(found, own, dtype, 1))
    return arrays.reshaped(total, (g.shape[channels],))


def tangents(
    arrays: Arrays, primals: Sequence[Any], directions: Sequence[Any], params: ConvolutionParams
) -> list[Any]:
    """Returns convolutions that add up to the tangent of the result; a direction may be None."""
    (a, b), (da, db, dbias) = primals, directions
    found = []
    for left, right in ((da, b), (a, db)):
        if left is not None and right is not None:
            found.append(arrays.convolution(left, right, None, params))
    if dbias is not None:  # the bias of a convolution without terms
        contracted = "i" if params.kind == "forward" else "o"
        empty = [
            x[_none_of(name, contracted, params)]
            for x, name in zip((a, b), OPERANDS[params.kind], strict=True)
        ]
        found.append(arrays.convolution(empty[0], empty[1], dbias, params))
    return found


def _none_of(name: str, index: str, params: ConvolutionParams) -> tuple[slice, ...]:
    """Returns the slices that leave out all channels of an array."""
    order = params.order(name)
    slices = [slice(None)] * len(order)
    dim = next(d for d, held in enumerate(_INDICES[name]) if index in held)
    slices[order[dim]] = slice(0, 0)
    return tuple(slices)


def batched(
    arrays: Arrays,
    a: Any,
    b: Any,
    bias: Any,
    has_batch: Sequence[bool],
    size: int,
    params: ConvolutionParams,
) -> Any:
    """Returns the convolutions of a batch; the batch is the first dimension of the result.

    Args:
      a, b, bias: operands; if `has_batch`, with the batch as first dimension.
      size: of the batch.
    """
    in_a, in_b, in_bias = has_batch
    shape = result_shape(tuple(a.shape[in_a:]), tuple(b.shape[in_b:]), None, params)
    if isinstance(size, int) and size == 0:
        return arrays.zeros(a, (0, *shape), params.dtype)
    if in_bias and not in_b:  # no image has a bias of its own
        b, in_b = arrays.repeated(b, size), True
    one, two = OPERANDS[params.kind]
    result = RESULT[params.kind]
    if in_a and in_b:
        index = "g"
    elif in_a:
        index = _shared(one, result)
    else:
        index = _shared(two, result)
    if bias is not None and index != "n" and not in_bias:
        bias = arrays.repeated(bias, size)
    groups = params.groups

    def folded(x: Any, held: Sequence[str]) -> Any:
        return _folded(arrays, x, held, index, groups, size)

    if in_a:
        a = folded(a, _held(one, params))
    if in_b:
        b = folded(b, _held(two, params))
    if bias is not None and index != "n":
        bias = folded(bias, _INDICES[result][1:])
    own = replace(params, groups=groups * size) if index == "g" else params
    made = arrays.convolution(a, b, bias, own)
    return _unfolded(arrays, made, shape, _held(result, params), index, groups, size)


def _shared(one: str, two: str) -> str:
    """Returns the index that two of the arrays share and the third lacks."""
    return {"xw": "i", "xy": "n", "wy": "o"}["".join(sorted((one, two), key="xwy".index))]


def _held(name: str, params: ConvolutionParams) -> list[str]:
    """Returns the indices that each stored dimension holds."""
    order = params.order(name)
    held = [""] * len(order)
    for d, indices in zip(order, _INDICES[name], strict=False):
        held[d] = indices
    return held


def _split(held: Sequence[str], index: str, groups: int) -> tuple[int, bool]:
    """Returns the dimension into which a batch goes, and True if it goes behind the group."""
    dim = next(d for d, indices in enumerate(held) if index in indices)
    return dim, groups != 1 and len(held[dim]) == 2 and index != "g"


def _folded(arrays: Arrays, x: Any, held: Sequence[str], index: str, groups: int, size: int) -> Any:
    dim, is_behind = _split(held, index, groups)
    before, own, after = x.shape[1 : dim + 1], x.shape[dim + 1], x.shape[dim + 2 :]
    if is_behind:
        x = arrays.reshaped(x, (size, *before, groups, own // groups, *after))
    at = dim + is_behind  # dimensions before the batch's new place
    moved = arrays.permuted(x, [*range(1, at + 1), 0, *range(at + 1, x.ndim)])
    return arrays.reshaped(moved, (*before, own * size, *after))


def _unfolded(
    arrays: Arrays,
    x: Any,
    shape: Shape,
    held: Sequence[str],
    index: str,
    groups: int,
    size: int,
) -> Any:
    """Returns the batch `[size, *shape]`."""
    dim, is_behind = _split(held, index, groups)
    parts = (groups, size, shape[dim] // groups) if is_behind else (size, shape[dim])
    x = arrays.reshaped(x, (*shape[:dim], *parts, *shape[dim + 1 :]))
    at = dim + is_behind
    moved = arrays.permuted(x, [at, *range(at), *range(at + 1, x.ndim)])
    return arrays.reshaped(moved, (size, *shape))
