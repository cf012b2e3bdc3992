"""The op inside loops, branches, checkpoints and abstract evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from bridge.jax import bias_gelu
from tests.jax.compositions import assert_close, normal, plain

pytestmark = pytest.mark.usefixtures("x64")

Function = Callable[..., Any]


def scanned(function: Function, x: Any, biases: Any) -> Any:
    def layer(carry: Any, bias: Any) -> Any:
        y = function(carry, bias)
        return y, y.sum()

    last, sums = jax.lax.scan(layer, x, biases)
    return last.sum() + jnp.vdot(sums, sums)


def looped(function: Function, x: Any, biases: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, y: function(y, biases[i]), x).sum()


def while_looped(function: Function, x: Any, biases: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, function(state[1], biases[0])

    return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1].sum()


def branched(function: Function, x: Any, biases: Any) -> Any:
    taken = jax.lax.cond(x[0, 0] > -9, lambda: function(x, biases[0]), lambda: x)
    switched = jax.lax.switch(1, [lambda: x, lambda: function(x, approximate="none"), lambda: -x])
    return (taken * switched).sum()


def mapped(function: Function, x: Any, biases: Any) -> Any:
    return jax.lax.map(lambda bias: function(x, bias), biases).sum()


@pytest.mark.parametrize("program", [scanned, looped, branched, mapped])
def test_gradients_through(program: Function, rng: np.random.Generator) -> None:
    x, biases = normal(rng, 4, 5), normal(rng, 3, 5)
    ours, theirs = (
        jax.jit(jax.value_and_grad(partial(program, function), (0, 1)))(x, biases)
        for function in (bias_gelu, plain)
    )
    assert_close(ours, theirs)


@pytest.mark.parametrize("program", [scanned, while_looped, branched])
def test_tangents_through(program: Function, rng: np.random.Generator) -> None:
    primals = normal(rng, 4, 5), normal(rng, 3, 5)
    tangents = normal(rng, 4, 5), normal(rng, 3, 5)
    ours, theirs = (
        jax.jit(partial(jax.jvp, partial(program, function)))(primals, tangents)
        for function in (bias_gelu, plain)
    )
    assert_close(ours, theirs)


def test_vmap_of_grad_of_scan(rng: np.random.Generator) -> None:
    x, biases = normal(rng, 2, 4, 5), normal(rng, 2, 3, 5)
    ours, theirs = (
        jax.jit(jax.vmap(jax.grad(partial(scanned, function), (0, 1))))(x, biases)
        for function in (bias_gelu, plain)
    )
    assert_close(ours, theirs)


POLICIES = {
    "default": None,
    "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
    "everything_saveable": jax.checkpoint_policies.everything_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
    "only x saved": jax.checkpoint_policies.save_only_these_names("hidden"),
    "only y saved": jax.checkpoint_policies.save_only_these_names("activation"),
}


def block(function: Function, x: Any, weight: Any, bias: Any, out: Any) -> Any:
    hidden = checkpoint_name(x @ weight, "hidden")
    activation = checkpoint_name(function(hidden, bias), "activation")
    return (activation @ out).sum()


def forward_calls(jaxpr: Any) -> int:
    """Counts calls of the op itself in a jaxpr and in its inner jaxprs."""
    count = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "bridge_program":
            count += "vjp" not in json.loads(equation.params["params"].code)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            count += forward_calls(inner) if hasattr(inner, "eqns") else 0
    return count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", 2),  # recomputed for the gradient of `out`
        ("nothing_saveable", 2),
        ("everything_saveable", 1),
        ("dots_saveable", 2),
        ("only x saved", 2),
        ("only y saved", 1),
    ],
)
def test_checkpoint_policies(name: str, expected: int, rng: np.random.Generator) -> None:
    arguments = normal(rng, 4, 3), normal(rng, 3, 5), normal(rng, 5), normal(rng, 5, 2)

    def gradients(function: Function) -> Function:
        rematerialised = jax.checkpoint(partial(block, function), policy=POLICIES[name])
        return jax.grad(rematerialised, (0, 1, 2, 3))

    ours = gradients(bias_gelu)
    assert forward_calls(jax.make_jaxpr(ours)(*arguments).jaxpr) == expected
    assert_close(jax.jit(ours)(*arguments), jax.jit(gradients(plain))(*arguments))


def test_checkpoint_recomputes_what_the_backward_pass_reads_and_no_more(
    rng: np.random.Generator,
) -> None:
    """The op's own backward pass reads x and bias, not y, so nothing is computed again."""
    x, bias = normal(rng, 4, 5), normal(rng, 5)
    grad = jax.grad(jax.checkpoint(lambda x, b: bias_gelu(x, b).sum()), (0, 1))
    lowered = jax.jit(grad).lower(x, bias).as_text()
    assert lowered.count("@bridge_program") == 1


def test_abstract_evaluation() -> None:
    x, bias = jax.ShapeDtypeStruct((4, 5), jnp.bfloat16), jax.ShapeDtypeStruct((5,), jnp.float32)
    result = jax.eval_shape(bias_gelu, x, bias)
    assert (result.shape, result.dtype) == ((4, 5), jnp.float32)
    dx, db = jax.eval_shape(jax.grad(lambda x, b: bias_gelu(x, b).sum(), (0, 1)), x, bias)
    assert (dx.shape, dx.dtype) == ((4, 5), jnp.bfloat16)
    assert (db.shape, db.dtype) == ((5,), jnp.float32)


def test_the_jaxpr_holds_one_call() -> None:
    jaxpr = jax.make_jaxpr(jax.jit(bias_gelu, inline=True))(jnp.ones((4, 5)), jnp.ones(5))
    assert str(jaxpr).count("bridge_program[") == 1
    assert "mul" not in str(jaxpr)


def test_rebuilt_from_its_jaxpr(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 5), normal(rng, 5)
    closed = jax.make_jaxpr(bias_gelu)(x, bias)
    assert_close(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, x, bias), [bias_gelu(x, bias)])


def test_disable_jit(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 5), normal(rng, 5)
    expected = jax.grad(lambda x, b: plain(x, b).sum(), (0, 1))(x, bias)
    with jax.disable_jit():
        assert_close(jax.grad(lambda x, b: bias_gelu(x, b).sum(), (0, 1))(x, bias), expected)
        assert_close(bias_gelu(np.asarray(x), np.asarray(bias)), plain(x, bias))


def test_debug_nans(rng: np.random.Generator) -> None:
    x = normal(rng, 4, 5)
    with jax.debug_nans(True):
        jax.jit(jax.grad(lambda x: bias_gelu(x).sum()))(x)
        with pytest.raises(FloatingPointError, match="nan"):
            bias_gelu(x.at[1, 2].set(jnp.nan))
