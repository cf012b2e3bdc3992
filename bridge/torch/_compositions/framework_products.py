"""The functions of `bridge.torch._compositions.functions` with torch's own matrix products."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bridge.ops.product import ProductParams
from bridge.torch._compositions import functions


def _product(a: Tensor, b: Tensor, bias: Tensor | None, params: ProductParams) -> Any:
    dtype = getattr(torch, params.dtype)
    if a.dtype == torch.float16 != dtype:  # the sum over rows may not fit in float16
        a, b = a.to(dtype), b.to(dtype)
    a = a.mT if params.transposed_a else a
    b = b.mT if params.transposed_b else b
    if bias is not None and a.ndim == 2:
        return torch.addmm(bias, a, b).to(dtype)
    product = torch.matmul(a, b).to(dtype)
    return product if bias is None else product + bias[..., None, :]


framework_functions: Any = SimpleNamespace(
    **{name: getattr(functions, name) for name in functions.__all__}
)
framework_functions.product, framework_functions.has_trees = _product, False
