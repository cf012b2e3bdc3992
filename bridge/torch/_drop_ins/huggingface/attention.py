"""Attention in the form that models of transformers call, and its registration with them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import Tensor, nn

from bridge.replaced import Replaced
from bridge.torch._ops.attention import attention

NAME = "bridge"
_IMPLEMENTATION = "_attn_implementation"  # the attribute that layers of transformers read
_BIASED = "its layers add a bias of positions to the scores, which bridge's attention does not have"
_UNSUPPORTED = "its code does not call the attention functions that transformers has registered"


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`bridge.torch.attention` as an attention function of transformers.

    The arguments are those of `sdpa_attention_forward`, with `softcap` and `s_aux`, one sink for
    each head, besides. The mask of transformers is True where a query sees a key. A query that sees
    no key gets 0.

    Args:
      module: the layer, whose attribute `is_causal` counts if the argument is None.
      query: `[batch, heads, queries, d]`.
      key, value: `[batch, key heads, keys, d]`.
      attention_mask: bool, broadcasts to `[batch, heads, queries, keys]`; None for the causal rule,
        or for every key if there is one query.
      dropout: only 0.
      scaling: the factor of the scores; None for 1/√d.
      is_causal: False for a query that sees every key, where there is no mask.
      softcap: the bound of the scores, or None.
      s_aux: `[heads]`, the sinks, or None.
      position_bias: only None.
      others: `output_attentions` only False; the rest has no effect.

    Returns:
      `[batch, queries, heads, d]`, and None for the probabilities.

    Raises:
      TypeError: a mask that is added to the scores.
      ValueError: dropout of probabilities, a bias of positions, or `output_attentions`.
    """
    if dropout:
        raise ValueError(
            f"attention: dropout is {dropout}, expected 0: layers take it from the config when "
            "they are built, so build the model with a config that has no dropout of "
            "probabilities (attention_dropout, attention_probs_dropout_prob, attn_pdrop)"
        )
    if position_bias is not None:
        raise ValueError("attention: position_bias is given, expected None: scores have no bias")
    if others.get("output_attentions"):
        raise ValueError(
            "attention: output_attentions is True, expected False: the probabilities are not stored"
        )
    if attention_mask is not None and attention_mask.is_floating_point():
        raise TypeError(
            f"attention: attention_mask has dtype {str(attention_mask.dtype)[6:]}, expected bool, "
            "True where a query sees a key: scores have no bias"
        )
    queries = query.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = queries > 1 and attention_mask is None and bool(is_causal)
    if causal and key.shape[2] > queries:  # the first call with an empty cache of fixed size
        key, value = key[:, :, :queries], value[:, :, :queries]
    mask = None if attention_mask is None else ~attention_mask.bool()
    y = attention(
        query, key, value, mask=mask, causal=causal, scale=scaling, sink=s_aux, softcap=softcap
    )
    return y.transpose(1, 2).contiguous(), None


def register() -> str:
    """Registers the function with transformers, and the form of its masks; returns the name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def use_attention(model: nn.Module, replaced: Replaced) -> None:
    """Makes the models of transformers in `model` call the function, where their code allows it."""
    models = _models_in(model)
    if not models:
        replaced.left["attention"] = "no part is a model of transformers"
        return
    own = register()
    before = {name: _implementation_of(part) for name, part in models.items()}
    for name, part in models.items():
        what = f"{name or type(part).__name__}.attention"
        if before[name] == own:
            replaced.before[what] = "attention"
            continue
        if any(_adds_position_bias(layer) for layer in part.modules()):
            replaced.left[what] = _BIASED
            continue
        part.set_attn_implementation(own)
        if _implementation_of(part) == own:
            replaced.done[what] = "attention"
            replaced._undo.append(functools.partial(part.set_attn_implementation, before[name]))
        else:  # transformers has logged a warning
            replaced.left[what] = _UNSUPPORTED


def _adds_position_bias(layer: nn.Module) -> bool:
    """Returns True if a layer calls the attention function with a bias of positions, as T5's do."""
    code = getattr(inspect.unwrap(type(layer).forward), "__code__", None)
    names = () if code is None else code.co_varnames
    return "attention_interface" in names and any("position_bias" in name for name in names)


def _implementation_of(model: Any) -> Any:
    return getattr(model.config, _IMPLEMENTATION)


def _models_in(model: nn.Module) -> dict[str, Any]:
    """Returns the models of transformers by name, one for each config."""
    found: dict[str, Any] = {}
    configs: set[int] = set()
    for name, part in model.named_modules():
        config = getattr(part, "config", None)
        if hasattr(part, "set_attn_implementation") and id(config) not in configs:
            configs.add(id(config))
            found[name] = part
    return found
