"""The forms of MLPs with a gate, and of activations that are layers of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bridge.catalogue.gates import ACTIVATIONS
from bridge.torch._drop_ins.huggingface.trial import (
    Form,
    Trials,
    copied,
    has_parts,
    numbers,
    stand_in,
)
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.gates import glu, squared_relu

_PACKED = ("gate_up_proj", "down_proj")
_T5 = ("wi_0", "wi_1", "wo")
_GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), _T5, _PACKED)
_GELUS = ("GELU", "Gelu")
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _gated(
    layer: Any, x: Tensor, parts: tuple[str, ...], activation: str, dropout: str | None
) -> Tensor:
    *first, last = (getattr(layer, part) for part in parts)
    h = glu(*(part(x) for part in first), activation=activation)
    if dropout is not None:
        h = getattr(layer, dropout)(h)
    if parts == _T5:
        h = _as_weight(h, last)
    return last(h)  # type: ignore[no-any-return]


def _as_weight(h: Tensor, linear: Any) -> Tensor:
    """Converts h to the dtype of T5's last weight, which stays float32 in float16 models."""
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and weight.dtype in _FLOATING:
        return h.to(weight.dtype)
    return h


def _gelu(layer: Any, x: Tensor, approximate: str) -> Tensor:
    return bias_gelu(x, approximate=approximate)


def _squared_relu(layer: Any, x: Tensor) -> Tensor:
    return squared_relu(x)


def mlp_trials(layer: nn.Module) -> Trials | str | None:
    """Returns trials of an MLP, known by its linear layers' names, or the reason for none."""
    own = {name: p.ndim for name, p in layer.named_parameters(recurse=False)}
    if all(own.get(name) == 3 for name in _PACKED):
        return "one parameter holds the weights of all experts: expected a linear layer for each"
    children = dict(layer.named_children())
    for parts in _GATED:
        if not own and all(hasattr(children.get(part), "weight") for part in parts):
            return _trials_of(layer, parts)
    has_no_gate = not own and all(hasattr(children.get(part), "weight") for part in ("wi", "wo"))
    if has_no_gate and not any(map(activation_trials, children.values())):
        return "it has no gate, and its activation is not a form of GELU"
    return None


def _trials_of(layer: nn.Module, parts: tuple[str, ...]) -> Trials:
    wide, narrow = 12, 8
    *first, last = parts
    columns = wide * 2 if parts is _PACKED else wide
    linears = {part: nn.Linear(narrow, columns) for part in first}
    linears[last] = nn.Linear(wide, narrow)
    for seed, linear in enumerate(linears.values()):
        for parameter in linear.parameters():
            parameter.data = numbers(*parameter.shape, seed=seed)
    dropouts = [n for n, child in layer.named_children() if isinstance(child, nn.Dropout)]
    forms = [
        Form(
            f"glu, {activation}",
            _gated,
            (("parts", parts), ("activation", activation), ("dropout", dropout)),
        )
        for dropout in (None, *dropouts)
        for activation in ACTIVATIONS
    ]
    return Trials([copied(stand_in(layer, {}, linears))], narrow, forms)


def activation_trials(layer: nn.Module) -> Trials | None:
    """Returns trials of an activation without parameters, or None for another layer."""
    kind = type(layer)
    # Bloom's modeling code has a class of its own.
    if kind.__module__ != "transformers.activations" and not kind.__name__.endswith(_GELUS):
        return None
    if next(layer.parameters(), None) is not None or has_parts(layer):
        return None
    forms = [
        Form(f"bias_gelu, {approximate}", _gelu, (("approximate", approximate),))
        for approximate in ("tanh", "none", "sigmoid")
    ]
    return Trials([stand_in(layer, {})], 64, [*forms, Form("squared_relu", _squared_relu)])
