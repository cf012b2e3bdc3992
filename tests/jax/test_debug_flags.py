"""jax_debug_nans and jax_debug_infs name the op of bridge that gives the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from tests.jax.compositions import normal
from tests.jax.test_sharding import make_mesh

Function = Callable[..., Any]


@dataclass(frozen=True)
class Op:
    """A function of one array, and the names of it and its backward pass in messages."""

    function: Function
    forward: str
    backward: str


_MASK = np.eye(4, 8, dtype=bool)
OPS = {
    "bias_gelu": Op(lambda x: bj.bias_gelu(x, x[0]), "bridge_program", "bridge_program"),
    "bias_dropout_add": Op(
        lambda x: bj.bias_dropout_add(x, x[0], x, p=0.1, seed=3),
        "bridge_program",
        "bridge_program",
    ),
    "scaled_softmax": Op(bj.scaled_softmax, "bridge_program", "bridge_program"),
    "scaled_masked_softmax": Op(
        lambda x: bj.scaled_masked_softmax(x, _MASK), "bridge_program", "bridge_program"
    ),
    "scaled_causal_softmax": Op(bj.scaled_causal_softmax, "bridge_program", "bridge_program"),
}
SOFTMAXES = [op for name, op in OPS.items() if "softmax" in name]
MODES: dict[str, Callable[[Function], Function]] = {
    "eager": lambda function: function,
    "jit": jax.jit,
    "inside a jit": lambda function: jax.jit(lambda *a: 2.0 * function(*a)),
    "jit disabled": lambda function: partial(without_jit, function),
}
every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS)
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def without_jit(function: Function, *arguments: Any) -> Any:
    with jax.disable_jit():
        return function(*arguments)


@pytest.fixture(params=["nan", "inf"])
def bad(request: pytest.FixtureRequest, rng: np.random.Generator) -> Any:
    """Returns the name of a value, the flag that looks for it, and arrays without and with it."""
    x = normal(rng, 4, 8, dtype=jnp.float32)
    flag: Any = jax.debug_nans if request.param == "nan" else jax.debug_infs
    return request.param, flag, x, x.at[1, 5].set(float(request.param))


def refused(flag: Callable[[bool], AbstractContextManager[Any]], word: str, name: str) -> Any:
    return pytest.raises(FloatingPointError, match=rf"\({word}\) encountered in {name}(\n|$)")


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """JAX prints a line for each closer look: there must be one per jit, not a thousand."""
    yield
    assert capsys.readouterr().out.count("de-optimized") < 20


@pytest.mark.sampled(12)
@every_op
@every_mode
def test_forward(op: Op, mode: Any, bad: Any) -> None:
    word, flag, x, with_bad = bad
    function = mode(op.function)
    with flag(True):
        function(x)
        if word == "inf" and op in SOFTMAXES:
            assert jnp.isnan(function(with_bad)).any()  # the result is NaN, not an infinity
            return
        for _ in range(2):
            with refused(flag, word, op.forward):
                function(with_bad)
    function(with_bad)


@pytest.mark.sampled(12)
@every_op
@every_mode
def test_backward(op: Op, mode: Any, bad: Any) -> None:
    word, flag, x, g = bad

    def backward(x: Any, g: Any) -> Any:
        return jax.vjp(op.function, x)[1](g)[0]

    function = mode(backward)
    with flag(True):
        function(x, x)
        with refused(flag, word, op.backward):
            function(x, g)
    function(x, g)


@every_op
def test_tangents(op: Op, bad: Any) -> None:
    word, flag, x, t = bad
    forward_mode = jax.jit(lambda x, t: jax.jvp(op.function, (x,), (t,)))
    with flag(True):
        forward_mode(x, x)
        with refused(flag, word, op.backward):
            forward_mode(x, t)


@every_op
def test_sharded_arrays(op: Op, bad: Any) -> None:
    """Sharded arrays make even an eager op a program of several devices."""
    word, flag, x, g = bad
    x, g = (jax.device_put(a, NamedSharding(make_mesh(), P("data"))) for a in (x, g))

    def backward(x: Any, g: Any) -> Any:
        return jax.vjp(op.function, x)[1](g)[0]

    for function in (backward, jax.jit(backward)):
        with flag(True):
            function(x, x)
            with refused(flag, word, op.backward):
                function(x, g)


@pytest.mark.parametrize("grad", ["sum", "local", "mean"])
def test_all_gather(grad: str, bad: Any) -> None:
    """It returns its input values, and JAX checks them in each shard."""
    _, flag, x, with_bad = bad
    mesh = make_mesh()
    gather = jax.shard_map(
        lambda x: bj.all_gather(x, "data", grad=grad, check=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(("data", "model")),
    )
    for function in (gather, jax.jit(gather)):
        with flag(True):
            function(x)
            with pytest.raises(FloatingPointError):
                function(with_bad)


@pytest.mark.parametrize("scope", ["global", "thread"])
def test_what_is_compiled_is_looked_at_afterwards_too(scope: str, bad: Any) -> None:
    """Calls of ops change neither the flags nor JAX's checks of its own functions."""
    word, flag, x, with_bad = bad
    function = jax.jit(lambda x: x * 2.0)

    def look() -> None:
        function(x)
        for _ in range(2):
            bj.bias_gelu(x, x[0])
            jax.grad(lambda x: bj.bias_gelu(x).sum())(x)
            with refused(flag, word, "bridge_program"):
                bj.bias_gelu(with_bad)
            with pytest.raises(FloatingPointError, match=rf"\({word}\)"):
                function(with_bad)

    def look_in_thread() -> None:
        jax.grad(lambda x: bj.bias_gelu(x).sum())(x)  # also before the flag is set
        jax.config.update(f"jax_debug_{word}s", True)
        look()
        with flag(False):
            bj.bias_gelu(with_bad)
            function(with_bad)

    if scope == "thread":
        with flag(True):
            look()
        return
    try:
        # After `with flag(...)`, a thread ignores the setting for all threads.
        with ThreadPoolExecutor(1) as fresh_thread:
            fresh_thread.submit(look_in_thread).result()
    finally:
        jax.config.update(f"jax_debug_{word}s", False)


