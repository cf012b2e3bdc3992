"""apex's norms, rotary embeddings, softmax and cross-entropy: change the import, nothing else.

Originals: `apex/normalization/fused_layer_norm.py`, in `apex/transformer/functional`
`fused_softmax.py` and `fused_rope.py`, and in `apex/contrib` `layer_norm/layer_norm.py` and
`xentropy/softmax_xentropy.py`. Differences of the norms:

- There is one path, also on the CPU, under torch.compile and in a trace. The original composes
  torch's own operations there, with other dtypes.
- Derivatives of any order, in reverse and forward mode, and torch.func.
- `memory_efficient` is only an attribute and changes nothing. The original recomputes the input
  from the rounded result, so that gradients contain that rounding, and are wrong where a weight is
  nearer to 0 than eps. Here the residuals are the input and one or two numbers for each row.
- 16-bit tensors are computed in float32 and rounded once. Weights may have any dtype; the original
  needs the input's dtype, except in its `mixed_dtype_` functions.
- `eps` must be positive.
- `manual_rms_norm` is a separate path in the original. It has the original's dtypes, and does not
  round intermediate values.
- An unknown keyword of MixedFusedLayerNorm and MixedFusedRMSNorm raises TypeError; the original
  ignores it.

The cross-entropy: `SoftmaxCrossEntropyLoss` accepts any `padding_idx`, and computes losses in
float32 and rounds them once.

The rotary embeddings have gradients towards angles and tables, which may have any floating dtype.
`fused_apply_rotary_pos_emb_thd` copies tokens that belong to no sequence.

For the softmax see `bridge.torch.megatron`. `FusedScaleMaskSoftmax` here raises RuntimeError, as in
apex; in Megatron-LM it raises AssertionError.
"""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import warnings
from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.apex_norms import (
    FastLayerNormFN,
    FusedLayerNormAffineFunction,
    FusedLayerNormAffineMixedDtypesFunction,
    FusedLayerNormFunction,
    FusedRMSNormAffineFunction,
    FusedRMSNormAffineMixedDtypesFunction,
    FusedRMSNormFunction,
    Shape,
    fused_layer_norm,
    fused_layer_norm_affine,
    fused_rms_norm,
    fused_rms_norm_affine,
    manual_rms_norm,
    mixed_dtype_fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine,
)
from bridge.torch._drop_ins.apex_rotary import (
    FusedRoPE2DFunc,
    FusedRoPECachedFunc,
    FusedRoPEFunc,
    FusedRoPETHDFunc,
    fused_apply_rotary_pos_emb,
    fused_apply_rotary_pos_emb_2d,
    fused_apply_rotary_pos_emb_cached,
    fused_apply_rotary_pos_emb_thd,
)
from bridge.torch._drop_ins.losses import SoftmaxCrossEntropyLoss
from bridge.torch._drop_ins.norms_over_dimensions import sizes_of
from bridge.torch._drop_ins.scale_mask_softmax import (
    FusedScaleMaskSoftmax as _FusedScaleMaskSoftmax,
)
from bridge.torch._drop_ins.scale_mask_softmax import (
    GenericScaledMaskedSoftmax,
    ScaledMaskedSoftmax,
    ScaledSoftmax,
    ScaledUpperTriangMaskedSoftmax,
)
from bridge.torch._drop_ins.sizes import check_sizes

__all__ = [
    "FastLayerNorm",
    "FastLayerNormFN",
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormAffineMixedDtypesFunction",
    "FusedLayerNormFunction",
    "FusedRMSNorm",
    "FusedRMSNormAffineFunction",
    "FusedRMSNormAffineMixedDtypesFunction",
    "FusedRMSNormFunction",
    "FusedRoPE2DFunc",
    "FusedRoPECachedFunc",
    "FusedRoPEFunc",
    "FusedRoPETHDFunc",
    "FusedScaleMaskSoftmax",
    "GenericScaledMaskedSoftmax",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "ScaledMaskedSoftmax",
    "ScaledSoftmax",
    "ScaledUpperTriangMaskedSoftmax",
    "SoftmaxCrossEntropyLoss",
    "fused_apply_rotary_pos_emb",
    "fused_apply_rotary_pos_emb_2d",
    "fused_apply_rotary_pos_emb_cached",
    "fused_apply_rotary_pos_emb_thd",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "manual_rms_norm",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
]


