"""Global settings of both frameworks around functions used in the other framework.

The first tests are about JAX's settings of a thread while autograd runs the backward pass on
another thread, as on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

from bridge.jax import from_torch, torch_errors
from bridge.torch import from_jax
from tests.jax.subprocess_run import run


def elsewhere(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


# torch.compile has no second derivatives.
@pytest.mark.parametrize(
    ("compiled", "create_graph"), [(False, False), (False, True), (True, False)]
)
def test_64_bits(compiled: bool, create_graph: bool, rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.standard_normal(5)).requires_grad_()
    f = from_jax(lambda x: jnp.sin(x) * jnp.exp(x))
    if compiled:
        f = torch.compile(f, backend="aot_eager")
    with jax.enable_x64(True):
        y = f(x)
    (g,) = elsewhere(lambda: torch.autograd.grad(y.sum(), x, create_graph=create_graph))
    torch.testing.assert_close(g, (torch.cos(x) + torch.sin(x)) * torch.exp(x))
    if create_graph:
        (second,) = elsewhere(lambda: torch.autograd.grad(g.sum(), x))
        torch.testing.assert_close(second, 2 * torch.cos(x) * torch.exp(x))


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_precision_of_matrix_products(create_graph: bool) -> None:
    seen = []

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x

    def backward(_: None, g: Any) -> Any:
        config: Any = jax.config
        seen.append(config.jax_default_matmul_precision)
        return (g,)

    f.defvjp(lambda x: (x, None), backward)
    x = torch.ones(3, requires_grad=True)
    with jax.default_matmul_precision("highest"):
        y = from_jax(f)(x)
    elsewhere(lambda: torch.autograd.grad(y.sum(), x, create_graph=create_graph))
    assert set(seen) == {"highest"}


# Functions of from_torch, eager and compiled

where = pytest.mark.parametrize("where", [lambda f: f, jax.jit], ids=["eager", "jit"])


def wide_numbers(x: torch.Tensor) -> torch.Tensor:
    return x.argmax(-1) + 2**40


@where
def test_64_bit_results_are_refused_whatever_was_called_before(where: Any) -> None:
    """A call under enable_x64 leaves no state that would allow them later."""
    f = where(from_torch(wide_numbers))
    x = np.eye(3, 4, 1, dtype=np.float32)
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"result number 0 of wide_numbers is int64.*x64 is off"
        ):
            f(x)
        with jax.enable_x64(True):
            np.testing.assert_array_equal(f(x), np.arange(1, 4) + 2**40)


@where
def test_a_stated_shape_is_that_of_the_setting(where: Any) -> None:
    dtype = np.dtype("float64")
    g = from_torch(
        lambda x: x.to(getattr(torch, jax.dtypes.canonicalize_dtype(dtype).name)),
        result_shape=lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(dtype)),
    )
    x = np.ones(3, np.float32)
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            assert where(g)(x).dtype == ("float64" if wide else "float32")


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@where
@pytest.mark.usefixtures("default_dtype")
def test_the_default_dtype(where: Any) -> None:
    """A function sees the current one; a function compiled for another is refused with an error."""
    g = from_torch(lambda x: x + torch.ones(3).cumsum(0))
    f = where(g)
    x = np.ones(3, np.float16)
    for name in ("float32", "bfloat16", "float32"):
        torch.set_default_dtype(getattr(torch, name))
        g(x)
        assert jax.jit(lambda x: g(x))(x).dtype == g(x).dtype == "float32"
    numbers = jnp.arange(3)
    h = where(from_torch(lambda x: x / 2))
    for name in ("float32", "bfloat16"):
        torch.set_default_dtype(getattr(torch, name))
        if name == "bfloat16" and where is jax.jit:
            with (
                pytest.raises(ValueError, match=r"such as torch\.set_default_dtype"),
                torch_errors(),
            ):
                h(numbers).block_until_ready()
        else:
            assert h(numbers).dtype == name
    assert f(x).dtype == "float32"


@where
def test_autocast_is_off_inside(where: Any) -> None:
    """The compiled call runs on threads that do not have the caller's autocast."""
    x = np.ones((4, 4), np.float32)

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    def own(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    with torch.autocast("cpu", torch.bfloat16):
        assert where(from_torch(product))(x).dtype == "float32"
    assert where(from_torch(own))(x).dtype == "bfloat16"
    assert from_torch.__doc__ is not None
    assert "autocast" in from_torch.__doc__


@where
def test_the_default_device_is_the_host_inside(where: Any) -> None:
    """It is the same as on the threads of compiled calls."""
    x = np.ones(3, np.float32)
    with torch.device("meta"):
        np.testing.assert_array_equal(where(from_torch(lambda x: x + torch.ones(3)))(x), x + 1)


def test_the_kind_of_random_keys() -> None:
    """The cache key of JAX's own compiled functions lacks it."""
    f = from_jax(lambda x: x + jax.random.uniform(jax.random.key(3), x.shape))
    x = torch.zeros(3)
    first = f(x)
    before: Any = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_default_prng_impl", "rbg")
        expected = jax.random.uniform(jax.random.key(3), (3,))
        np.testing.assert_array_equal(f(x).numpy(), np.asarray(expected))
    finally:
        jax.config.update("jax_default_prng_impl", before)
    assert torch.equal(f(x), first)


@pytest.mark.processes
def test_an_eager_op_leaves_a_later_search_for_nan() -> None:
    """A flag that is off is not set again: JAX would not notice when it is switched on later."""
    found = run("""
import jax, numpy as np
from jax import numpy as jnp
import bridge.jax
from bridge.jax._adapter.debug import as_one_op
f = jax.jit(jnp.sqrt)
x = -np.ones(3, np.float32)
f(x)
with as_one_op():
    pass
jax.config.update("jax_debug_nans", True)
try:
    f(x)
except FloatingPointError:
    print("found")
""")
    assert found.endswith("found")
