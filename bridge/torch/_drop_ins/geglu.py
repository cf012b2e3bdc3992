"""`megatron/core/fusions/fused_bias_geglu.py` of Megatron-LM."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.packed_gates import (
    as_before,
    checked_clamp,
    flat,
    gated,
    gated_back,
    refuse,
)
from bridge.torch._ops.bias_gelu import bias_gelu


def geglu(y: Tensor) -> Tensor:
    """gelu(y₁)·y₂ of the halves of the last dimension of y, by the tanh form of GELU.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
    """
    return gated("geglu", y, None, None)


def bias_geglu(bias: Tensor, y: Tensor) -> Tensor:
    """geglu(y + bias). The bias comes first, as in the original.

    Args:
      bias: of any shape that broadcasts with that of y.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
    """
    return gated("geglu", y, bias, None)


def geglu_back(g: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient of y from the gradient of geglu(y).

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
    """
    return gated_back("geglu", g, y, None, None)[0]


def bias_geglu_back(g: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """Returns the gradient of y + bias, in full size, from the gradient of bias_geglu(bias, y).

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
    """
    return gated_back("geglu", g, y, bias, None)[0]


class BiasGeGLUFunction(Function, metaclass=DropIn):
    """`BiasGeGLUFunction.apply(input, bias)`: GEGLU of input + bias."""

    @staticmethod
    def apply(input: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        """Returns `bias_geglu(bias, input)`."""
        return gated("geglu", input, bias, None)


class GeGLUFunction(Function, metaclass=DropIn):
    """`GeGLUFunction.apply(input)`: without a bias."""

    @staticmethod
    def apply(input: Tensor) -> Tensor:  # type: ignore[override]
        """Returns `geglu(input)`."""
        return gated("geglu", input, None, None)


def bias_geglu_impl(input: Tensor, bias: Tensor | None) -> Tensor:
    """GEGLU of input + bias, or of input if bias is None, for any leading dimensions.

    Args:
      input: `[..., 2d]`, of a floating-point dtype; the gate is its first half.
      bias: `[2d]`, or another shape that broadcasts; or None.
    """
    if is_overridden((input, bias)):
        return hand_over((input, bias))  # type: ignore[no-any-return]
    if bias is None:
        return as_before(GeGLUFunction.apply(flat(input)), input)
    return as_before(BiasGeGLUFunction.apply(flat(input), bias), input)


def quick_gelu(y: Tensor) -> Tensor:
    """y·σ(1.702·y), as `bridge.torch.bias_gelu(y, approximate="sigmoid")`.

    Args:
      y: of any shape and floating-point dtype.
    """
    return bias_gelu(y, approximate="sigmoid")


def quick_geglu(y: Tensor, linear_offset: float = 0.0) -> Tensor:
    """quick_gelu(y₁)·(y₂ + linear_offset) of the halves of the last dimension of y.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      linear_offset: a finite number.
    """
    return gated("quick_geglu", y, None, None, None, _number(linear_offset))


def weighted_quick_geglu(y: Tensor, weights: Tensor, linear_offset: float = 0.0) -> Tensor:
    """quick_geglu(y, linear_offset)·weights `[..., 1]`, in the dtype of y.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
      linear_offset: a finite number.
    """
    return gated("quick_geglu", y, None, weights, None, _number(linear_offset))


def weighted_bias_quick_geglu(
    y: Tensor, bias: Tensor, weights: Tensor, linear_offset: float = 0.0
) -> Tensor:
    """quick_geglu(y + bias, linear_offset)·weights `[..., 1]`, in the dtype of y.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
      weights: `[..., 1]`, a number for each token.
      linear_offset: a finite number.
    """
    return gated("quick_geglu", y, bias, weights, None, _number(linear_offset))


def quick_geglu_back(g: Tensor, y: Tensor, linear_offset: float = 0.0) -> Tensor:
    """Returns the gradient of y from the gradient of quick_geglu(y, linear_offset).

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      linear_offset: a finite number.
    """
    return gated_back("quick_geglu", g, y, None, None, None, _number(linear_offset))[0]


def weighted_quick_geglu_back(
    g: Tensor, y: Tensor, weights: Tensor, linear_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of y and of weights `[..., 1]`, each in its dtype.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
      linear_offset: a finite number.
    """
    dy, dweights = gated_back("quick_geglu", g, y, None, weights, None, _number(linear_offset))
    return dy.to(y.dtype), dweights


def weighted_bias_quick_geglu_back(
    g: Tensor, y: Tensor, bias: Tensor, weights: Tensor, linear_offset: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of y, of bias before it is summed, and of weights `[..., 1]`.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
      weights: `[..., 1]`, a number for each token.
      linear_offset: a finite number.
    """
    dy, dweights = gated_back("quick_geglu", g, y, bias, weights, None, _number(linear_offset))
    return dy.to(y.dtype), dy.to(y.dtype), dweights


class WeightedQuickGeGLUFunction(Function, metaclass=DropIn):
    """`WeightedQuickGeGLUFunction.apply(input, weights, False, linear_offset)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weights: Tensor,
        fp8_input_store: bool = False,
        linear_offset: Tensor | float = 0.0,
    ) -> Tensor:
        """Returns `weighted_quick_geglu`; the host waits for an offset in a tensor.

        Such an offset has no gradient.

        Raises:
          NotImplementedError: fp8_input_store is true.
        """
        refuse("WeightedQuickGeGLUFunction", fp8_input_store=fp8_input_store)
        return weighted_quick_geglu(input, weights, linear_offset)  # type: ignore[arg-type]


class WeightedBiasQuickGeGLUFunction(Function, metaclass=DropIn):
    """`WeightedBiasQuickGeGLUFunction.apply(input, bias, weights, False, linear_offset)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        bias: Tensor,
        weights: Tensor,
        fp8_input_store: bool = False,
        linear_offset: Tensor | float = 0.0,
    ) -> Tensor:
        """Returns `weighted_bias_quick_geglu`; see `WeightedQuickGeGLUFunction`.

        Raises:
          NotImplementedError: fp8_input_store is true.
        """
        refuse("WeightedBiasQuickGeGLUFunction", fp8_input_store=fp8_input_store)
        return weighted_bias_quick_geglu(input, bias, weights, linear_offset)  # type: ignore[arg-type]


def weighted_bias_quick_geglu_impl(
    input: Tensor,
    bias: Tensor | None,
    weights: Tensor,
    fp8_input_store: bool = False,
    linear_offset: float = 0.0,
    clamp_value: float | None = None,
) -> Tensor:
    """Quick GEGLU with a weight for each token, `[tokens, 1]`, for any leading dimensions of input.

    As in the original, the input is clamped before the bias is added. With both, the clamp takes
    passes of its own.

    Args:
      input: `[..., 2d]`, of a floating-point dtype; the gate is its first half.
      bias: `[2d]`, or another shape that broadcasts; or None.
      weights: `[tokens, 1]`.
      fp8_input_store: only False.
      linear_offset: a finite number.
      clamp_value: a positive number, or None for no clamp.

    Raises:
      NotImplementedError: fp8_input_store is true.
      ValueError: clamp_value is not positive.
    """
    if is_overridden((input, bias, weights)):
        return hand_over((input, bias, weights))  # type: ignore[no-any-return]
    refuse("weighted_bias_quick_geglu_impl", fp8_input_store=fp8_input_store)
    check_tensors("weighted_bias_quick_geglu_impl", input=input)
    x, offset = flat(input), _number(linear_offset)
    clamp_value = checked_clamp("weighted_bias_quick_geglu_impl", clamp_value)
    if clamp_value is not None and bias is not None:
        is_up = torch.arange(x.shape[-1], device=x.device) >= x.shape[-1] // 2
        # At a bound the gradient passes, as in `gated`; Tensor.clamp does so up to torch 2.13.
        x = torch.where(x > clamp_value, clamp_value, x)
        x = torch.where(is_up & (x < -clamp_value), -clamp_value, x)
        clamp_value = None
    return as_before(gated("quick_geglu", x, bias, flat(weights), clamp_value, offset), input)


def _number(linear_offset: Tensor | float) -> float:
    """Returns linear_offset as a number; the original's Functions take it in a tensor."""
    return linear_offset.detach().item() if isinstance(linear_offset, Tensor) else linear_offset
