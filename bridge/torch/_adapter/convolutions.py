"""Convolutions in torch: an op of the dispatcher with its derivatives and batching rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import SingleLevelFunction, set_fwd_grad_enabled, unpack_dual
from bridge.ops import Role
from bridge.ops import convolution as rules
from bridge.ops.convolution import KINDS, OPERANDS, RESULT, ConvolutionParams
from bridge.ops.product import added_tangents
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autograd import is_in_graph, is_ordinary
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library, meet_dtensors
from bridge.torch._adapter.kernels import (
    DTYPES,
    allocate,
    dense,
    dtype_word,
    in_memory,
    new_memory,
)
from bridge.torch._adapter.products import ArrayFunctions

_SCHEMA = (
    "convolution(Tensor a, Tensor b, Tensor? bias, str kind, str dtype, SymInt[] sizes, "
    "int[] stride, SymInt[] padding, int[] dilation, SymInt groups, "
    'str? bits="portable") -> Tensor'
)


class _Primitives(ArrayFunctions):
    """The functions of `bridge.ops.convolution.Arrays`."""

    @staticmethod
    def convolution(a: Tensor, b: Tensor, bias: Tensor | None, params: ConvolutionParams) -> Tensor:
        return convolution(a, b, bias, params)

    @staticmethod
    def repeated(x: Tensor, count: int) -> Tensor:
        return x.expand(count, *x.shape)

    @staticmethod
    def zeros(like: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        return like.new_zeros(shape, dtype=DTYPES[dtype])


PRIMITIVES = _Primitives()


def convolution(a: Tensor, b: Tensor, bias: Tensor | None, params: ConvolutionParams) -> Tensor:
    """Returns the convolution of two of x, w and y, in the order of `OPERANDS`."""
    operands = a, b, bias
    is_direct = params.bits != "device" and not torch.compiler.is_compiling()
    if is_direct and is_ordinary(operands):
        if not is_in_graph(operands):
            return _computed(a, b, bias, params)
        if (recorder := nodes.recorder()) is not None:
            return _recording(recorder, params)(a, b, bias)  # type: ignore[no-any-return]
    meet_dtensors()
    lists = params.sizes, params.stride, params.padding, params.dilation
    return torch.ops.bridge.convolution.default(  # type: ignore[no-any-return]
        a, b, bias, params.kind, params.dtype, *map(list, lists), params.groups, params.bits
    )


def params_of(
    kind: str,
    dtype: str,
    sizes: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    bits: str | None = "portable",
) -> ConvolutionParams:
    """Returns the parameters from the arguments of the dispatcher's op."""
    lists = tuple(sizes), tuple(stride), tuple(padding), tuple(dilation)
    return ConvolutionParams(kind, dtype, *lists, groups, bits)


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def has_channels_last(x: Tensor) -> bool:
    """Returns True if torch takes the strides for those of a format with channels last."""
    if x.ndim not in _FORMATS:
        return False
    least = 0
    for d in (1, *range(x.ndim - 1, 1, -1), 0):
        stride = x.stride(d)
        if x.shape[d] == 0 or stride < least or (d == 0 and least == x.stride(1)):
            return False
        least = stride * x.shape[d] if x.shape[d] > 1 else stride
    return True


def _empty(a: Tensor, b: Tensor, bias: Tensor | None, *fields: Any) -> Tensor:
    """Returns memory for the result, and so the result of the op on fake tensors.

    As in torch, a result has its channels last if an operand has.
    """
    params = params_of(*fields)
    memory = torch.contiguous_format
    if has_channels_last(a) or has_channels_last(b):
        memory = _FORMATS[a.ndim]
    shape = _shape(a, b, bias, params)
    return torch.empty(shape, dtype=DTYPES[params.dtype], device=a.device, memory_format=memory)


def _shape(a: Tensor, b: Tensor, bias: Tensor | None, params: ConvolutionParams) -> tuple[int, ...]:
    own = None if bias is None else tuple(bias.shape)
    return rules.result_shape(tuple(a.shape), tuple(b.shape), own, params)


def _memory(a: Tensor, b: Tensor, bias: Tensor | None, params: ConvolutionParams) -> Tensor:
    """Returns memory like `_empty`, which may be that of a dropped result."""
    shape = _shape(a, b, bias, params)
    if not (has_channels_last(a) or has_channels_last(b)):
        return new_memory(shape, params.dtype, a)
    images, channels, *places = shape
    made = new_memory((images, *places, channels), params.dtype, a)
    return made.movedim(-1, 1).data


def _run(a: Tensor, b: Tensor, bias: Tensor | None, *fields: Any) -> Tensor:
    return _computed(a, b, bias, params_of(*fields))


