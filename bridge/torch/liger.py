"""Liger-Kernel's norms, gated units, rotary embeddings, softmax, cross-entropy and chunked losses.

Change the import, nothing else.

Originals: `liger_kernel/transformers` and its `functional.py`, `liger_kernel/megatron` without its
patches, the autograd Functions of `liger_kernel/ops`, and `liger_kernel/chunked_loss` without the
cosine similarity; import all of them from here. Of the other losses, only the cross-entropies are
here.

Everything has derivatives of any order, in reverse and forward mode, torch.func and torch.compile
(except experts, whose sizes depend on values). 16-bit tensors are rounded once, apart from matrix
products. Everything runs on the CPU too. Differences:

- Nothing is overwritten. The original stores gradients in its arguments, or with `in_place` in the
  incoming gradient, so that a second backward pass is wrong or raises; here gradients get new
  memory. `in_place` and `row_mode` change nothing.
- `casting_mode`: "llama" rounds X·r to 16 bits before the weight, "none" rounds every step. Here
  intermediate values are not rounded in any mode, as in "gemma".
- silu(a), gelu(a) and the value that `down_multiplier` multiplies are not rounded either.
- `LigerLayerNorm` keeps mean and r, two numbers for each row, in float32; the original in 16 bits.
- `eps` must be positive.
- `LigerGroupNorm` also takes `[n, c]`.
- Rotary embeddings return new tensors; the original writes into q and k if their layout allows it.
  Tables get gradients if they require them. `unsqueeze_dim` is respected. Odd head sizes are
  refused; the original leaves their last column as it is. `position_ids` is not used, as in the
  original. If Llama 4 has a table for each sample, each sample uses its own; in the original all
  use the first.
- A loss of 16-bit logits is float32. Class weights are refused; the linear loss also refuses
  `use_token_scaling` and further results. `z_loss` has its gradient; in the original it has none.
  Gradients of a 16-bit weight are summed in float32, whatever `accum_dtype` is. For logits that are
  split over ranks, label smoothing is over the whole vocabulary, and "partition" is refused.
- Chunked losses: the backward pass computes the gradients, which have derivatives again.
  `compiled` and `chunk_size` change nothing: bridge chooses the rows of a chunk. The original's
  sums over desirable and undesirable answers hold for a `chunk_size` of 1; here for any.
- Tiled MLPs: autograd computes the gradients of parameters; the original adds to their `grad`. fn
  draws the same random numbers in the backward pass.
- DTensors stay sharded; the RMS norm of the original gathers them.
"""

from __future__ import annotations