class _FusedNorm(torch.nn.Module):
    """The base of the norms: parameters of normalized_shape, initially 1 and 0."""

    _parameters_named: tuple[str, ...] = ("weight",)
    weight: Any

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(self, normalized_shape=(sizes := sizes_of(normalized_shape)))
        self.normalized_shape = torch.Size(sizes)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in self._parameters_named:
            empty = torch.empty(self.normalized_shape) if elementwise_affine else None
            parameter = None if empty is None else torch.nn.Parameter(empty)
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        for name, parameter in self.named_parameters():
            torch.nn.init.constant_(parameter, 1.0 if name == "weight" else 0.0)

    def extra_repr(self) -> str:
        names = ("eps", "elementwise_affine")
        options = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{self.normalized_shape}, {options}"


class FusedLayerNorm(_FusedNorm):
    """Layer norm over the trailing dimensions of shape normalized_shape, in the input's dtype.

    Args:
        normalized_shape: the size of the last dimension, or the sizes of several.
        eps: a positive number.
        elementwise_affine: if true, the module has `weight` and `bias`, of that shape.
        memory_efficient: only an attribute; it changes nothing.
    """

    _parameters_named = ("weight", "bias")
    bias: Any

    def forward(self, input: Tensor) -> Tensor:
        """Returns `fused_layer_norm_affine`, or `fused_layer_norm` without parameters."""
        if self.weight is None or self.bias is None:
            return fused_layer_norm(input, self.normalized_shape, self.eps)
        return fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )


class FusedRMSNorm(_FusedNorm):
    """RMS norm over the trailing dimensions of shape normalized_shape, in the input's dtype.

    Args:
      normalized_shape, eps, memory_efficient: as for `FusedLayerNorm`.
        elementwise_affine: if true, the module has a `weight`, of that shape.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Returns `fused_rms_norm_affine`, or `fused_rms_norm` without a weight."""
        if self.weight is None:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class _Mixed(_FusedNorm):
    """A norm that always has parameters; the result has their dtype."""

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        for keyword in kwargs.keys() - {"elementwise_affine"}:
            raise TypeError(f"{name}: there is no argument {keyword!r}")
        if kwargs:
            warnings.warn(f"{name} takes no elementwise_affine", stacklevel=2)
            if not kwargs["elementwise_affine"]:
                raise RuntimeError(f"{name}: elementwise_affine is False, expected True")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """`FusedLayerNorm` that always has parameters; the result has their dtype.

    Raises:
      RuntimeError: `elementwise_affine` is false; if it is true, there is a warning.
      TypeError: an unknown keyword.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Returns `mixed_dtype_fused_layer_norm_affine` with the module's parameters."""
        return mixed_dtype_fused_layer_norm_affine(
            input,
            self.weight,
            self.bias,
            self.normalized_shape,
            self.eps,
        )


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """`FusedRMSNorm` that always has a weight; the result has its dtype.

    Raises:
      RuntimeError, TypeError: as `MixedFusedLayerNorm`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Returns `mixed_dtype_fused_rms_norm_affine` with the module's weight."""
        return mixed_dtype_fused_rms_norm_affine(
            input,
            self.weight,
            self.normalized_shape,
            self.eps,
        )


class FastLayerNorm(torch.nn.Module):
    """Layer norm over the last dimension, in the weight's dtype, of `apex/contrib/layer_norm`.

    Args:
        hidden_size: d, the size of the last dimension, any.
        eps: a positive number; the attribute is `epsilon`.
        memory_efficient: only an attribute; it changes nothing.

      Attributes:
        weight, bias: parameters `[hidden_size]`, initially ones and zeros.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
        super().__init__()
        check_sizes(self, hidden_size=hidden_size)
        self.epsilon, self.memory_efficient = eps, memory_efficient
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))
        self.bias = torch.nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        torch.nn.init.ones_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns `mixed_dtype_fused_layer_norm_affine` with the module's parameters."""
        weight, bias = self.weight, self.bias
        return mixed_dtype_fused_layer_norm_affine(x, weight, bias, weight.shape, self.epsilon)


class FusedScaleMaskSoftmax(_FusedScaleMaskSoftmax):
    """`bridge.torch.megatron.FusedScaleMaskSoftmax` with the errors of apex.

    Raises:
      RuntimeError: both 16-bit flags, or a scale without softmax_in_fp32.
    """

    _refusal = RuntimeError
