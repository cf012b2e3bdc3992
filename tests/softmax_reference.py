"""Softmax and its derivatives in float64 NumPy, from the formulas of the contract."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def visible_columns(shape: tuple[int, ...], causal: bool) -> Array:
    """Returns booleans that broadcast to `shape`, True for elements that the causal rule shows."""
    if not causal:
        return np.ones((1,) * len(shape), bool)
    rows, columns = shape[-2:]
    return np.arange(columns) <= np.arange(rows)[:, None] + (columns - rows)


def reference(x: Array, mask: Array | None, scale: float, causal: bool) -> Array:
    """Returns softmax(scale·x) of the visible elements in float64, 0 for the others."""
    shape = np.shape(x)
    visible = np.broadcast_to(visible_columns(shape, causal), shape)
    if mask is not None:
        visible = visible & (np.broadcast_to(np.asarray(mask), shape) == 0)
    with np.errstate(all="ignore"):
        z = np.where(visible, scale * np.asarray(x, np.float64), -np.inf)
        largest = np.max(z, axis=-1, keepdims=True, initial=-np.inf)
        shift = np.where(largest == -np.inf, 0.0, largest)
        e = np.where(visible, np.exp(z - shift), 0.0)
        total = _row_sum(e)
        return np.where(visible & (total != 0.0), e / total, 0.0)


def derivative_reference(
    operands: tuple[Array, Array, Array], terms: tuple[bool, ...], scale: float, visible: Array
) -> Array:
    """Returns scale·(u∘v − u⟨v,w⟩ − v⟨u,w⟩ − w⟨u,v⟩), the terms that are asked for."""
    u, v, w = (np.where(visible, each, 0.0) for each in operands)
    product, *factors = terms
    with np.errstate(all="ignore"):
        total = u * v if product else np.zeros(np.shape(u))
        for factor, others, is_asked in zip(
            (u, v, w), ((v, w), (u, w), (u, v)), factors, strict=True
        ):
            if is_asked:
                total = total - factor * _row_sum(others[0] * others[1])
        return np.where(visible, scale * total, 0.0)


def _row_sum(values: Array) -> Array:
    return values.sum(axis=-1, keepdims=True)
