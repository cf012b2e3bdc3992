"""The fused ops of Megatron-LM under their own names: change the import, nothing else.

Originals: `megatron/core/utils.py`, and in `megatron/core/fusions` `fused_bias_gelu.py`,
`fused_softmax.py`, `fused_bias_dropout.py`, `fused_bias_swiglu.py`, `fused_bias_geglu.py`,
`fused_weighted_squared_relu.py`, `fused_layer_norm.py` (for the last four see docs/ops/gates.md and
norms.md) and `fused_cross_entropy.py`; the generic softmax is from apex.

Everything here has derivatives of any order, forward mode, torch.func and
torch.compile(fullgraph=True), computes 16-bit tensors in float32, rounds once, and adds in a fixed
order. The `apply` of an autograd Function has all that. A subclass with its own `forward` or
`backward` is an ordinary Function of torch. Differences:

Viewless tensors

- The result shares the version counter, so that a write in place makes a backward pass raise if it
  would be wrong. In the original the counter is not shared, and the gradient is silently wrong.

bias-GELU

- √(2/π) at full precision; the original's 0.79788456 changes the 9th digit.
- −∞ gives −0 with derivative 0, and float16 gradients stay finite for every finite input. The
  original gives NaN at −∞, and in float16 from |h| of a few hundred on.
- The gradient of a bias `[d]` is summed in the kernel, in float32 and in a fixed order; the
  original gives a full-size gradient, rounded to the tensor's dtype, which autograd sums.

Softmax

- A masked element is exactly 0, and so is its gradient, whatever the scores are there. The original
  fills with −10000, which leaks probability if real scores are near it. A row with nothing visible
  is 0 here; in the original its value depends on the path.
- `scale` is not rounded to the dtype of the scores. The incoming gradient is never overwritten.
- There is no limit on lengths, and they need not be divisible; the originals stop at 2048 to 16384
  keys and need multiples of 4. The causal rule takes sq ≠ sk, aligned at the last query and key;
  the original raises AssertionError.
- There is one path. A mask is bool or uint8 and hides where it is True, also where the original
  calls `mask_func`: a `mask_func` with any other effect is not called here. Mask, causal rule and
  window all apply together. The original drops the mask with a window and on its fused causal path,
  the causal rule on its unfused path with a mask, and the window on its fused path.
- −1 in `window_size` is no limit, as elsewhere in Megatron; the original's softmax subtracts it.
- The result has the dtype of the scores; autocast does not change it (apex's version casts). This
  holds for `SoftmaxOne` too; the original promotes its result with the offset's dtype.

Cross-entropy

- The losses are equal to those of whole rows, bit for bit, for any number of ranks that share the
  columns. The label −100 gives 0. Any other label out of range gives ValueError or, on a GPU, NaN.
  In the original both give the log of the sum, and the caller must mask it.
- Logits are never overwritten. Label smoothing spreads over the whole vocabulary; the original
  takes the mean over a rank's part.

bias-dropout-add

- The random mask differs from torch's for the same seed: it is the mask of
  `bridge.torch.bias_dropout_add`, drawn again for the backward pass and never stored.
- Inference writes its result into x, as in the original, except if that would change other tensors
  (a view, shared memory). The original writes there too, and is wrong if x and the residual share
  memory.
- The result has the residual's dtype, as in the newest original; in older ones it has x's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.broadcasting import (
    broadcast_bias_add_,
    broadcast_bias_dropout_add,
    broadcast_bias_gelu,
    broadcast_bias_gelu_back,
)
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.fused_layer_norm import FusedLayerNorm
from bridge.torch._drop_ins.geglu import (
    BiasGeGLUFunction,
    GeGLUFunction,
    WeightedBiasQuickGeGLUFunction,
    WeightedQuickGeGLUFunction,
    bias_geglu,
    bias_geglu_back,
    bias_geglu_impl,
    geglu,
    geglu_back,
    quick_geglu,
    quick_geglu_back,
    quick_gelu,
    weighted_bias_quick_geglu,
    weighted_bias_quick_geglu_back,
    weighted_bias_quick_geglu_impl,
    weighted_quick_geglu,
    weighted_quick_geglu_back,
)
from bridge.torch._drop_ins.losses import (
    _VocabParallelCrossEntropy,  # noqa: F401  (the original's name)
    fused_vocab_parallel_cross_entropy,
    vocab_parallel_cross_entropy,
)
from bridge.torch._drop_ins.scale_mask_softmax import (
    FusedScaleMaskSoftmax,
    GenericScaledMaskedSoftmax,
    ScaledMaskedSoftmax,
    ScaledSoftmax,
    ScaledUpperTriangMaskedSoftmax,
    SoftmaxOne,
)
from bridge.torch._drop_ins.squared_relu import (
    WeightedSquaredReLUFunction,
    weighted_squared_relu,
    weighted_squared_relu_back,
    weighted_squared_relu_impl,
)
from bridge.torch._drop_ins.swiglu import (
    BiasSwiGLUFunction,
    SwiGLUFunction,
    WeightedSwiGLUFunction,
    bias_clamped_swiglu,
    bias_clamped_swiglu_back,
    bias_swiglu,
    bias_swiglu_back,
    bias_swiglu_impl,
    clamped_swiglu,
    clamped_swiglu_back,
    clamped_weighted_swiglu,
    clamped_weighted_swiglu_back,
    swiglu,
    swiglu_back,
    weighted_bias_swiglu_impl,
    weighted_swiglu,
    weighted_swiglu_back,
)
from bridge.torch._drop_ins.viewless import MakeViewlessTensor
from bridge.torch._ops.viewless import (
    assert_viewless_tensor,
    make_viewless_tensor,
    safely_set_viewless_tensor_data,
)

__all__ = [
    "BiasGeGLUFunction",
    "BiasSwiGLUFunction",
    "FusedLayerNorm",
    "FusedScaleMaskSoftmax",
    "GeGLUFunction",
    "GeLUFunction",
    "GenericScaledMaskedSoftmax",
    "MakeViewlessTensor",
    "ScaledMaskedSoftmax",
    "ScaledSoftmax",
    "ScaledUpperTriangMaskedSoftmax",
    "SoftmaxOne",
    "SwiGLUFunction",
    "WeightedBiasQuickGeGLUFunction",
    "WeightedQuickGeGLUFunction",
    "WeightedSquaredReLUFunction",
    "WeightedSwiGLUFunction",
    "assert_viewless_tensor",
    "bias_clamped_swiglu",
    "bias_clamped_swiglu_back",
    "bias_dropout_add_fused_inference",
    "bias_dropout_add_fused_train",
    "bias_dropout_add_unfused",
    "bias_geglu",
    "bias_geglu_back",
    "bias_geglu_impl",
    "bias_gelu",
    "bias_gelu_back",
    "bias_gelu_impl",
    "bias_swiglu",
    "bias_swiglu_back",
    "bias_swiglu_impl",
    "clamped_swiglu",
    "clamped_swiglu_back",
    "clamped_weighted_swiglu",
    "clamped_weighted_swiglu_back",
    "fused_vocab_parallel_cross_entropy",
    "geglu",
    "geglu_back",
    "get_bias_dropout_add",
    "make_viewless_tensor",
    "quick_geglu",
    "quick_geglu_back",
    "quick_gelu",
    "safely_set_viewless_tensor_data",
    "swiglu",
    "swiglu_back",
    "vocab_parallel_cross_entropy",
    "weighted_bias_quick_geglu",
    "weighted_bias_quick_geglu_back",
    "weighted_bias_quick_geglu_impl",
    "weighted_bias_swiglu_impl",
    "weighted_quick_geglu",
    "weighted_quick_geglu_back",
    "weighted_squared_relu",
    "weighted_squared_relu_back",
    "weighted_squared_relu_impl",
    "weighted_swiglu",
    "weighted_swiglu_back",
]


def bias_gelu(bias: Tensor, y: Tensor) -> Tensor:
    """tanh-GELU of y + bias. The bias comes first, as in the original.

    `bias` may have any shape that broadcasts with y's. Errors and dtypes are those of
    `bridge.torch.bias_gelu`, which also has other forms of GELU.

    Args:
      bias: of any shape that broadcasts with that of y.
      y: of any shape and floating-point dtype.
    """
    return broadcast_bias_gelu(y, bias)


def bias_gelu_back(g: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """Returns g·gelu′(y + bias) in full size: the gradient of y, and of bias before the sum.

    Args:
      g: of the shape of the result, its gradient.
      bias: of any shape that broadcasts with that of y.
      y: of any shape and floating-point dtype.
    """
    return broadcast_bias_gelu_back(g, y, bias)


class GeLUFunction(Function, metaclass=DropIn):
    """`GeLUFunction.apply(input, bias)`: tanh-GELU of input + bias, differentiable."""

    @staticmethod
    def apply(input: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        """Returns gelu(input + bias); `bias` may have any shape that broadcasts.

        Args:
          input: of any shape and floating-point dtype.
          bias: of any shape that broadcasts.
        """
        return broadcast_bias_gelu(input, bias)

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, bias)
        return broadcast_bias_gelu(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns the gradient of input for both; autograd sums it to the shape of bias."""
        input, bias = ctx.saved_tensors
        full = broadcast_bias_gelu_back(grad_output, input, bias)
        return full, None if bias is None else full


