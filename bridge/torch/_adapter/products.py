"""Matrix products in torch: an op of the dispatcher with its derivatives and batching rule."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import (
    SingleLevelFunction,
    is_old_batched,
    set_fwd_grad_enabled,
    unpack_dual,
)
from bridge.lang.dtypes import NUMBERS
from bridge.ops import PROGRAM, Role
from bridge.ops import product as rules
from bridge.ops.definition import Call
from bridge.ops.product import ProductParams
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autograd import call, frontend
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library, meet_dtensors
from bridge.torch._adapter.kernels import DTYPES, allocate, dense, dtype_word, in_memory

_SCHEMA = (
    "matmul(Tensor a, Tensor b, Tensor? bias, str dtype, bool transposed_a, bool transposed_b, "
    'bool skips_zeros, str? bits="portable") -> Tensor'
)


class ArrayFunctions:
    """Functions that the rules of products and of convolutions need."""

    @staticmethod
    def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
        return x.permute(*order)

    @staticmethod
    def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x if x.shape == shape else x.reshape(shape)

    @staticmethod
    def is_on_cpu(x: Tensor) -> bool:
        return x.device.type == "cpu"

    @staticmethod
    def apart(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def run(summed: Call[Any]) -> Any:
        return call(PROGRAM, summed.operands, summed.params)[0]


class _Primitives(ArrayFunctions):
    """The functions of `bridge.ops.product.Arrays` and `bridge.catalogue.products.Primitives`."""

    @staticmethod
    def product(a: Tensor, b: Tensor, bias: Tensor | None, params: ProductParams) -> Tensor:
        return product(a, b, bias, params)

    @staticmethod
    def ones(like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_ones(shape)

    @staticmethod
    def concatenated(arrays: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(arrays))

    @staticmethod
    def joins_rows(x: Tensor) -> bool:
        return x.is_contiguous()


PRIMITIVES = _Primitives()


_RESULTS = {name: (NUMBERS[name], dtype) for name, dtype in DTYPES.items()}  # for quick_product
_TRANSPOSED_B, _UNOBSERVED, _MATRIX = 2, 8, 16


def _flags(params: ProductParams) -> int:
    return params.transposed_a + _TRANSPOSED_B * params.transposed_b + 4 * params.skips_zeros


def quick(a: Any, b: Any, bias: Any, is_linear: bool) -> Any:
    """Returns a product with the shapes of `numpy.matmul`, or None if the call is no ordinary one.

    An ordinary one is on plain tensors of the CPU with two dimensions or more, and nothing sees it:
    neither autograd nor a transform, a mode or a tracer.

    Args:
      is_linear: b is a weight, a transposed matrix.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return None
    flags = _TRANSPOSED_B | _MATRIX if is_linear else 0
    result = _native.quick_product(frontend(), a, b, bias, flags, None)
    return None if result is True else result


def product(a: Tensor, b: Tensor, bias: Tensor | None, params: ProductParams) -> Tensor:
    """Returns the product of operands with as many batch dimensions each."""
    if params.bits != "device" and not torch.compiler.is_compiling():
        dtype = _RESULTS[params.dtype]
        result = _native.quick_product(frontend(), a, b, bias, _flags(params), dtype)
        if result is True:
            # Only the dispatcher runs on other devices, and records tensors of the old vmap
            # (is_grads_batched).
            is_plain = (a.is_cpu or a.is_cuda) and not (is_old_batched(a) or is_old_batched(b))
            if is_plain and (recorder := nodes.recorder()) is not None:
                return _recording(recorder, params)(a, b, bias)  # type: ignore[no-any-return]
        elif result is not None:
            return result  # type: ignore[no-any-return]
    meet_dtensors()
    flags = params.transposed_a, params.transposed_b, params.skips_zeros
    return torch.ops.bridge.matmul.default(  # type: ignore[no-any-return]
        a, b, bias, params.dtype, *flags, params.bits
    )


def _empty(a: Tensor, b: Tensor, bias: Tensor | None, *fields: Any) -> Tensor:
    """Returns memory for the result, and so the result of the op on fake tensors."""
    params = ProductParams(*fields)
    own = None if bias is None else tuple(bias.shape)
    shape = rules.result_shape(tuple(a.shape), tuple(b.shape), own, params)
    return a.new_empty(shape, dtype=DTYPES[params.dtype])


def _run(a: Tensor, b: Tensor, bias: Tensor | None, *fields: Any) -> Tensor:
    params = ProductParams(*fields)
    if params.bits != "device" and a.is_cpu:
        flags, dtype = _flags(params) | _UNOBSERVED, _RESULTS[params.dtype]
        result = _native.quick_product(frontend(), a, b, bias, flags, dtype)
        if result is not None:
            return result  # type: ignore[no-any-return]
    dtypes = [dtype_word(t.dtype) for t in (a, b, bias) if t is not None]
    has_tensor_cores = rules.has_tensor_cores(params, dtypes, a.is_cuda)
    result = _empty(a, b, bias, *fields)
    a, b = in_memory(a, Role.FULL), in_memory(b, Role.FULL)
    bias = None if bias is None else in_memory(bias, Role.ROW)
    left, right = a.mT if params.transposed_a else a, b.mT if params.transposed_b else b
    how = params.skips_zeros, has_tensor_cores, torch.get_num_threads(), allocate
    _native.run_product(left, right, bias, result, *how)
    return result


