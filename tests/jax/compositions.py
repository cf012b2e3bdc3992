"""The op in jax.numpy, whose derivatives are JAX's own; comparisons."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FORMS = ("tanh", "none", "sigmoid")


def plain(x: Any, bias: Any = None, *, approximate: str = "tanh") -> Any:
    h = x if bias is None else x + bias
    if approximate == "sigmoid":
        return h * jax.nn.sigmoid(1.702 * h)
    return jax.nn.gelu(h, approximate=approximate == "tanh")


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Compares tree, shapes and dtypes, and each array within `tolerance` of its largest value."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.shape == e.shape
        assert a.dtype == e.dtype
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        if e.size:
            np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * np.abs(e).max())


def normal(rng: np.random.Generator, *shape: int, dtype: Any = None) -> jax.Array:
    return jnp.asarray(2.0 * rng.standard_normal(shape), dtype)
