"""The fused ops of Megatron-LM under their own names: change the import, nothing else.

Originals: `megatron/core/utils.py`, and in `megatron/core/fusions` `fused_bias_gelu.py`,
`fused_softmax.py`, `fused_bias_dropout.py`, `fused_bias_swiglu.py`, `fused_bias_geglu.py`,
`fused_weighted_squared_relu.py`, `fused_layer_norm.py` (for these four see docs/ops/gates.md and
norms.md) and `fused_cross_entropy.py`; the generic softmax is of apex. Everything here has
derivatives of any order, forward mode, torch.func and torch.compile(fullgraph=True); computes
16-bit tensors in float32 and rounds once; and takes sums in a fixed order. An autograd Function of
the original is one here, whose `apply` has all that; a subclass with a `forward` or `backward` of
its own has what torch gives to any Function.
Where these differ:

Viewless tensors
- The result shares the version counter, so that a write in place makes a backward pass raise that
  it would make wrong. The original's has its own, and the gradient is wrong without a word.

bias-GELU
- √(2/π) at full precision; the original's 0.79788456 changes the 9th digit.
- −∞ gives −0 with derivative 0, and float16 gradients stay finite for every finite input: the
  original gives NaN at −∞, and in float16 from |h| of a few hundred.
- The gradient of a bias `[d]` is summed in the kernel, in float32 and in a fixed order; the
  original gives a full-size gradient, rounded to the tensor's dtype, which autograd sums.

Softmax
- What is masked is exactly 0, and so is its gradient, whatever the scores hold there. The original
  fills with −10000, which leaks probability where real scores are near it. A row with nothing
  visible is 0 here; there that depends on the path taken.
- `scale` is not rounded to the dtype of the scores. The gradient passed in is never written.
- No limit on lengths and no divisibility, where the originals stop at 2048 to 16384 keys and want
  multiples of 4. The causal rule takes sq ≠ sk, aligned at the last query and key, where the
  original raises AssertionError.
- One path. A mask is bool or uint8 and hides where it is True, on the path that called `mask_func`
  too: a `mask_func` that does anything else than to hide is not called here. Mask, causal rule and
  window all apply at once; the original drops the mask for a window and on its fused causal path,
  the causal rule on its unfused path where there is a mask, and the window on its fused path.
- −1 in `window_size` is no limit, as elsewhere in Megatron; the original's softmax subtracts it.
- The result has the dtype of the scores; autocast does not change it (apex's version casts).
  That of `SoftmaxOne` too, where the original promotes it with the offset's.

Cross-entropy
- The losses are those of whole rows, bit for bit, however many ranks share the columns. The label
  −100 gives 0, and any other that is no column of the whole ValueError or, on a GPU, NaN: there
  both give the log of the sum, to be masked by the caller.
- Logits are never written over. Label smoothing spreads over the whole vocabulary, where the
  original takes the mean over a rank's part.

bias-dropout-add
- Another random mask than torch's for the same seed: that of `bridge.torch.bias_dropout_add`,
  drawn again for the backward pass and never stored.
- Inference writes its result into x, as the original's does, but not where that would change other
  tensors (a view, shared memory). The original does so there too, and is wrong where x and the
  residual share memory.
- The result has the residual's dtype, as in the newest original; older ones took that of x.
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
from bridge.torch._drop_ins.functions import DropIn
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
from bridge.torch._ops.viewless import (
    MakeViewlessTensor,
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
    """tanh-GELU of y + bias. Mind the order of the arguments, which is the original's.

    `bias` may have any shape that broadcasts with that of `y`. For other forms of GELU, see
    `bridge.torch.bias_gelu`, whose errors and dtypes are these.
    """
    return broadcast_bias_gelu(y, bias)


def bias_gelu_back(g: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """g·gelu′(y + bias) in full size: the gradient of y, and of the bias before it is summed."""
    return broadcast_bias_gelu_back(g, y, bias)


class GeLUFunction(Function, metaclass=DropIn):
    """`GeLUFunction.apply(input, bias)`: tanh-GELU of input + bias, differentiable."""

    @staticmethod
    def apply(input: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        """Returns gelu(input + bias); `bias` may have any shape that broadcasts."""
        return broadcast_bias_gelu(input, bias)

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, bias)
        return broadcast_bias_gelu(input, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient of input for both; that of bias is its sum, which autograd takes."""
        input, bias = ctx.saved_tensors
        full = broadcast_bias_gelu_back(grad_output, input, bias)
        return full, None if bias is None else full


bias_gelu_impl = GeLUFunction.apply


def bias_dropout_add_fused_train(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float
) -> Tensor:
    """residual + dropout(x + bias), for the pair (x, bias), of the residual's dtype.

    Bias and residual may have any shapes that broadcast, bias may be None. One pass over memory for
    a bias `[h]` (leave it so: one expanded to the shape of x is added in a pass of its own). The
    mask comes from the device's generator, as `torch.nn.functional.dropout` would draw one, without
    waiting for the device.

    Raises:
      TypeError, ValueError: as `bridge.torch.bias_dropout_add`; prob is outside [0, 1].
    """
    return _bias_dropout_add_func(x_with_bias, residual, prob, True)


def bias_dropout_add_fused_inference(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float
) -> Tensor:
    """residual + x + bias, for the pair (x, bias), written into x; `prob` is only checked.

    As in the original x holds the result, and is what is returned, where none of the three requires
    a gradient and x has the residual's dtype. A new tensor is returned, and x left as it is, also

    - where x is a view, or shares memory with bias or residual, or its elements with each other;
    - where the result is larger than x;
    - with tangents of forward mode, inside the transforms of `torch.func`, and where torch forbids
      to write x (an inference tensor outside of inference mode).

    In inference mode torch does not know views: there x is written also if it is one.
    """
    return _bias_dropout_add_func(x_with_bias, residual, prob, False)


def get_bias_dropout_add(
    training: bool, fused: bool
) -> Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]:
    """`bias_dropout_add_fused_train` or `…_inference`; the fused one for `fused=False` too."""
    return bias_dropout_add_fused_train if training else bias_dropout_add_fused_inference


def bias_dropout_add_unfused(
    training: bool,
) -> Callable[[tuple[Tensor, Tensor | None], Tensor, float], Tensor]:
    """As `get_bias_dropout_add(training, fused=False)`."""
    return get_bias_dropout_add(training, False)


def _bias_dropout_add_func(
    x_with_bias: tuple[Tensor, Tensor | None], residual: Tensor, prob: float, training: bool
) -> Tensor:
    """What the functions above have in common, under the name that tests of the original use."""
    if not isinstance(x_with_bias, (tuple, list)) or len(x_with_bias) != 2:
        raise TypeError(
            f"bias_dropout_add: x_with_bias has type {type(x_with_bias).__name__}, expected a pair "
            "(x, bias)"
        )
    x, bias = x_with_bias
    if training:
        return broadcast_bias_dropout_add(x, bias, residual, p=prob, training=True)
    return broadcast_bias_add_(x, bias, residual, p=prob)
