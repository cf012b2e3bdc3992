"""Models of Hugging Face's transformers by bridge: whole models, or their layers by name.

`replace(model)` has the layers of any model computed by bridge, where they stand. For modeling code
of one's own, the names below take the place of those of `transformers`: change the import, nothing
else.

Originals: `transformers/models/*/modeling_*.py`, `transformers/activations.py` and
`transformers/loss/loss_utils.py`, of transformers 5. State dicts are the same. Everything has
derivatives of any order in reverse and forward mode, torch.func and torch.compile. Where these
differ:

- Results of 16 bits are rounded once. The original rounds x·r before the weight (`LlamaRMSNorm`),
  act(gate) before the product with up, each product of the rotary embedding, and every step of
  "gelu_new".
- Losses of 16-bit logits are computed in float32 without a copy of the logits in float32, which the
  original makes; those of no label that counts are 0, where the original gives NaN.
- `eps` must be positive.
- Rotary embeddings read the first half of the doubled tables.
"""

from __future__ import annotations

from bridge.torch._drop_ins.huggingface_layers import (
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
from bridge.torch._drop_ins.huggingface_models import Replaced, replace

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
    "fixed_cross_entropy",
    "replace",
]