def test_the_other_flag_lets_it_pass(bad: Any) -> None:
    word, _, _, with_bad = bad
    other = jax.debug_infs if word == "nan" else jax.debug_nans
    with other(True):
        y = bj.bias_dropout_add(with_bad, training=False)
    np.testing.assert_array_equal(y, with_bad)


_IDS = np.arange(4)
_ONES = np.ones((8, 3), np.float32)
OTHERS: dict[str, Function] = {
    "matmul": lambda x: bj.matmul(x, _ONES),
    "attention": lambda x: bj.attention(x[None], x[None], x[None]),
    "embedding": lambda x: bj.embedding(_IDS, x),
    "linear_cross_entropy": lambda x: bj.linear_cross_entropy(x, x, _IDS, bits="portable"),
}


@every_mode
@pytest.mark.parametrize("name", OTHERS)
def test_primitives_beside_programs(name: str, mode: Any, rng: np.random.Generator) -> None:
    """A primitive with a rule of its own is one op as well, without jit too."""
    function = OTHERS[name]
    x = normal(rng, 4, 8, dtype=jnp.float32)
    with_bad = x.at[1, 5].set(np.nan)
    gradient = jax.grad(lambda x: function(x).sum())
    same = mode(gradient)(x)
    np.testing.assert_array_equal(same * (0.5 if mode is MODES["inside a jit"] else 1), gradient(x))
    with jax.debug_nans(True):
        mode(function)(x)
        for _ in range(2):
            # JAX names the first primitive with a NaN, which may be a change of shape before.
            wanted = "bridge_matmul" if name == "matmul" else ""
            with pytest.raises(FloatingPointError, match=rf"\(nan\) encountered in {wanted}"):
                mode(function)(with_bad)
