"""The fused ops of Slapo under their own names: change the import, nothing else.

Originals: `slapo/op/fused_bias.py` (in older versions `slapo/op/bias_gelu.py`). Slapo took its
bias-GELU from Megatron-LM, so the differences are those listed in `bridge.torch.megatron`. In
addition, the original's `new_gelu` cubes by `torch.pow` in the tensor's dtype and overflows in
float16 from |h| = 41; this one does not. `bias_dropout` draws another mask than torch for the same
seed, and stores none.
"""

from __future__ import annotations

from torch import Tensor

from bridge.torch._drop_ins.broadcasting import broadcast_bias_dropout_add, broadcast_bias_gelu
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch.megatron import GeLUFunction
from bridge.torch.megatron import bias_gelu as _bias_gelu
from bridge.torch.megatron import bias_gelu_back as _bias_gelu_back

__all__ = ["BiasGeLUFunction", "bias_dropout", "bias_new_gelu", "new_gelu"]


class BiasGeLUFunction(GeLUFunction):
    """`BiasGeLUFunction.apply(inp, bias)`: tanh-GELU of inp + bias, differentiable."""

    bias_gelu = staticmethod(_bias_gelu)
    bias_gelu_back = staticmethod(_bias_gelu_back)


def new_gelu(inp: Tensor) -> Tensor:
    """tanh-GELU with √(2/π) at full precision, as Hugging Face's "gelu_new".

    Args:
      inp: of any shape and floating-point dtype.
    """
    return bias_gelu(inp, approximate="tanh")


def bias_new_gelu(inp: Tensor, bias: Tensor) -> Tensor:
    """`new_gelu(inp + bias)` in one pass; `bias` may have any shape that broadcasts.

    Args:
      inp: of any shape and floating-point dtype.
      bias: of any shape that broadcasts.
    """
    return broadcast_bias_gelu(inp, bias)


def bias_dropout(
    x: Tensor, bias: Tensor | None, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Returns dropout(x + bias), in one pass, as a new tensor of the dtype of x + bias.

    `bias` may have any shape that broadcasts; only `[d]` is added in the same pass. x and bias are
    never written. `inplace` has no visible effect, as in the original: there it allows dropout to
    overwrite the sum, which no caller sees; here the sum is never stored.

    Args:
      x: of any shape and floating-point dtype.
      bias: of any shape that broadcasts, or None.
      p: the probability of an element to become 0.
      training: False for x + bias.
      inplace: of no visible effect.

    Raises:
      TypeError, ValueError: as `bridge.torch.bias_dropout_add`; p is outside [0, 1].
    """
    return broadcast_bias_dropout_add(x, bias, None, p=p, training=training)