bias_gelu_impl = GeLUFunction.apply


def bias_dropout_add_fused_train(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float
) -> Tensor:
    """residual + dropout(x + bias), for the pair (x, bias), of the residual's dtype.

    Bias and residual may have any shapes that broadcast; bias may be None. A bias `[h]` takes one
    pass over memory; do not expand it to the shape of x, which needs another pass. The mask comes
    from the device's generator, as in `torch.nn.functional.dropout`; the host does not wait.

    Args:
      x_with_bias: the pair (x, bias) of floating-point tensors; bias may be None.
      residual: of any shape that broadcasts with that of x.
      prob: the probability of an element to become 0.

    Raises:
      TypeError, ValueError: as `bridge.torch.bias_dropout_add`; prob is outside [0, 1].
    """
    return _bias_dropout_add_func(x_with_bias, residual, prob, True)


def bias_dropout_add_fused_inference(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float
) -> Tensor:
    """residual + x + bias, for the pair (x, bias), written into x; `prob` is only checked.

    As in the original, x holds the result and is returned if none of the three requires a gradient
    and x has the residual's dtype. A new tensor is returned, and x does not change, also

    - if x is a view, or shares memory with bias or residual, or its elements share memory;
    - if the result is larger than x;
    - with tangents of forward mode, inside the transforms of `torch.func`, and if torch forbids
      writing x (an inference tensor outside of inference mode).

    In inference mode torch does not know views: there x is written even if it is a view.

    Args:
      x_with_bias: the pair (x, bias) of floating-point tensors; bias may be None.
      residual: of any shape that broadcasts with that of x.
      prob: a probability, which is only checked.
    """
    return _bias_dropout_add_func(x_with_bias, residual, prob, False)


def get_bias_dropout_add(
    training: bool, fused: bool
) -> Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]:
    """`bias_dropout_add_fused_train` or `…_inference`; the fused one for `fused=False` too.

    Args:
      training: True for the function with dropout.
      fused: of no effect.
    """
    return bias_dropout_add_fused_train if training else bias_dropout_add_fused_inference


def bias_dropout_add_unfused(
    training: bool,
) -> Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]:
    """Returns `get_bias_dropout_add(training, fused=False)`.

    Args:
      training: True for the function with dropout.
    """
    return get_bias_dropout_add(training, False)


def _bias_dropout_add_func(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float, training: bool
) -> Tensor:
    """The code that both functions above share, under the name that the original's tests use."""
    if not isinstance(x_with_bias, (tuple, list)) or len(x_with_bias) != 2:
        raise TypeError(
            f"bias_dropout_add: x_with_bias has type {type(x_with_bias).__name__}, expected a pair "
            "(x, bias)"
        )
    x, bias = x_with_bias
    if training:
        return broadcast_bias_dropout_add(x, bias, residual, p=prob, training=True)
    return broadcast_bias_add_(x, bias, residual, p=prob)
