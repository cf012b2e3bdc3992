"""`megatron/core/fusions/fused_bias_swiglu.py` of Megatron-LM."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.packed_gates import as_before, flat, gated, gated_back, refuse


def swiglu(y: Tensor) -> Tensor:
    """silu(y₁)·y₂ of the halves of the last dimension of y, as `bridge.torch.swiglu(y)`.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
    """
    return gated("swiglu", y, None, None)


def bias_swiglu(y: Tensor, bias: Tensor) -> Tensor:
    """swiglu(y + bias); `bias` broadcasts. Only a bias `[2d]` is added in the same pass.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
    """
    return gated("swiglu", y, bias, None)


def weighted_swiglu(y: Tensor, weights: Tensor) -> Tensor:
    """swiglu(y)·weights in the dtype of y; `weights` is `[..., 1]`, a number for each token.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
    """
    return gated("swiglu", y, None, weights)


def clamped_swiglu(y: Tensor, clamp_value: float) -> Tensor:
    """swiglu with y₁ clamped to at most clamp_value and y₂ to [−clamp_value, clamp_value].

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      clamp_value: a positive number.
    """
    return gated("swiglu", y, None, None, clamp_value)


def bias_clamped_swiglu(y: Tensor, bias: Tensor, clamp_value: float) -> Tensor:
    """clamped_swiglu(y + bias, clamp_value).

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
      clamp_value: a positive number.
    """
    return gated("swiglu", y, bias, None, clamp_value)


def clamped_weighted_swiglu(y: Tensor, weights: Tensor, clamp_value: float) -> Tensor:
    """clamped_swiglu(y, clamp_value)·weights in the dtype of y.

    Args:
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
      clamp_value: a positive number.
    """
    return gated("swiglu", y, None, weights, clamp_value)


def swiglu_back(g: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient of y from the gradient of swiglu(y).

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
    """
    return gated_back("swiglu", g, y, None, None)[0]


