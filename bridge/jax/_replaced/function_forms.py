"""The forms of functions that are attributes of modules: activations and losses.

A module of its own without variables, such as a `GELU`, is an activation too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.catalogue.activations import KINDS, SLOPES, activation
from bridge.jax._ops.bias_gelu import bias_gelu
from bridge.jax._ops.cross_entropy import cross_entropy
from bridge.jax._ops.gates import squared_relu
from bridge.jax._replaced.trial import ELSE, TOLERANCES, Form, arrays_of_call, first_alike, rows

_COLUMNS = 11
# The trial's labels, of which −1 is the last column in JAX, and −100 the usual label to ignore.
_LABELS = ((0, 3, 10, -1, 7, 3), (5, -100, 1, 2, -1, 9))


@dataclass(frozen=True)
class FunctionByBridge:
    """A function that a form computes, or the original for a call that the form does not know.

    Equal objects stay equal in `nnx.split`, so that compiled functions are found again.
    """

    original: Callable[..., Any]
    form: Form

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Returns the original, whose signature `inspect.signature` shows."""
        return self.original

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.form.is_call:
            found = self.form.run(None, *given, **named)
            return self.original(*given, **named) if found is NotImplemented else found
        arrays = arrays_of_call(self.original, 0, self.form.count, given, named)
        if arrays is None or any(x.shape != arrays[0].shape[:-1] for x in arrays[1:]):
            return self.original(*given, **named)  # such as labels that broadcast
        return self.form.run(None, *arrays)


def function_form(kind: str, function: Callable[..., Any]) -> Form | str:
    """Returns the form of an activation or a loss, or why it has none."""

    def original(_: None, *given: Any) -> Any:
        return function(*given)

    if kind == "activations":
        arguments = {dtype: [(rows(64, dtype)[-1],)] for dtype in TOLERANCES}
        return first_alike([None], arguments, original, _activations())
    labelled = {dtype: [*_with_labels(dtype)] for dtype in TOLERANCES}
    return first_alike([None], labelled, original, _losses())


def activation_form(layer: nnx.Module) -> Form | str | None:
    """Returns the form of a module that is an activation, or None for another module."""
    has_parts = bool(jax.tree.leaves(nnx.state(layer, nnx.Not(nnx.RngState))))
    if has_parts or not type(layer).__name__.lower().endswith(("gelu", "activation")):
        return None
    arguments = {dtype: [(rows(64, dtype)[-1],)] for dtype in TOLERANCES}
    copies = [nnx.merge(*nnx.split(layer))]
    found = first_alike(copies, arguments, type(layer).__call__, _activations())
    return None if found == ELSE else found


def functions_of(layer: nnx.Module, kinds: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yields the functions of a module: (kind, attribute, function)."""
    is_list = isinstance(layer, (nnx.List, nnx.Dict))
    for name, value in vars(layer).items():
        if isinstance(value, (type, nnx.Module, types.MethodType)) or not callable(value):
            continue
        lower = name.lower()
        if "loss" in lower or "cross_entropy" in lower:
            kind = "losses"
        elif is_list or "act" in lower or "gelu" in lower:
            kind = "activations"
        else:
            continue
        if kind in kinds:
            yield kind, name, value


def _activations() -> Iterator[Form]:
    for approximate in ("tanh", "none", "sigmoid"):
        yield Form(f"bias_gelu, {approximate}", _gelu, (("approximate", approximate),))
    yield Form("squared_relu", _squared_relu)
    for kind in KINDS:
        for slope in SLOPES.get(kind, (1.0,)):
            yield Form(kind, _activation, (("kind", kind), ("slope", slope)))


def _gelu(layer: Any, x: jax.Array, approximate: str) -> jax.Array:
    return bias_gelu(x, approximate=approximate)


def _squared_relu(layer: Any, x: jax.Array) -> jax.Array:
    return squared_relu(x)


def _activation(layer: Any, x: jax.Array, kind: str, slope: float) -> jax.Array:
    return activation.jax(x, kind=kind, slope=slope)  # type: ignore[no-any-return]


def _with_labels(dtype: str) -> Iterator[tuple[Any, ...]]:
    flat, *_ = rows(_COLUMNS, dtype)
    for labels in _LABELS:
        yield flat, jnp.asarray(labels)
    yield flat.reshape(3, 2, _COLUMNS), jnp.asarray(_LABELS[0]).reshape(3, 2)


def _losses() -> Iterator[Form]:
    for reduction in ("none", "mean", "sum"):
        for ignores in (False, True):
            for keeps_dtype in (True, False):
                constants = {"reduction": reduction, "ignores": ignores, "keeps_dtype": keeps_dtype}
                yield Form("cross_entropy", _loss, tuple(constants.items()), 2)


def _loss(
    layer: Any,
    logits: jax.Array,
    labels: jax.Array,
    reduction: str,
    ignores: bool,
    keeps_dtype: bool,
) -> jax.Array:
    labels = jnp.asarray(labels)
    if jnp.issubdtype(labels.dtype, jnp.signedinteger):
        # JAX counts negative columns from the end; none of these is −100 then.
        wraps = labels < 0
        wraps = wraps & (labels != -100) if ignores else wraps
        wide = labels.astype(jnp.promote_types(labels.dtype, jnp.int32))
        wrapped = wide + logits.shape[-1]
        # One that is out of range must not become the label to ignore.
        labels = jnp.where(wraps, jnp.where(wrapped == -100, -101, wrapped), wide)
    y = cross_entropy(logits, labels, reduction=reduction)
    return y.astype(logits.dtype) if keeps_dtype else y
