"""The functions of `apex/normalization/fused_layer_norm.py` and `apex/contrib/layer_norm`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.autocast import cast
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.norms_over_dimensions import layer_norm_over, rms_norm_over

Shape = int | Sequence[int]


class FusedLayerNormAffineFunction(Function, metaclass=DropIn):
    """`FusedLayerNormAffineFunction.apply(input, weight, bias, normalized_shape, eps)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """Layer norm in the dtype of input; autocast does not change it."""
        return layer_norm_over(normalized_shape, input, weight, bias, eps).to(input.dtype)


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """`FusedLayerNormAffineFunction` with the result in the dtype of the weight."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """Layer norm in the dtype of weight; autocast does not change it."""
        return layer_norm_over(normalized_shape, input, weight, bias, eps).to(weight.dtype)


class FusedLayerNormFunction(Function, metaclass=DropIn):
    """`FusedLayerNormFunction.apply(input, normalized_shape, eps)`: without parameters."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """Layer norm without weight and bias; autocast does not change it."""
        return layer_norm_over(normalized_shape, input, None, None, eps)


class FusedRMSNormAffineFunction(Function, metaclass=DropIn):
    """`FusedRMSNormAffineFunction.apply(input, weight, normalized_shape, eps)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weight: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """RMS norm in the dtype of input; autocast does not change it."""
        return rms_norm_over(normalized_shape, input, weight, eps).to(input.dtype)


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """`FusedRMSNormAffineFunction` with the result in the dtype of the weight."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        weight: Tensor,
        normalized_shape: Shape,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        """RMS norm in the dtype of weight; autocast does not change it."""
        return rms_norm_over(normalized_shape, input, weight, eps).to(weight.dtype)


class FusedRMSNormFunction(Function, metaclass=DropIn):
    """`FusedRMSNormFunction.apply(input, normalized_shape, eps)`: without a weight."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor, normalized_shape: Shape, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        """RMS norm without a weight; autocast does not change it."""
        return rms_norm_over(normalized_shape, input, None, eps)


class FastLayerNormFN(Function, metaclass=DropIn):
    """`FastLayerNormFN.apply(x, gamma, beta, epsilon)`, of `apex/contrib/layer_norm`."""

    @staticmethod
    def apply(  # type: ignore[override]
        x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, memory_efficient: bool = False
    ) -> Tensor:
        """Layer norm over trailing dimensions of gamma's shape, in the dtype of gamma."""
        return FusedLayerNormAffineMixedDtypesFunction.apply(x, gamma, beta, gamma.shape, epsilon)


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """Layer norm over the trailing dimensions of shape normalized_shape, in the dtype of input.

    Under autocast all tensors except float64 ones are converted to its dtype first, as in the
    original. `memory_efficient` changes nothing.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      weight, bias: of shape normalized_shape, of any floating-point dtypes.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.

    Raises:
      TypeError, ValueError: as `bridge.torch.layer_norm`; a shape that is not normalized_shape.
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedLayerNormAffineFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def fused_layer_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """`fused_layer_norm_affine` without weight and bias.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedLayerNormFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """`fused_layer_norm_affine` in the dtype of weight.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      weight, bias: of shape normalized_shape, of any floating-point dtypes.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.
    """
    if is_overridden(given := (input, weight, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedLayerNormAffineMixedDtypesFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """RMS norm over the trailing dimensions of shape normalized_shape, in the dtype of input.

    Under autocast all tensors except float64 ones are converted to its dtype first, as in the
    original. `memory_efficient` changes nothing.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      weight: of shape normalized_shape, of any floating-point dtype.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.

    Raises:
      TypeError, ValueError: as `bridge.torch.rms_norm`; a shape that is not normalized_shape.
    """
    if is_overridden(given := (input, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedRMSNormAffineFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def fused_rms_norm(
    input: Tensor, normalized_shape: Shape, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """`fused_rms_norm_affine` without a weight.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.
    """
    if is_overridden(given := (input,)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedRMSNormFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Shape,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """`fused_rms_norm_affine` in the dtype of weight.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      weight: of shape normalized_shape, of any floating-point dtype.
      normalized_shape: the size of the last dimension, or the sizes of several.
      eps: a positive number.
      memory_efficient: of no effect.
    """
    if is_overridden(given := (input, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    return FusedRMSNormAffineMixedDtypesFunction.apply(*cast(*given), normalized_shape, eps)  # type: ignore[call-arg]


def manual_rms_norm(
    input: Tensor, normalized_shape: Shape, weight: Tensor | None, eps: float
) -> Tensor:
    """RMS norm with the dtypes of the original, which composes it of torch's operations.

    The result has the dtype of a 16-bit weight, else the promoted dtype of all tensors and float32:
    a bfloat16 input without a weight gives float32. Autocast does not change it. Intermediate
    values are not rounded; the original rounds the normalised input to a 16-bit weight's dtype.

    Args:
      input: of a floating-point dtype; its last dimensions have the shape normalized_shape.
      normalized_shape: the size of the last dimension, or the sizes of several.
      weight: of shape normalized_shape, or None.
      eps: a positive number.

    Raises:
      TypeError, ValueError: as `bridge.torch.rms_norm`; a shape that is not normalized_shape.
    """
    if is_overridden(given := (input, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    if weight is None and isinstance(input, Tensor) and input.dtype in _SHORT:
        input = input.float()
    y = rms_norm_over(normalized_shape, input, weight, eps)
    if weight is not None and (weight.dtype in _SHORT):
        y = y.to(weight.dtype)
    return y


_SHORT = (torch.float16, torch.bfloat16)
