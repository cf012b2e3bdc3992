"""Liger-Kernel's norms, gated units, rotary embeddings, softmax and cross-entropy.

Change the import, nothing else.

Originals: `liger_kernel/transformers` and its `functional.py`, what `liger_kernel/megatron` has
beside its patches, and the autograd Functions of `liger_kernel/ops`; all are imported from here. Of
the losses the cross-entropies are here.
Everything has derivatives of any order, in reverse and forward mode, torch.func and torch.compile
(but experts, whose sizes depend on values); rounds 16-bit tensors once, matrix products apart; and
runs on the CPU too. Where these differ:

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
  Each sample has its own table of Llama 4's, where there are several; there all have the first.
- A loss of 16-bit logits is float32. Class weights are refused, and of the linear loss results
  beside the loss and `use_token_scaling`. `z_loss` has its gradient, where the original has none.
  Gradients of a 16-bit weight are summed in float32, whatever `accum_dtype`. Label smoothing of
  logits that ranks share is over the whole vocabulary, and "partition" is refused there.
- Tiled MLPs: gradients of parameters are autograd's, where the original adds to their `grad`; fn
  draws the same random numbers in the backward pass.
- DTensors stay sharded, where the RMS norm of the original gathers them.
"""

from __future__ import annotations

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
from bridge.torch._drop_ins.liger_losses import (
    CrossEntropyOutput,
    LigerCrossEntropyFunction,
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyFunction,
    LigerFusedLinearCrossEntropyLoss,
    liger_cross_entropy,
    liger_fused_linear_cross_entropy,
)
from bridge.torch._drop_ins.liger_megatron import (
    LigerMegatronCrossEntropy,
    LigerMegatronFusedLinearCrossEntropy,
    LigerMegatronFusedLinearCrossEntropyFunction,
    LigerMegatronRMSNorm,
    LigerMegatronRopeFunction,
    LigerMegatronSwiGLU,
    liger_apply_rotary_pos_emb_bshd,
)
from bridge.torch._drop_ins.liger_mlps import (
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
from bridge.torch._drop_ins.liger_modulated_norm import (
    LigerModulatedRMSNorm,
    LigerModulatedRMSNormFunction,
    liger_modulated_rms_norm,
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
from bridge.torch._drop_ins.liger_rotary import (
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
from bridge.torch._drop_ins.liger_softmax import (
    LigerSoftmax,
    LigerSoftmaxFunction,
    liger_softmax,
)
from bridge.torch._drop_ins.liger_split_losses import (
    LigerVocabParallelCEFunction,
    LigerVocabParallelCrossEntropy,
)

__all__ = [
    "CrossEntropyOutput",
    "LigerBlockSparseTop2MLP",
    "LigerCrossEntropyFunction",
    "LigerCrossEntropyLoss",
    "LigerExperts",
    "LigerFalconH1MLP",
    "LigerFalconH1SwiGLUMLP",
    "LigerFusedAddRMSNorm",
    "LigerFusedAddRMSNormFunction",
    "LigerFusedGateUpSiLUMulFunction",
    "LigerFusedLinearCrossEntropyFunction",
    "LigerFusedLinearCrossEntropyLoss",
    "LigerFusedMoEFunction",
    "LigerGEGLUMLP",
    "LigerGEGLUMLPForGemma4",
    "LigerGELUMulFunction",
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
    "liger_fused_add_rms_norm",
    "liger_fused_linear_cross_entropy",
    "liger_geglu",
    "liger_layer_norm",
    "liger_llama4_text_rotary_pos_emb",
    "liger_llama4_vision_rotary_pos_emb",
    "liger_modulated_rms_norm",
    "liger_multimodal_rotary_pos_emb",
    "liger_qwen2vl_mrope",
    "liger_relu_squared",
    "liger_rms_norm",
    "liger_rope",
    "liger_rotary_pos_emb",
    "liger_rotary_pos_emb_vision",
    "liger_softmax",
    "liger_swiglu",
]