def _computed(a: Tensor, b: Tensor, bias: Tensor | None, params: ConvolutionParams) -> Tensor:
    dtypes = [dtype_word(t.dtype) for t in (a, b, bias) if t is not None]
    has_tensor_cores = rules.has_tensor_cores(params, dtypes, a.is_cuda)
    result = _memory(a, b, bias, params)
    a, b = in_memory(a, Role.FULL), in_memory(b, Role.FULL)
    bias = None if bias is None else in_memory(bias, Role.ROW)
    one, two = OPERANDS[params.kind]
    given = {one: a, two: b, RESULT[params.kind]: result}
    where = list(params.stride), list(params.padding), list(params.dilation), params.groups
    _native.run_convolution(
        KINDS.index(params.kind),
        given["x"],
        given["w"],
        bias,
        given["y"],
        *where,
        has_tensor_cores,
        torch.get_num_threads(),
        allocate,
    )
    return result


def _cotangents(
    kept: Sequence[Any], g: Tensor, wanted: Sequence[bool], bias: str | None, params: Any
) -> tuple[Any, Any, Any]:
    """Returns the cotangents of both operands and of the bias, whose dtype is `bias`."""
    g, (*needed, needs_bias) = dense(g), wanted
    operands = dict(zip(OPERANDS[params.kind], kept, strict=True))
    # The derivative of `added_tangents`: two of three cotangents of g meet first.
    meets = all((*needed, needs_bias))
    values = {**operands, RESULT[params.kind]: PRIMITIVES.apart(g) if meets else g}
    found: list[Any] = [None, None]
    for place, (name, own) in enumerate(operands.items()):
        if needed[place]:
            shape, dtype = tuple(own.shape), dtype_word(own.dtype)
            found[place] = rules.cotangent(PRIMITIVES, name, shape, values, params, dtype)
    dbias = None
    if needs_bias and bias is not None:
        dbias = rules.cotangent_of_bias(PRIMITIVES, g, params, bias)
    return found[0], found[1], dbias


def _dtype_of_bias(operands: Sequence[Any]) -> str | None:
    return None if operands[2] is None else dtype_word(operands[2].dtype)


@functools.lru_cache(maxsize=256)
def _recording(recorder: Any, params: ConvolutionParams) -> Any:
    """Returns the function in C++ that computes a call and has autograd record it."""

    def run(operands: Sequence[Any]) -> tuple[Tensor]:
        a, b, bias = operands
        return (_computed(a, b, bias, params),)

    def pull(kept: Any, cotangents: Any, wanted: Any, bias: Any) -> Any:
        g = cotangents[0]
        return (None,) * 3 if g is None else _cotangents(kept, g, wanted, bias, params)

    def only_step(*_: Any) -> None:
        return None

    name = "bridge::convolutionBackward"
    return recorder(name, (0, 1), (0,), None, run, _dtype_of_bias, only_step, pull)


class _Convolution(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(ctx: Any, below: BelowAutograd, a: Any, b: Any, bias: Any, *fields: Any) -> Any:
        ctx.params, ctx.forward_enabled = params_of(*fields), below.forward_enabled
        ctx.fields = len(fields)  # torch leaves out the last where it has its default
        ctx.set_materialize_grads(False)
        ctx.bias = _dtype_of_bias((a, b, bias))
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return below(a, b, bias, *fields)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        nothing = [None] * ctx.fields
        if g is None:
            return None, None, None, None, *nothing
        wanted = ctx.needs_input_grad[1:4]
        return None, *_cotangents(ctx.saved_tensors, g, wanted, ctx.bias, ctx.params), *nothing

    @staticmethod
    def jvp(ctx: Any, _: Any, da: Any, db: Any, dbias: Any, *others: Any) -> Any:
        # Outer levels of torch.func must see the caller's modes (`jvp_among_levels`).
        a, b = (unpack_dual(t, level=0)[0] for t in ctx.saved_tensors)
        with set_fwd_grad_enabled(ctx.forward_enabled):
            found = rules.tangents(PRIMITIVES, (a, b), (da, db, dbias), ctx.params)
            return added_tangents(PRIMITIVES, found)


_record = recorder(named(_Convolution, "convolution", False))


def _autograd(keys: Any, *arguments: Any) -> Any:
    return _record(BelowAutograd(torch.ops.bridge.convolution.default, keys), *arguments)


def _vmap(info: Any, in_dims: Any, a: Any, b: Any, bias: Any, *fields: Any) -> Any:
    a, b, bias = (
        x if dim is None else x.movedim(dim, 0)
        for x, dim in zip((a, b, bias), in_dims, strict=False)
    )
    has_batch = [dim is not None for dim in in_dims[:3]]
    params, size = params_of(*fields), info.batch_size
    return rules.batched(PRIMITIVES, a, b, bias, has_batch, size, params), 0


def _define() -> None:
    library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        library.impl("convolution", _run, device)
    torch.library.register_fake("bridge::convolution", _empty, lib=library)
    library.impl("convolution", _autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap("bridge::convolution", _vmap, lib=library)


_define()
