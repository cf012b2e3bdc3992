"""The forms of norms: with weight or 1 + weight, and norms with a gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bridge.torch._drop_ins.huggingface.trial import (
    COMPUTED,
    TOLERANCES,
    Form,
    Trials,
    argument_names,
    has_parts,
    is_computed,
    numbers,
    stand_in,
)
from bridge.torch._ops.gated_norms import gated_rms_norm
from bridge.torch._ops.norms import layer_norm, rms_norm

_EPS = ("variance_epsilon", "eps", "epsilon")
_NAMES = ("weight", "bias")
_SHORT = (torch.float16, torch.bfloat16)
_GATES = ("silu", "sigmoid")


def _attributes(layer: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yields the layer's weight and bias, read as its own forward reads them.

    Pruning, parametrizations and FSDP move a parameter out of `_parameters` and leave an attribute.
    """
    for name in _NAMES:
        yield getattr(layer, name) if name in names else None


def _norm(
    layer: Any, x: Tensor, op: str, eps_name: str, names: tuple[str, ...], offset: float, dtype: str
) -> Tensor:
    (weight, bias), eps = _attributes(layer, names), getattr(layer, eps_name)
    if op == "layer_norm":
        if offset and weight is not None:
            weight = weight + offset  # rounded to its dtype, as in NemotronLayerNorm1P
        y = layer_norm(x, weight, bias, eps=eps)
    else:
        y = rms_norm(x, weight, eps=eps, offset=0.0 if weight is None else offset)
    return _in_dtype(y, dtype, x, weight)


def _in_dtype(y: Tensor, dtype: str, x: Tensor, weight: Tensor | None) -> Tensor:
    """Returns y in the promoted dtype ("promoted"), in x's dtype, or in a 16-bit weight's."""
    if dtype == "x":
        return y.to(x.dtype)
    if dtype == "weight" and weight is not None and weight.dtype in _SHORT:
        return y.to(weight.dtype)
    return y


def _gated_norm(
    layer: Any,
    x: Tensor,
    gate: Tensor | None = None,
    *,
    eps_name: str,
    names: tuple[str, ...],
    group_name: str | None,
    gate_first: bool,
    activation: str,
    dtype: str,
) -> Tensor:
    (weight, _), eps = _attributes(layer, names), getattr(layer, eps_name)
    groups = 1 if group_name is None else x.shape[-1] // getattr(layer, group_name)
    if gate is not None:
        how = {"eps": eps, "activation": activation, "groups": groups}
        y = gated_rms_norm(x, gate, weight, norm_first=not gate_first, **how)
    elif groups == 1:
        y = rms_norm(x, weight, eps=eps)
    else:
        y = rms_norm(x.unflatten(-1, (groups, -1)), eps=eps).flatten(-2).to(x.dtype)
        y = y if weight is None else y * weight
    if gate_first and weight is not None:
        y = y.to(torch.promote_types(x.dtype, weight.dtype))
    return _in_dtype(y, dtype, x, weight)


def norm_trials(layer: nn.Module) -> Trials | str | None:
    """Returns trials of a layer with an eps and vectors named weight and bias, else None."""
    parameters = dict(layer.named_parameters(recurse=False))
    eps_names = [n for n in _EPS if isinstance(getattr(layer, n, None), float)]
    if not eps_names:
        return None
    if any(is_computed(layer, name) for name in _NAMES):
        return COMPUTED
    if has_parts(layer) or not parameters.keys() <= set(_NAMES):
        return None
    if any(p.ndim != 1 for p in parameters.values()):
        return None
    size = parameters["weight"].numel() if "weight" in parameters else 16
    size = (getattr(layer, "normalized_shape", None) or (size,))[-1]
    copies = []
    for dtype in TOLERANCES:
        own = [nn.Parameter(numbers(size, dtype=dtype, seed=i)) for i in range(2)]
        copies.append(stand_in(layer, dict(zip(parameters, own, strict=False))))
    constants = {"eps_name": eps_names[0], "names": tuple(parameters)}
    arguments = argument_names(type(layer).forward)
    if arguments is not None and len(arguments) == 2 and "bias" not in parameters:
        return Trials(copies, size, list(_gated_forms(layer, size, constants)), (1, 2))
    return Trials(copies, size, list(_plain_forms(constants)))


def _plain_forms(constants: dict[str, Any]) -> Iterator[Form]:
    ops = [("rms_norm", 0.0), ("rms_norm", 1.0)] if "bias" not in constants["names"] else []
    ops += [("layer_norm", 0.0), ("layer_norm", 1.0)]
    for (op, offset), dtype in itertools.product(ops, ("promoted", "x", "weight")):
        yield Form(op, _norm, _frozen(constants, op=op, offset=offset, dtype=dtype))


def _gated_forms(layer: Any, size: int, constants: dict[str, Any]) -> Iterator[Form]:
    group = getattr(layer, "group_size", None)
    has_groups = type(group) is int and 0 < group < size and size % group == 0
    for gate_first, activation, dtype in itertools.product(
        (True, False), _GATES, ("promoted", "x", "weight")
    ):
        more = {"gate_first": gate_first, "activation": activation, "dtype": dtype}
        more["group_name"] = "group_size" if has_groups else None
        name = f"rms_norm, {activation} gate"
        yield Form(name, _gated_norm, _frozen(constants, **more))


def _frozen(constants: dict[str, Any], **more: Any) -> tuple[tuple[str, Any], ...]:
    return tuple({**constants, **more}.items())
