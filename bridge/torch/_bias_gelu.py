"""The public bias_gelu of PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from bridge.ops import BIAS_GELU, check_bias_gelu
from bridge.ops.bias_gelu import FORMS
from bridge.torch._autograd import call, native_kernel, plan_of
from bridge.torch._check import check_tensors
from bridge.torch._kernels import dtypes_of, spec_of

# By `approximate`: a kernel that takes every combination of dtypes that passed the checks before.
_seen = {form: native_kernel(BIAS_GELU) for form in FORMS}


def bias_gelu(
    x: Tensor, bias: Tensor | None = None, *, approximate: str = "tanh", out: Tensor | None = None
) -> Tensor:
    """TODO docstring."""
    if out is None and not torch.compiler.is_dynamo_compiling() and approximate in _seen:
        results = _seen[approximate](x, bias)
        if results is not None:
            return results[0]
    check_tensors("bias_gelu", x=x, bias=bias)
    params = check_bias_gelu(spec_of(x), None if bias is None else spec_of(bias), approximate)
    if not torch.compiler.is_compiling():
        plan_of(BIAS_GELU, params, dtypes_of((x, bias))).add_to(_seen[approximate])
    return call(BIAS_GELU, (x, bias), params)[0]
