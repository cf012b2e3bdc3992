"""Matrix products of DTensors; `bridge.ops.product_splits` says which splits stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bridge.ops.product import ProductParams
from bridge.ops.product_splits import added, dims_of, own_params, space_of, supported
from bridge.torch._adapter.dispatcher import library
from bridge.torch._adapter.kernels import dtype_word
from bridge.torch._adapter.products import PRIMITIVES
from bridge.torch._sharded.rows import one_mesh, refuse_plain
from bridge.torch._sharded.shards import gather_along
from bridge.torch._sharded.split import Split, placed, spread


def run(a: Any, b: Any, bias: Any, params: ProductParams) -> DTensor:
    """Returns the product of operands of which some are DTensors.

    Raises:
      TypeError: a is a plain tensor and another operand a DTensor.
      ValueError: operands are on different meshes, or this process is not in their mesh.
    """
    operands = [a, b] if bias is None else [a, b, bias]
    mesh = one_mesh("matmul", operands)
    refuse_plain("matmul", ("a", "b", "bias"), operands)
    shapes = [tuple(operand.shape) for operand in operands]
    space, (*dims, result_dims) = space_of(shapes, params), dims_of(shapes, params)
    spread_out = [(o, d) for o, d in zip(operands, dims, strict=True) if isinstance(o, DTensor)]
    split = supported(Split(space, ((),) * len(space), mesh).like(spread_out))
    local = [placed(o, split, d) for o, d in zip(operands, dims, strict=True)]
    with torch.no_grad():
        result = _on_shard(local, params, split)
    return spread(result, split, result_dims)


def _on_shard(local: list[Tensor], params: ProductParams, split: Split) -> Tensor:
    a, b, *rest = local
    bias = rest[0] if rest else None
    last = len(split.shape) - 1
    if split.parts(last) == 1:
        return PRIMITIVES.product(a, b, bias, params)
    own = own_params(params, [dtype_word(t.dtype) for t in local])
    sums = PRIMITIVES.product(a, b, None, own)[None]
    for axis in reversed(split.axes[last]):  # the slowest axis last, as its parts are outermost
        sums = gather_along(sums, split.mesh, axis, 0)
    return added(PRIMITIVES, sums, bias, params.dtype, own.dtype)  # type: ignore[no-any-return]


def register_products() -> None:
    """Gives the dispatcher's op a rule for DTensor, below autograd."""

    def rule(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        a, b, bias, *fields = args
        return run(a, b, bias, ProductParams(*fields, **(kwargs or {})))

    overload = torch.ops.bridge.matmul.default
    torch.library.register_torch_dispatch(overload, DTensor, rule, lib=library)
