"""Matrix products in torch: an op of the dispatcher with its derivatives and batching rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import SingleLevelFunction, set_fwd_grad_enabled, unpack_dual
from bridge.ops import PROGRAM, Role
from bridge.ops import product as rules
from bridge.ops.definition import Call
from bridge.ops.product import ProductParams
from bridge.torch._adapter.autograd import call
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library, meet_dtensors
from bridge.torch._adapter.kernels import DTYPES, allocate, dtype_word, in_memory

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
        return x.reshape(shape)

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

    @staticmethod
    def is_on_cpu(x: Tensor) -> bool:
        return x.device.type == "cpu"


PRIMITIVES = _Primitives()


def product(a: Tensor, b: Tensor, bias: Tensor | None, params: ProductParams) -> Tensor:
    """Returns the product of operands with as many batch dimensions each."""
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
    dtypes = [dtype_word(t.dtype) for t in (a, b, bias) if t is not None]
    has_tensor_cores = rules.has_tensor_cores(params, dtypes, a.is_cuda)
    result = _empty(a, b, bias, *fields)
    a, b = in_memory(a, Role.FULL), in_memory(b, Role.FULL)
    bias = None if bias is None else in_memory(bias, Role.ROW)
    left, right = a.mT if params.transposed_a else a, b.mT if params.transposed_b else b
    how = params.skips_zeros, has_tensor_cores, torch.get_num_threads(), allocate
    _native.run_product(left, right, bias, result, *how)
    return result


class _Product(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(ctx: Any, below: BelowAutograd, a: Any, b: Any, bias: Any, *fields: Any) -> Any:
        ctx.params, ctx.forward_enabled = ProductParams(*fields), below.forward_enabled
        ctx.fields = len(fields)  # torch leaves out the last where it has its default
        ctx.set_materialize_grads(False)
        ctx.bias = None if bias is None else (tuple(bias.shape), dtype_word(bias.dtype))
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)
        return below(a, b, bias, *fields)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        da = db = dbias = None
        if g is not None:
            a, b = ctx.saved_tensors
            _, needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
            # The derivative of `added_tangents`: two of three cotangents of g meet first.
            own = PRIMITIVES.apart(g) if needs_a and needs_b and needs_bias else g
            if needs_a:
                dtype = dtype_word(a.dtype)
                da = rules.cotangent_of_a(PRIMITIVES, tuple(a.shape), b, own, ctx.params, dtype)
            if needs_b:
                dtype = dtype_word(b.dtype)
                db = rules.cotangent_of_b(PRIMITIVES, a, tuple(b.shape), own, ctx.params, dtype)
            if needs_bias and ctx.bias is not None:
                dbias = rules.cotangent_of_bias(PRIMITIVES, ctx.bias[0], g, ctx.params, ctx.bias[1])
        return None, da, db, dbias, *([None] * ctx.fields)

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