def bias_swiglu_back(g: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """Returns the gradient of y + bias, in full size, from the gradient of bias_swiglu(y, bias).

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
    """
    return gated_back("swiglu", g, y, bias, None)[0]


def weighted_swiglu_back(g: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of y and of weights `[..., 1]`, each in its dtype.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
    """
    return _of_both(g, y, weights, None)


def clamped_swiglu_back(g: Tensor, y: Tensor, clamp_value: float) -> Tensor:
    """Returns the gradient of y in its dtype; it is 0 where y was clamped.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      clamp_value: a positive number.
    """
    return gated_back("swiglu", g, y, None, None, clamp_value)[0].to(y.dtype)


def bias_clamped_swiglu_back(g: Tensor, y: Tensor, bias: Tensor, clamp_value: float) -> Tensor:
    """Returns the gradient of y + bias, in full size and in the dtype of y + bias.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      bias: of any shape that broadcasts with that of y.
      clamp_value: a positive number.
    """
    found = gated_back("swiglu", g, y, bias, None, clamp_value)[0]
    return found.to(torch.result_type(y, bias))


def clamped_weighted_swiglu_back(
    g: Tensor, y: Tensor, weights: Tensor, clamp_value: float
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of y and of weights `[..., 1]`, each in its dtype.

    Args:
      g: `[..., d]`, the gradient of the result.
      y: `[..., 2d]`, of a floating-point dtype; the gate y₁ is its first half.
      weights: `[..., 1]`, a number for each token.
      clamp_value: a positive number.
    """
    return _of_both(g, y, weights, clamp_value)


def _of_both(
    g: Tensor, y: Tensor, weights: Tensor, clamp_value: float | None
) -> tuple[Tensor, Tensor]:
    dy, dweights = gated_back("swiglu", g, y, None, weights, clamp_value)
    return dy.to(y.dtype), dweights


def _limit(clamp_value: float | None) -> float | None:
    """Returns the clamp of a Function; a number that is not positive means no clamp."""
    return clamp_value if clamp_value is not None and clamp_value > 0 else None


class BiasSwiGLUFunction(Function, metaclass=DropIn):
    """`BiasSwiGLUFunction.apply(input, bias, False, False, clamp_value)`: with a bias."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        bias: Tensor,
        fp8_input_store: bool = False,
        cpu_offload_input: bool = False,
        clamp_value: float | None = None,
    ) -> Tensor:
        """Returns `bias_swiglu`, or `bias_clamped_swiglu` for a positive clamp_value.

        Raises:
          NotImplementedError: fp8_input_store or cpu_offload_input is true.
        """
        refuse(
            "BiasSwiGLUFunction",
            fp8_input_store=fp8_input_store,
            cpu_offload_input=cpu_offload_input,
        )
        return gated("swiglu", input, bias, None, _limit(clamp_value))


class SwiGLUFunction(Function, metaclass=DropIn):
    """`SwiGLUFunction.apply(input, False, False, clamp_value)`: SwiGLU without a bias."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        fp8_input_store: bool = False,
        cpu_offload_input: bool = False,
        clamp_value: float | None = None,
    ) -> Tensor:
        """Returns `swiglu`, or `clamped_swiglu` for a positive clamp_value.

        Raises:
          NotImplementedError: fp8_input_store or cpu_offload_input is true.
        """
        refuse(
            "SwiGLUFunction", fp8_input_store=fp8_input_store, cpu_offload_input=cpu_offload_input
        )
        return gated("swiglu", input, None, None, _limit(clamp_value))


class WeightedSwiGLUFunction(Function, metaclass=DropIn):
    """`WeightedSwiGLUFunction.apply(input, weights, False, clamp_value)`: a weight per token."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weights: Tensor,
        fp8_input_store: bool = False,
        clamp_value: float | None = None,
    ) -> Tensor:
        """Returns `weighted_swiglu`, or `clamped_weighted_swiglu` for a positive clamp_value.

        Raises:
          NotImplementedError: fp8_input_store is true.
        """
        refuse("WeightedSwiGLUFunction", fp8_input_store=fp8_input_store)
        return gated("swiglu", input, None, weights, _limit(clamp_value))


def bias_swiglu_impl(
    input: Tensor,
    bias: Tensor | None,
    fp8_input_store: bool = False,
    cpu_offload_input: bool = False,
    clamp_value: float | None = None,
) -> Tensor:
    """SwiGLU of input + bias, or of input if bias is None, for any leading dimensions.

    Args:
      input: `[..., 2d]`, of a floating-point dtype; the gate is its first half.
      bias: `[2d]`, or another shape that broadcasts; or None.
      fp8_input_store, cpu_offload_input: only False.
      clamp_value: a positive number; no clamp for None and for a number that is not positive.

    Raises:
      NotImplementedError: fp8_input_store or cpu_offload_input is true.
    """
    if is_overridden((input, bias)):
        return hand_over((input, bias))  # type: ignore[no-any-return]
    stored = (fp8_input_store, cpu_offload_input, clamp_value)
    if bias is None:
        y = SwiGLUFunction.apply(flat(input), *stored)
    else:
        y = BiasSwiGLUFunction.apply(flat(input), bias, *stored)
    return as_before(y, input)


def weighted_bias_swiglu_impl(
    input: Tensor,
    bias: None,
    weights: Tensor,
    fp8_input_store: bool = False,
    clamp_value: float | None = None,
) -> Tensor:
    """SwiGLU with a weight for each token, `[tokens, 1]`, for any leading dimensions of input.

    Args:
      input: `[..., 2d]`, of a floating-point dtype; the gate is its first half.
      bias: only None.
      weights: `[tokens, 1]`.
      fp8_input_store: only False.
      clamp_value: a positive number; no clamp for None and for a number that is not positive.

    Raises:
      NotImplementedError: there is a bias, as in the original; fp8_input_store is true.
    """
    if is_overridden((input, weights)):
        return hand_over((input, weights))  # type: ignore[no-any-return]
    if bias is not None:
        raise NotImplementedError("weighted_bias_swiglu_impl: there is a bias, expected None")
    y = WeightedSwiGLUFunction.apply(flat(input), flat(weights), fp8_input_store, clamp_value)
    return as_before(y, input)
