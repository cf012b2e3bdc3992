"""Liger-Kernel's norms, gated units, rotary embedding and cross-entropy: change the import alone.

Originals: `liger_kernel/transformers` and its `functional.py`, and the autograd Functions of
`liger_kernel/ops`; all three are imported from here. Of the losses cross-entropy is here, as a
module and as a function. Everything has derivatives of any order, in reverse and forward mode,
torch.func and torch.compile; rounds 16-bit tensors once; and runs on the CPU too. Where these
differ:

- What is computed is never written over. Where the original stores gradients in its arguments, or
  with `in_place` in the gradient that it was given, and a second backward pass is wrong or raises,
  there is new memory here. `in_place` and `row_mode` change nothing.
- `casting_mode`: "llama" rounds X·r to 16 bits before the weight, "none" every step. Here nothing
  is rounded in between, as in "gemma", whatever the mode.
- silu(a), gelu(a) and what `down_multiplier` multiplies are not rounded in between either.
- `LigerLayerNorm` keeps its mean and r, two numbers a row, in float32; there in 16 bits.
- `eps` must be positive.
- Rotary embedding gives new tensors, where the original writes into q and k if those lie so that it
  can; the tables have gradients where they want them; `unsqueeze_dim` is honoured; odd head sizes,
  whose last column the original passes on, are refused. `position_ids` is not looked at, as there.
- A loss of 16-bit logits is float32. Class weights, and results beside the loss and its part of
  z-loss, are refused. Gradients of a 16-bit weight are summed in float32, whatever `accum_dtype`.
- DTensors stay sharded, where the RMS norm of the original gathers them.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.functions import DropIn
from bridge.torch._drop_ins.liger_gates import (
    LigerBlockSparseTop2MLP,
    LigerFalconH1SwiGLUMLP,
    LigerFusedGateUpSiLUMulFunction,
    LigerGEGLUMLP,
    LigerGEGLUMLPForGemma4,
    LigerGELUMulFunction,
    LigerHunyuanV1SwiGLUMLP,
    LigerPhi3SwiGLUMLP,
    LigerQwen3MoeSwiGLUMLP,
    LigerReLUSquared,
    LigerReLUSquaredFunction,
    LigerSiLUMulFunction,
    LigerSwiGLUMLP,
    liger_geglu,
    liger_relu_squared,
    liger_swiglu,
)
from bridge.torch._drop_ins.liger_norms import (
    LigerFusedAddRMSNorm,
    LigerFusedAddRMSNormFunction,
    LigerLayerNorm,
    LigerLayerNormFunction,
    LigerRMSNorm,
    LigerRMSNormForGemma,
    LigerRMSNormForGemma2,
    LigerRMSNormForGemma3,
    LigerRMSNormForGemma4,
    LigerRMSNormForGlm4,
    LigerRMSNormForOlmo2,
    LigerRMSNormForQwen3Next,
    LigerRMSNormFunction,
    liger_fused_add_rms_norm,
    liger_layer_norm,
    liger_rms_norm,
)
from bridge.torch._drop_ins.losses import (
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyLoss,
    liger_cross_entropy,
    liger_fused_linear_cross_entropy,
)
from bridge.torch._ops.rotary import rotary

__all__ = [
    "LigerBlockSparseTop2MLP",
    "LigerCrossEntropyLoss",
    "LigerFalconH1SwiGLUMLP",
    "LigerFusedAddRMSNorm",
    "LigerFusedAddRMSNormFunction",
    "LigerFusedGateUpSiLUMulFunction",
    "LigerFusedLinearCrossEntropyLoss",
    "LigerGEGLUMLP",
    "LigerGEGLUMLPForGemma4",
    "LigerGELUMulFunction",
    "LigerHunyuanV1SwiGLUMLP",
    "LigerLayerNorm",
    "LigerLayerNormFunction",
    "LigerPhi3SwiGLUMLP",
    "LigerQwen3MoeSwiGLUMLP",
    "LigerRMSNorm",
    "LigerRMSNormForGemma",
    "LigerRMSNormForGemma2",
    "LigerRMSNormForGemma3",
    "LigerRMSNormForGemma4",
    "LigerRMSNormForGlm4",
    "LigerRMSNormForOlmo2",
    "LigerRMSNormForQwen3Next",
    "LigerRMSNormFunction",
    "LigerReLUSquared",
    "LigerReLUSquaredFunction",
    "LigerRopeFunction",
    "LigerSiLUMulFunction",
    "LigerSwiGLUMLP",
    "liger_cross_entropy",
    "liger_fused_add_rms_norm",
    "liger_fused_linear_cross_entropy",
    "liger_geglu",
    "liger_layer_norm",
    "liger_relu_squared",
    "liger_rms_norm",
    "liger_rope",
    "liger_rotary_pos_emb",
    "liger_rotary_pos_emb_vision",
    "liger_swiglu",
]


def liger_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """q and k `[batch, heads, positions, d]`, turned by `bridge.torch.rotary`, each in its dtype.

    Args:
      q, k: of any numbers of heads.
      cos, sin: `[1, positions, d]`, `[batch, positions, d]` or `[positions, d]`, doubled.
      position_ids: not looked at: the tables are for the positions that there are.
      unsqueeze_dim: the dimension of the heads: 2 for `[batch, positions, heads, d]`.

    Raises:
      TypeError, ValueError: as `bridge.torch.rotary`.
    """
    if is_overridden(given := (q, k, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("liger_rotary_pos_emb", required=4, q=q, k=k, cos=cos, sin=sin)
    heads = unsqueeze_dim if unsqueeze_dim < 0 else unsqueeze_dim - q.ndim
    cos, sin = (t.unsqueeze(heads) if t.ndim < q.ndim else t for t in (cos, sin))
    return rotary(q, cos, sin).to(q.dtype), rotary(k, cos, sin).to(k.dtype)


liger_rope = liger_rotary_pos_emb


def liger_rotary_pos_emb_vision(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for q and k `[positions, heads, d]` and tables `[positions, d]`."""
    return liger_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)


class LigerRopeFunction(Function, metaclass=DropIn):
    """`LigerRopeFunction.apply(q, k, cos, sin, position_ids, unsqueeze_dim)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor | None = None,
        unsqueeze_dim: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """As `liger_rotary_pos_emb`."""
        return liger_rotary_pos_emb(q, k, cos, sin, position_ids, unsqueeze_dim)
