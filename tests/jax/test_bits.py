"""The same bits for every way that JAX runs the op."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.jax import bias_gelu
from bridge.lang.gelu_reference import gelu_derivative
from tests.frameworks import bits
from tests.jax.subprocess_run import run

DTYPES = ("float16", "bfloat16", "float32", "float64")
FORMS = ("tanh", "none", "sigmoid")


def everything(form: str, x: Any, bias: Any, g: Any) -> Any:
    """Returns value, both gradients and a second derivative."""

    def backward(x: Any, bias: Any) -> Any:
        value, pull = jax.vjp(partial(bias_gelu, approximate=form), x, bias)
        return value, pull(g.astype(value.dtype))

    (value, (dx, db)), (_, (ddx, ddb)) = jax.jvp(backward, (x, bias), (x, bias))
    return value, dx, db, ddx, ddb


def assert_same_bits(actual: Any, expected: Any) -> None:
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_array_equal(bits(a), bits(e))


def sample(dtype: str, rng: np.random.Generator, *leading: int) -> tuple[Any, Any, Any]:
    shape = (*leading, 300, 33)
    x, g = rng.standard_normal((2, *shape)) * 3
    bias = rng.standard_normal((*leading, 33))
    return jnp.asarray(x, dtype), jnp.asarray(bias, dtype), jnp.asarray(g, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("x64")
def test_eager_jit_vmap_scan_and_loops(dtype: str, rng: np.random.Generator) -> None:
    form = "none" if dtype == "float32" else "tanh"
    x, bias, g = sample(dtype, rng, 3)
    function = partial(everything, form)
    eager = [function(x[i], bias[i], g[i]) for i in range(3)]
    expected = jax.tree.map(lambda *arrays: jnp.stack(arrays), *eager)
    together = jax.jit(lambda x, b, g: [function(x[i], b[i], g[i]) for i in range(3)])
    for got, want in zip(together(x, bias, g), eager, strict=True):
        assert_same_bits(got, want)
    assert_same_bits(jax.jit(jax.vmap(function))(x, bias, g), expected)
    scanned = jax.jit(partial(jax.lax.scan, lambda _, each: (None, function(*each)), None))
    assert_same_bits(scanned((x, bias, g))[1], expected)
    moved = [jnp.moveaxis(array, 0, -1) for array in (x, bias, g)]
    assert_same_bits(jax.jit(jax.vmap(function, -1))(*moved), expected)


def test_donated_memory(rng: np.random.Generator) -> None:
    for dtype in ("bfloat16", "float32"):
        x, bias, _ = sample(dtype, rng)
        expected = bits(bias_gelu(x, bias))
        donated = jax.jit(bias_gelu, donate_argnums=0)(x.copy(), bias)
        np.testing.assert_array_equal(bits(donated), expected)


DIGEST = """
import hashlib, jax, jax.numpy as jnp, numpy as np
from functools import partial
from bridge.jax import bias_dropout_add, bias_gelu, scaled_causal_softmax, scaled_masked_softmax
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(7)
digest = hashlib.sha256()
mask = rng.random((1500, 1)) < 0.2
for dtype in ("float16", "bfloat16", "float32", "float64"):
    x, g, r = (jnp.asarray(a, dtype) for a in 3 * rng.standard_normal((3, 1500, 257)))
    bias = jnp.asarray(rng.standard_normal(257), dtype)
    for function, arguments in (
        (bias_gelu, (x, bias)),
        (partial(bias_dropout_add, p=0.3, seed=5), (x, bias)),
        (partial(bias_dropout_add, p=0.3, seed=5), (x, bias, r)),
        (scaled_causal_softmax, (x,)),
        (lambda x: scaled_masked_softmax(x, mask, 0.5), (x,)),
    ):
        value, pull = jax.vjp(function, *arguments)
        for array in (value, *pull(g)):
            digest.update(np.asarray(array).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.long
def test_any_number_of_xla_threads() -> None:
    assert len({run(DIGEST, NPROC=threads) for threads in ("1", "2", "5")}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("x64")
def test_denormals_are_numbers(dtype: str) -> None:
    """XLA's threads flush denormals to zero; the kernels do not."""
    quantum = float(jnp.finfo(dtype).smallest_subnormal)
    # 16-bit types are exact here and rounded once; the others round at each operation.
    bound = 1.01 if dtype in ("float32", "float64") else 0.501
    tiny = np.asarray([4, 7, -8, 100, -101], np.float64) * quantum
    x = jnp.asarray(tiny, dtype)
    for form in FORMS:
        y = np.asarray(jax.jit(partial(bias_gelu, approximate=form))(x), np.float64)
        expected = gelu_derivative(tiny, form, 0)
        assert np.abs(y - expected).max() <= bound * quantum
        assert np.all(y != 0)
    # Factors may be denormal, and so may a sum of columns.
    ones, slope = jnp.ones((2, 5), dtype), gelu_derivative(np.ones(1), "tanh", 1)
    dx, db = jax.jit(lambda g: jax.vjp(bias_gelu, ones, jnp.zeros(5, dtype))[1](g))(
        jnp.stack([x, x])
    )
    assert np.abs(np.asarray(dx[0], np.float64) - slope * tiny).max() <= bound * quantum
    assert np.abs(np.asarray(db, np.float64) - 2 * slope * tiny).max() <= bound * quantum