def _cotangents(
    kept: tuple[Tensor, Tensor], g: Tensor, wanted: Sequence[bool], bias: Any, params: ProductParams
) -> tuple[Any, Any, Any]:
    """Returns the cotangents of a, b and the bias, of which `bias` gives shape and dtype."""
    (a, b), (needs_a, needs_b, needs_bias) = kept, wanted
    g = dense(g)
    da = db = dbias = None
    # The derivative of `added_tangents`: two of three cotangents of g meet first.
    own = PRIMITIVES.apart(g) if needs_a and needs_b and needs_bias else g
    if needs_a:
        da = rules.cotangent_of_a(PRIMITIVES, tuple(a.shape), b, own, params, dtype_word(a.dtype))
    if needs_b:
        db = rules.cotangent_of_b(PRIMITIVES, a, tuple(b.shape), own, params, dtype_word(b.dtype))
    if needs_bias and bias is not None:
        dbias = rules.cotangent_of_bias(PRIMITIVES, bias[0], g, params, bias[1])
    return da, db, dbias


def _bias_of(operands: Sequence[Any]) -> Any:
    bias = operands[2]
    return None if bias is None else (tuple(bias.shape), dtype_word(bias.dtype))


@functools.lru_cache(maxsize=256)
def _recording(recorder: Any, params: ProductParams) -> Any:
    """Returns the function in C++ that computes a product and has autograd record it."""
    fields = dataclasses.astuple(params)

    def run(operands: Sequence[Any]) -> tuple[Tensor]:
        return (_run(*operands, *fields),)

    def pull(kept: Any, cotangents: Any, wanted: Any, bias: Any) -> Any:
        g = cotangents[0]
        return (None,) * 3 if g is None else _cotangents(kept, g, wanted, bias, params)

    def only_step(*_: Any) -> None:
        return None

    return recorder("bridge::matmulBackward", (0, 1), (0,), None, run, _bias_of, only_step, pull)


class _Product(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(ctx: Any, below: BelowAutograd, a: Any, b: Any, bias: Any, *fields: Any) -> Any:
        ctx.params, ctx.forward_enabled = ProductParams(*fields), below.forward_enabled
        ctx.fields = len(fields)  # torch leaves out the last where it has its default
        ctx.set_materialize_grads(False)
        ctx.bias = _bias_of((a, b, bias))
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return below(a, b, bias, *fields)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        others = [None] * ctx.fields
        if g is None:
            return None, None, None, None, *others
        _, *wanted = ctx.needs_input_grad[:4]
        return None, *_cotangents(ctx.saved_tensors, g, wanted, ctx.bias, ctx.params), *others

    @staticmethod
    def jvp(ctx: Any, _: Any, da: Any, db: Any, dbias: Any, *others: Any) -> Any:
        # Outer levels of torch.func must see the caller's modes (`jvp_among_levels`).
        a, b = (unpack_dual(t, level=0)[0] for t in ctx.saved_tensors)
        with set_fwd_grad_enabled(ctx.forward_enabled):
            found = rules.tangents(PRIMITIVES, (a, b, None), (da, db, dbias), ctx.params)
            return rules.added_tangents(PRIMITIVES, found)


_record = recorder(named(_Product, "matmul", False))


def _autograd(keys: Any, *arguments: Any) -> Any:
    return _record(BelowAutograd(torch.ops.bridge.matmul.default, keys), *arguments)


def _vmap(info: Any, in_dims: Any, a: Any, b: Any, bias: Any, *fields: Any) -> Any:
    def moved(x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        return x.unsqueeze(0) if dim is None else x.movedim(dim, 0)

    left, right = moved(a, in_dims[0]), moved(b, in_dims[1])
    if bias is not None and in_dims[2] is not None:
        bias = moved(bias, in_dims[2])
        ones = (1,) * (left.ndim - 1 - bias.ndim)  # type: ignore[union-attr]
        bias = bias.reshape(bias.shape[0], *ones, *bias.shape[1:])
    elif bias is not None and bias.ndim > 1:
        bias = bias.unsqueeze(0)
    if in_dims[0] is None and in_dims[1] is None:  # only the bias has the dimension
        left = left.expand(info.batch_size, *left.shape[1:])  # type: ignore[union-attr]
    return product(left, right, bias, ProductParams(*fields)), 0  # type: ignore[arg-type]


def _define() -> None:
    library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        library.impl("matmul", _run, device)
    torch.library.register_fake("bridge::matmul", _empty, lib=library)
    library.impl("matmul", _autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap("bridge::matmul", _vmap, lib=library)


_define()