from bridge.torch._drop_ins.liger.chunked_distillation import LigerFusedLinearJSDFunction
from bridge.torch._drop_ins.liger.chunked_modules import (
    LigerFusedLinearCPOLoss,
    LigerFusedLinearDPOLoss,
    LigerFusedLinearGRPOLoss,
    LigerFusedLinearJSDLoss,
    LigerFusedLinearKTOLoss,
    LigerFusedLinearORPOLoss,
    LigerFusedLinearSimPOLoss,
)
from bridge.torch._drop_ins.liger.chunked_policy import LigerFusedLinearGRPOFunction
from bridge.torch._drop_ins.liger.chunked_preferences import (
    LigerFusedLinearCPOFunction,
    LigerFusedLinearDPOFunction,
    LigerFusedLinearKTOFunction,
    LigerFusedLinearORPOFunction,
    LigerFusedLinearSimPOFunction,
)
from bridge.torch._drop_ins.liger.cross_entropies import (
    CrossEntropyOutput,
    LigerCrossEntropyFunction,
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyFunction,
    LigerFusedLinearCrossEntropyLoss,
    liger_cross_entropy,
    liger_fused_linear_cross_entropy,
)
from bridge.torch._drop_ins.liger.feed_forward import (
    LigerExperts,
    LigerFalconH1MLP,
    LigerFusedMoEFunction,
    LigerMLP,
    LigerMLPFunction,
    LigerTiledGEGLUMLP,
    LigerTiledMLPFunction,
    LigerTiledSwiGLUMLP,
    apply_tiled_mlp,
)
from bridge.torch._drop_ins.liger.gated_units import (
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
from bridge.torch._drop_ins.liger.megatron_modules import (
    LigerMegatronCrossEntropy,
    LigerMegatronFusedLinearCrossEntropy,
    LigerMegatronFusedLinearCrossEntropyFunction,
    LigerMegatronRMSNorm,
    LigerMegatronRopeFunction,
    LigerMegatronSwiGLU,
    liger_apply_rotary_pos_emb_bshd,
)
from bridge.torch._drop_ins.liger.modulated_norm import (
    LigerModulatedRMSNorm,
    LigerModulatedRMSNormFunction,
    liger_modulated_rms_norm,
)
from bridge.torch._drop_ins.liger.norm_classes import (
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
from bridge.torch._drop_ins.liger.other_norms import (
    LigerDyT,
    LigerDyTFunction,
    LigerGroupNorm,
    LigerGroupNormFunction,
    LigerPolyNorm,
    LigerPolyNormFunction,
    liger_dyt,
    liger_group_norm,
    liger_poly_norm,
)
from bridge.torch._drop_ins.liger.rotary_classes import (
    LigerLlama4RopeFunction,
    LigerQwen2VLMRopeFunction,
    LigerRopeFunction,
    liger_llama4_text_rotary_pos_emb,
    liger_llama4_vision_rotary_pos_emb,
    liger_multimodal_rotary_pos_emb,
    liger_qwen2vl_mrope,
    liger_rope,
    liger_rotary_pos_emb,
    liger_rotary_pos_emb_vision,
)
from bridge.torch._drop_ins.liger.softmax_class import (
    LigerSoftmax,
    LigerSoftmaxFunction,
    liger_softmax,
)
from bridge.torch._drop_ins.liger.split_losses import (
    LigerVocabParallelCEFunction,
    LigerVocabParallelCrossEntropy,
)

__all__ = [
    "CrossEntropyOutput",
    "LigerBlockSparseTop2MLP",
    "LigerCrossEntropyFunction",
    "LigerCrossEntropyLoss",
    "LigerDyT",
    "LigerDyTFunction",
    "LigerExperts",
    "LigerFalconH1MLP",
    "LigerFalconH1SwiGLUMLP",
    "LigerFusedAddRMSNorm",
    "LigerFusedAddRMSNormFunction",
    "LigerFusedGateUpSiLUMulFunction",
    "LigerFusedLinearCPOFunction",
    "LigerFusedLinearCPOLoss",
    "LigerFusedLinearCrossEntropyFunction",
    "LigerFusedLinearCrossEntropyLoss",
    "LigerFusedLinearDPOFunction",
    "LigerFusedLinearDPOLoss",
    "LigerFusedLinearGRPOFunction",
    "LigerFusedLinearGRPOLoss",
    "LigerFusedLinearJSDFunction",
    "LigerFusedLinearJSDLoss",
    "LigerFusedLinearKTOFunction",
    "LigerFusedLinearKTOLoss",
    "LigerFusedLinearORPOFunction",
    "LigerFusedLinearORPOLoss",
    "LigerFusedLinearSimPOFunction",
    "LigerFusedLinearSimPOLoss",
    "LigerFusedMoEFunction",
    "LigerGEGLUMLP",
    "LigerGEGLUMLPForGemma4",
    "LigerGELUMulFunction",
    "LigerGroupNorm",
    "LigerGroupNormFunction",
    "LigerHunyuanV1SwiGLUMLP",
    "LigerLayerNorm",
    "LigerLayerNormFunction",
    "LigerLlama4RopeFunction",
    "LigerMLP",
    "LigerMLPFunction",
    "LigerMegatronCrossEntropy",
    "LigerMegatronFusedLinearCrossEntropy",
    "LigerMegatronFusedLinearCrossEntropyFunction",
    "LigerMegatronRMSNorm",
    "LigerMegatronRopeFunction",
    "LigerMegatronSwiGLU",
    "LigerModulatedRMSNorm",
    "LigerModulatedRMSNormFunction",
    "LigerPhi3SwiGLUMLP",
    "LigerPolyNorm",
    "LigerPolyNormFunction",
    "LigerQwen2VLMRopeFunction",
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
    "LigerSoftmax",
    "LigerSoftmaxFunction",
    "LigerSwiGLUMLP",
    "LigerTiledGEGLUMLP",
    "LigerTiledMLPFunction",
    "LigerTiledSwiGLUMLP",
    "LigerVocabParallelCEFunction",
    "LigerVocabParallelCrossEntropy",
    "apply_tiled_mlp",
    "liger_apply_rotary_pos_emb_bshd",
    "liger_cross_entropy",
    "liger_dyt",
    "liger_fused_add_rms_norm",
    "liger_fused_linear_cpo",
    "liger_fused_linear_cross_entropy",
    "liger_fused_linear_dpo",
    "liger_fused_linear_grpo",
    "liger_fused_linear_jsd",
    "liger_fused_linear_kto",
    "liger_fused_linear_orpo",
    "liger_fused_linear_simpo",
    "liger_geglu",
    "liger_group_norm",
    "liger_layer_norm",
    "liger_llama4_text_rotary_pos_emb",
    "liger_llama4_vision_rotary_pos_emb",
    "liger_modulated_rms_norm",
    "liger_multimodal_rotary_pos_emb",
    "liger_poly_norm",
    "liger_qwen2vl_mrope",
    "liger_relu_squared",
    "liger_rms_norm",
    "liger_rope",
    "liger_rotary_pos_emb",
    "liger_rotary_pos_emb_vision",
    "liger_softmax",
    "liger_swiglu",
]

liger_fused_linear_cpo = LigerFusedLinearCPOFunction.apply
liger_fused_linear_dpo = LigerFusedLinearDPOFunction.apply
liger_fused_linear_grpo = LigerFusedLinearGRPOFunction.apply
liger_fused_linear_jsd = LigerFusedLinearJSDFunction.apply
liger_fused_linear_kto = LigerFusedLinearKTOFunction.apply
liger_fused_linear_orpo = LigerFusedLinearORPOFunction.apply
liger_fused_linear_simpo = LigerFusedLinearSimPOFunction.apply
