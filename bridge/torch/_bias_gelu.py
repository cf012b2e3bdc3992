"""The public bias_gelu of PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.ops import BIAS_GELU, check_bias_gelu
from bridge.torch._autograd import call
from bridge.torch._check import check_tensors
from bridge.torch._kernels import spec_of


def bias_gelu(x: Tensor, bias: Tensor | None = None, *, approximate: str = "tanh") -> Tensor:
    """TODO docstring."""
    check_tensors("bias_gelu", x=x, bias=bias)
    params = check_bias_gelu(
        spec_of(x), None if bias is None else spec_of(bias), approximate
    )
    return call(BIAS_GELU, (x, bias), params)[0]
