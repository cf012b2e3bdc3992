"""The fused ops of Megatron-LM under their own names: change the import, nothing else.

Originals: `megatron/core/fusions/fused_bias_gelu.py`. Where these differ:

- √(2/π) at full precision; the original's 0.79788456 changes the 9th digit.
- −∞ gives −0 with derivative 0, and float16 gradients stay finite for every finite input: the
  original gives NaN at −∞, and in float16 from |h| of a few hundred.
- 16-bit tensors are computed in float32 and rounded once, the sum with the bias included.
- The gradient of a bias `[d]` is summed in the kernel, in float32 and in a fixed order; the
  original gives a full-size gradient, rounded to the tensor's dtype, which autograd sums.
- Derivatives of any order, forward mode, torch.func and torch.compile work.
"""

from __future__ import annotations

from torch import Tensor

from bridge.torch._broadcasting import broadcast_bias_gelu, broadcast_bias_gelu_back
from bridge.torch._viewless import (
    MakeViewlessTensor,
    assert_viewless_tensor,
    make_viewless_tensor,
    safely_set_viewless_tensor_data,
)

__all__ = [
    "GeLUFunction",
    "MakeViewlessTensor",
    "assert_viewless_tensor",
    "bias_gelu",
    "bias_gelu_back",
    "bias_gelu_impl",
    "make_viewless_tensor",
    "safely_set_viewless_tensor_data",
]


def bias_gelu(bias: Tensor, y: Tensor) -> Tensor:
    """tanh-GELU of y + bias. Mind the order of the arguments, which is the original's.

    `bias` may have any shape that broadcasts with that of `y`. For other forms of GELU, see
    `bridge.torch.bias_gelu`, whose errors and dtypes are these.
    """
    return broadcast_bias_gelu(y, bias)


def bias_gelu_back(g: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """g·gelu′(y + bias) in full size: the gradient of y, and of the bias before it is summed."""
    return broadcast_bias_gelu_back(g, y, bias)


class GeLUFunction:
    """`GeLUFunction.apply(input, bias)`: tanh-GELU of input + bias, differentiable.

    No `torch.autograd.Function` to derive from, unlike the original: `apply` is all there is.
    """

    @staticmethod
    def apply(input: Tensor, bias: Tensor) -> Tensor:
        """Returns gelu(input + bias); `bias` may have any shape that broadcasts."""
        return broadcast_bias_gelu(input, bias)


bias_gelu_impl = GeLUFunction.apply
