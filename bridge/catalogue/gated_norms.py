"""RMS norms with a gate, before or after the norm, of whole rows or of groups of columns."""

from __future__ import annotations

from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.gates import ACTIVATIONS
from bridge.catalogue.norms import cotangents, inverse, scaled
from bridge.lang.derivatives.modes import differentiated
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import whole_number

_NAME = "gated_rms_norm"
_CHECKS = {
    "eps": checks.eps,
    "activation": checks.word(ACTIVATIONS),
    "norm_first": checks.flag,
}


def _gate_and_rows(x: Any, gate: Any, activation: str, norm_first: bool) -> tuple[Any, Any]:
    """Returns act(gate), and the rows that are normalised."""
    act = ACTIVATIONS[activation](gate)
    return act, x if norm_first else x * act


def _after(normal: Any, act: Any, weight: Any, norm_first: bool) -> Any:
    y = scaled(normal, weight)
    return y * act if norm_first else y


def _vjp(
    x: Any,
    gate: Any,
    weight: Any,
    y: Any,
    g: Any,
    *,
    eps: float,
    activation: str,
    norm_first: bool,
) -> Any:
    act, h = _gate_and_rows(x, gate, activation, norm_first)
    slope = differentiated(act, gate)
    r = inverse(h, eps)
    normal = h * r
    dh, *others = cotangents(normal, r, weight, g * act if norm_first else g, is_centred=False)
    if norm_first:
        return dh, g * scaled(normal, weight) * slope, *others
    return dh * act, dh * x * slope, *others


@declared(keep=("r",), vjp=_vjp, checks=_CHECKS)
def gated_rms_norm(
    x: bl.Full,
    gate: bl.Full,
    weight: bl.Row | None = None,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_first: bool = True,
):
    act, h = _gate_and_rows(x, gate, activation, norm_first)
    r = inverse(h, eps)
    return _after(h * r, act, weight, norm_first)


@declared(keep=("r",), vjp=_vjp, checks=_CHECKS)
@named(_NAME)
def of_groups(
    x: bl.Full,
    gate: bl.Full,
    weight: bl.Table,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_first: bool = True,
):
    act, h = _gate_and_rows(x, gate, activation, norm_first)
    r = inverse(h, eps)
    return _after(h * r, act, weight, norm_first)


class GatedNorm:
    """`gated_rms_norm` in one framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.whole, self.groups = arrays.entry(gated_rms_norm), arrays.entry(of_groups)

    def run(
        self, x: Any, gate: Any, weight: Any, groups: Any, eps: Any, activation: Any, first: Any
    ) -> Any:
        """Normalises each group of columns as a row; a row of the weight belongs to each group.

        Raises:
          TypeError, ValueError: as the op; for groups that do not divide the columns.
        """
        count = whole_number(_NAME, "groups", self.arrays.known(_NAME, "groups", groups), 1)
        shape = shape_of(x)
        if count == 1 or not shape or shape_of(gate) != shape:  # or the op raises its own error
            return self.whole.run((x, gate, weight), None, eps, activation, first)
        if shape[-1] % count:
            raise ValueError(
                f"{_NAME}: x has shape {list(shape)}, expected a multiple of {count} in the last "
                "dimension, one part for each group"
            )
        if weight is not None and shape_of(weight) != shape[-1:]:
            raise ValueError(
                f"{_NAME}: weight has shape {list(shape_of(weight))}, expected [{shape[-1]}]"
            )
        apart = (*shape[:-1], count, shape[-1] // count)
        x, gate = x.reshape(apart), gate.reshape(apart)
        if weight is None:
            y = self.whole.run((x, gate, None), None, eps, activation, first)
        else:
            weight = weight.reshape(apart[-2:])
            y = self.groups.run((x, gate, weight), None, eps, activation, first)
        return y.reshape(shape)
