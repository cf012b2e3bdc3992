"""Models of Hugging Face's transformers on bridge: whole models, or their layers by name.

`replace(model)` replaces the computation of layers in any model. `write_kernels(path)` writes the
layers as a local repository for `kernels.kernelize`. For modeling code of your own, import the
names below instead of those of `transformers`; nothing else changes.

Originals: `transformers/models/*/modeling_*.py`, `transformers/activations.py` and
`transformers/loss/loss_utils.py`, of transformers 5. State dicts are the same. Everything has
derivatives of any order in reverse and forward mode, torch.func and torch.compile. Differences:

- Results of 16 bits are rounded once. The original rounds x·r before the weight (`LlamaRMSNorm`),
  act(gate) before the product with up, each product of the rotary embedding, and every step of
  "gelu_new".
- Losses of 16-bit logits are computed in float32 without a float32 copy of the logits, which the
  original makes. If all labels are ignored, the loss is 0; the original gives NaN.
- `eps` must be positive.
- Rotary embeddings read only the first half of the doubled tables.
"""

from __future__ import annotations

from bridge.replaced import Replaced
from bridge.torch._drop_ins.huggingface.attention import attention_forward
from bridge.torch._drop_ins.huggingface.hub_repository import write_kernels
from bridge.torch._drop_ins.huggingface.layers import (
    FastGELUActivation,
    ForCausalLMLoss,
    ForMaskedLMLoss,
    GELUActivation,
    GELUTanh,
    GemmaRMSNorm,
    LlamaMLP,
    LlamaRMSNorm,
    NewGELUActivation,
    QuickGELUActivation,
    ReLUSquaredActivation,
    apply_rotary_pos_emb,
    fixed_cross_entropy,
)
from bridge.torch._drop_ins.huggingface.models import replace

__all__ = [
    "FastGELUActivation",
    "ForCausalLMLoss",
    "ForMaskedLMLoss",
    "GELUActivation",
    "GELUTanh",
    "GemmaRMSNorm",
    "LlamaMLP",
    "LlamaRMSNorm",
    "NewGELUActivation",
    "QuickGELUActivation",
    "ReLUSquaredActivation",
    "Replaced",
    "apply_rotary_pos_emb",
    "attention_forward",
    "fixed_cross_entropy",
    "replace",
    "write_kernels",
]
