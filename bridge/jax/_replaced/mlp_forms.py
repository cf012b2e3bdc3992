"""The forms of MLPs with a gate."""

from __future__ import annotations

import itertools
from typing import Any

import jax
from flax import nnx

from bridge.catalogue.gates import ACTIVATIONS
from bridge.jax._ops.gates import glu
from bridge.jax._replaced.trial import TOLERANCES, Form, first_alike, numbers, rows

_PACKED = ("gate_up_proj", "down_proj")
_GATED = (
    *(("gate_proj", "up_proj", "down_proj"), ("gate", "up", "down")),
    *(("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"), _PACKED),
)
_NARROW, _WIDE = 8, 12


def mlp_form(layer: nnx.Module) -> Form | str | None:
    """Returns the form of an MLP, known by its projections' names, or the reason for none.

    Returns None for a layer without such projections.
    """
    own = {str(path[0]) for path, _ in nnx.to_flat_state(_parameters(layer)) if len(path) == 1}
    for parts in _GATED:
        if set(parts) <= own:
            return "it holds the weights of its projections itself: expected a module for each"
        if all(isinstance(getattr(layer, part, None), nnx.Module) for part in parts):
            return _form(layer, parts)
    return None


def _parameters(layer: nnx.Module) -> Any:
    return nnx.state(layer, nnx.Not(nnx.RngState))


def _form(layer: nnx.Module, parts: tuple[str, ...]) -> Form | str:
    paths = [path for path, _ in nnx.to_flat_state(_parameters(layer))]
    if any(str(path[0]) not in parts for path in paths):
        return "it has other parameters than those of its projections"
    dropouts = tuple(n for n, child in vars(layer).items() if isinstance(child, nnx.Dropout))
    # The activation first, without dropout: a program with all pairs would be large.
    forms = [_form_of(parts, activation, (None, None), dropouts) for activation in ACTIVATIONS]
    found = _tried(layer, parts, 0.0, forms)
    if isinstance(found, str) or not dropouts:
        return found
    activation = dict(found.constants)["activation"]
    pairs = itertools.product((None, *dropouts), repeat=2)
    forms = [_form_of(parts, activation, pair, dropouts) for pair in pairs]
    return _tried(layer, parts, 0.5, forms)


def _form_of(parts: Any, activation: str, pair: Any, dropouts: tuple[str, ...]) -> Form:
    constants = (("parts", parts), ("activation", activation), ("dropouts", pair))
    return Form(f"glu, {activation}", _gated, constants, parts=(*parts, *dropouts))


def _tried(layer: nnx.Module, parts: Any, rate: float, forms: list[Form]) -> Form | str:
    arguments = {dtype: [(rows(_NARROW, dtype)[-1],)] for dtype in TOLERANCES}
    copies = [_copied(layer, parts, dtype, rate) for dtype in TOLERANCES]
    return first_alike(copies, arguments, type(layer).__call__, forms)


def _copied(layer: nnx.Module, parts: tuple[str, ...], dtype: str, rate: float) -> nnx.Module:
    """Returns a copy of a layer with small random projections, and dropouts of this rate.

    The layer's own rate may be 0 until training.
    """
    copy, zeros = nnx.merge(*nnx.split(layer)), nnx.initializers.zeros
    *first, last = parts
    columns = _WIDE * 2 if parts is _PACKED else _WIDE
    shapes = {**{part: (_NARROW, columns) for part in first}, last: (_WIDE, _NARROW)}
    for seed, (part, shape) in enumerate(shapes.items()):
        own = getattr(getattr(layer, part), "dtype", None)
        linear = nnx.Linear(*shape, dtype=own, kernel_init=zeros, rngs=nnx.Rngs(0))
        linear.kernel = nnx.Param(numbers(shape, dtype, seed))
        linear.bias = nnx.Param(numbers(shape[1:], dtype, seed + 10))
        setattr(copy, part, linear)
    for seed, (name, value) in enumerate(vars(layer).items()):
        if isinstance(value, nnx.Dropout):
            dropout = getattr(copy, name)
            dropout.rate = rate
            if value.rngs is not None or not value.rate:
                _with_stream(dropout, seed)
    return copy


def _with_stream(dropout: nnx.Dropout, seed: int) -> None:
    """Gives a dropout a stream of its own, which an abstract model lacks."""
    dropout.rngs = nnx.Rngs(**{dropout.rng_collection: seed})[dropout.rng_collection]


def _gated(
    layer: Any,
    x: jax.Array,
    parts: tuple[str, ...],
    activation: str,
    dropouts: tuple[str | None, str | None],
) -> jax.Array:
    """Computes the MLP; a dropout may follow the gated unit, or the last projection."""
    *first, last = (getattr(layer, part) for part in parts)
    after_gate, after_all = (name and getattr(layer, name) for name in dropouts)
    h = glu(*(part(x) for part in first), activation=activation)
    y = last(after_gate(h) if after_gate else h)
    return after_all(y) if after_all else y  # type: ignore[no-any-return]
