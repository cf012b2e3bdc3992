"""Every transform of JAX on every op, against JAX's own derivatives in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.jet import jet
from jax.test_util import check_grads

from bridge.jax import bias_dropout_add, scaled_causal_softmax, scaled_masked_softmax
from tests.jax.cases import ANY_SHAPE, CASES, Case
from tests.jax.compositions import assert_close, normal

pytestmark = pytest.mark.usefixtures("x64")

Function = Callable[..., Any]
every_op = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def every_argument(case: Case) -> tuple[int, ...]:
    return tuple(range(len(case.shapes)))


def weighted(function: Function, weights: Any) -> Function:
    """Returns a scalar loss with a random cotangent, cubic, with a third order of its own."""

    def loss(*arguments: Any) -> Any:
        y = function(*arguments)
        return jnp.vdot(weights, y) + jnp.vdot(weights, y**3)

    return loss


@every_op
def test_gradients_towards_some_arguments_are_those_towards_all(
    case: Case, rng: np.random.Generator
) -> None:
    """Any arguments may come first, although forward mode needs one of the result's shape first."""
    arguments = case.draw(rng)
    y, pull = jax.vjp(case.ours, *arguments)
    g = normal(rng, *y.shape)
    full = pull(g)
    for count in range(1, len(arguments)):
        for some in itertools.combinations(range(len(arguments)), count):

            def function(*given: Any, some: Any = some) -> Any:
                placed = list(arguments)
                for i, value in zip(some, given, strict=True):
                    placed[i] = value
                return case.ours(*placed)

            found = jax.vjp(function, *[arguments[i] for i in some])[1](g)
            for i, one in zip(some, found, strict=True):
                np.testing.assert_array_equal(one, full[i])


def backward(function: Function) -> Function:
    def run(g: Any, *arguments: Any) -> Any:
        y, pull = jax.vjp(function, *arguments)
        return y, pull(g)

    return run


def directions(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(jnp.cos(argument) for argument in arguments)


def linearized(loss: Function, at: tuple[int, ...]) -> Function:
    def run(*arguments: Any) -> Any:
        value, push = jax.linearize(loss, *arguments)
        return value, push(*directions(arguments)), push(*arguments)

    return run


def jvp_of_grad(loss: Function, at: tuple[int, ...]) -> Function:
    return lambda *a: jax.jvp(jax.grad(loss, at), a, directions(a))


def grad_of_jvp(loss: Function, at: tuple[int, ...]) -> Function:
    return jax.grad(lambda *a: jax.jvp(loss, a, directions(a))[1], at)


def grad_of(transform: Function) -> Function:
    """Returns the gradient of a transform's sum of cubes, because softmax has a constant sum."""

    def transformed(loss: Function, at: tuple[int, ...]) -> Function:
        inner = transform(loss, at)
        return jax.grad(lambda *a: sum((leaf**3).sum() for leaf in jax.tree.leaves(inner(*a))), at)

    return transformed


TRANSFORMS: dict[str, Function] = {
    "value_and_grad": lambda loss, at: jax.value_and_grad(loss, at),
    "linearize": linearized,
    "jvp of grad": jvp_of_grad,
    "grad of jvp": grad_of_jvp,
    "grad of grad": grad_of(jax.grad),
    "grad of jvp of grad": grad_of(jvp_of_grad),
    "hessian": lambda loss, at: jax.hessian(loss, at),
    "jacrev of jacrev": lambda loss, at: jax.jacrev(jax.jacrev(loss, at), at),
}


@pytest.mark.sampled(16)
@every_op
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_of_a_loss(case: Case, name: str, rng: np.random.Generator) -> None:
    arguments, weights = case.draw(rng), normal(rng, *case.shapes[0])
    ours, theirs = (
        jax.jit(TRANSFORMS[name](weighted(function, weights), every_argument(case)))(*arguments)
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs, 1e-11)


@every_op
def test_jacobians(case: Case, rng: np.random.Generator) -> None:
    arguments, at = case.draw(rng), every_argument(case)
    expected = jax.jit(jax.jacfwd(case.theirs, at))(*arguments)
    for jacobian in (jax.jacfwd, jax.jacrev):
        assert_close(jax.jit(jacobian(case.ours, at))(*arguments), expected)


@every_op
@pytest.mark.parametrize("jitted", [False, True])
def test_taylor_mode(case: Case, jitted: bool, rng: np.random.Generator) -> None:
    arguments, first, second = case.draw(rng), case.draw(rng), case.draw(rng)

    def along(t: Any) -> Any:
        return case.theirs(
            *(x + t * a + t * t * b for x, a, b in zip(arguments, first, second, strict=True))
        )

    expected = [along]
    for _ in range(3):
        expected.append(lambda t, before=expected[-1]: jax.jvp(before, (t,), (1.0,))[1])
    ours = jax.jit(case.ours) if jitted else case.ours
    series = [[a, 2.0 * b, jnp.zeros_like(a)] for a, b in zip(first, second, strict=True)]
    y, terms = jet(ours, arguments, series)
    assert_close([y, *terms], [function(0.0) for function in expected], 1e-11)


@every_op
def test_against_differences(case: Case, rng: np.random.Generator) -> None:
    check_grads(jax.jit(case.ours), case.draw(rng), order=2, modes=("fwd", "rev"))


@every_op
def test_outside_jit(case: Case, rng: np.random.Generator) -> None:
    arguments, weights = case.draw(rng), normal(rng, *case.shapes[0])
    ours, theirs = (
        TRANSFORMS["jvp of grad"](weighted(function, weights), every_argument(case))(*arguments)
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs)


@every_op
def test_with_jit_disabled(case: Case, rng: np.random.Generator) -> None:
    arguments, g = case.draw(rng), normal(rng, *case.shapes[0])
    expected = jax.jit(backward(case.ours))(g, *arguments)
    with jax.disable_jit():
        ours = backward(case.ours)(g, *arguments)
    assert_close(ours, expected, 0.0)


def scanned(function: Function, weights: Any, x: Any, *others: Any) -> Any:
    def step(carry: Any, weight: Any) -> Any:
        y = function(carry, *others)
        return carry + weight * y, jnp.vdot(weight, y)

    last, sums = jax.lax.scan(step, x, weights)
    return jnp.vdot(sums, sums) + jnp.vdot(last, weights[0])


def branched(function: Function, weights: Any, x: Any, *others: Any) -> Any:
    taken = jax.lax.cond(weights[0].ravel()[0] > -99, lambda: function(x, *others), lambda: x)
    switched = jax.lax.switch(1, [lambda: x, lambda: function(-x, *others)])
    return jnp.vdot(taken * switched, weights[0])


def rematerialised(function: Function, weights: Any, x: Any, *others: Any) -> Any:
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    for weight in weights:
        block = jax.checkpoint(
            lambda x, weight=weight: checkpoint_name(function(x * weight, *others), "kept") + x,
            policy=policy if weight is weights[0] else None,
        )
        x = block(x)
    return jnp.vdot(x, weights[0])


@every_op
@pytest.mark.parametrize("program", [scanned, branched, rematerialised])
def test_gradients_through(program: Function, case: Case, rng: np.random.Generator) -> None:
    arguments, weights = case.draw(rng), normal(rng, 3, *case.shapes[0])
    ours, theirs = (
        jax.jit(jax.value_and_grad(partial(program, function, weights), every_argument(case)))(
            *arguments
        )
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs, 1e-11)


@every_op
def test_tangents_through_a_while_loop(case: Case, rng: np.random.Generator) -> None:
    def looped(function: Function, x: Any, *others: Any) -> Any:
        def body(state: Any) -> Any:
            return state[0] + 1, state[1] + function(state[1], *others)

        return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]

    arguments, tangents = case.draw(rng), case.draw(rng)
    ours, theirs = (
        jax.jit(partial(jax.jvp, partial(looped, function)))(arguments, tangents)
        for function in (case.ours, case.theirs)
    )
    assert_close(ours, theirs, 1e-11)


@every_op
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_with_all_derivatives(case: Case, axis: int, rng: np.random.Generator) -> None:
    """Returns value, gradients per batch element, and their tangent: calls of every kind."""
    stacked = [normal(rng, 3, *shape) for shape in (case.shapes[0], *case.shapes)]
    moved = [jnp.moveaxis(array, 0, min(axis, array.ndim - 1)) for array in stacked]

    def both(function: Function) -> Function:
        return lambda *a: jax.jvp(backward(function), a, directions(a))

    axes = tuple(min(axis, array.ndim - 1) for array in stacked)
    ours = jax.jit(jax.vmap(both(case.ours), axes))(*moved)
    # `theirs` also depends only on its own batch element.
    assert_close(ours, jax.jit(jax.vmap(both(case.theirs)))(*stacked))


@every_op
def test_vmap_of_one_argument_alone_and_nested(case: Case, rng: np.random.Generator) -> None:
    arguments = case.draw(rng)
    g = normal(rng, *case.shapes[0])
    for batched in every_argument(case):
        stacked = list(arguments)
        stacked[batched] = normal(rng, 3, 2, *case.shapes[batched])
        axes = (None, *(0 if i == batched else None for i in every_argument(case)))
        ours, theirs = (
            jax.jit(jax.vmap(jax.vmap(backward(function), axes), axes))(g, *stacked)
            for function in (case.ours, case.theirs)
        )
        assert_close(ours, theirs)


@every_op
def test_export(case: Case, rng: np.random.Generator) -> None:
    arguments, g = case.draw(rng), normal(rng, *case.shapes[0])
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in case.targets]
    function = jax.jit(backward(case.ours))
    exported = export.export(function, disabled_checks=checks)(g, *arguments)
    restored = export.deserialize(exported.serialize())
    assert_close(restored.call(g, *arguments), function(g, *arguments), 0.0)
    export.export(function, platforms=["cuda"], disabled_checks=checks)(g, *arguments)


@pytest.mark.parametrize("platforms", [["cpu"], ["cuda"], ["cpu", "cuda"]], ids=" ".join)
def test_export_with_symbolic_sizes(platforms: list[str], rng: np.random.Generator) -> None:
    rows, columns = export.symbolic_shape("rows, columns")
    names = {target for case in CASES for target in case.targets}
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in names]

    def program(x: Any, bias: Any, mask: Any, seed: Any) -> Any:
        def layer(x: Any, bias: Any) -> Any:
            y = scaled_causal_softmax(scaled_masked_softmax(x, mask, 0.5))
            return bias_dropout_add(y, bias, x, p=0.3, seed=seed)

        return jax.vjp(layer, x, bias)[1](x)

    exported = export.export(jax.jit(program), platforms=platforms, disabled_checks=checks)(
        jax.ShapeDtypeStruct((rows, columns), jnp.float32),
        jax.ShapeDtypeStruct((columns,), jnp.float32),
        jax.ShapeDtypeStruct((rows, 1), jnp.bool),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    if "cpu" in platforms:
        x, bias = normal(rng, 300, 7, dtype=jnp.float32), normal(rng, 7, dtype=jnp.float32)
        arguments = x, bias, jnp.asarray(rng.random((300, 1)) < 0.2), jnp.asarray(9, jnp.int32)
        assert_close(exported.call(*arguments), program(*arguments), 0.0)


@every_op
def test_donated_memory_is_worked_in(case: Case, rng: np.random.Generator) -> None:
    g, *arguments = (jnp.copy(a) for a in (normal(rng, *case.shapes[0]), *case.draw(rng)))
    expected = jax.tree.map(np.asarray, jax.jit(backward(case.ours))(g, *arguments))
    x = jnp.copy(arguments[0])
    address = x.unsafe_buffer_pointer()
    y = jax.jit(case.ours, donate_argnums=0)(x, *arguments[1:])
    assert y.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(y, expected[0])

    def gradients(g: Any, *arguments: Any) -> Any:
        return jax.vjp(case.ours, *arguments)[1](g)

    address = g.unsafe_buffer_pointer()
    ours = jax.jit(gradients, donate_argnums=0)(g, *arguments)
    # With a residual, its gradient is the cotangent itself: XLA chooses which of the two gradients
    # keeps the memory.
    assert address in [gradient.unsafe_buffer_pointer() for gradient in ours]
    for gradient, reference in zip(ours, expected[1], strict=True):
        np.testing.assert_array_equal(gradient, reference)


@pytest.mark.parametrize("case", ANY_SHAPE, ids=lambda case: case.name)
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (2, 0, 3)])
def test_no_elements(case: Case, shape: tuple[int, ...]) -> None:
    arguments = [jnp.zeros(shape[-len(s) :] if len(s) == 1 else shape) for s in case.shapes]
    y, gradients = jax.jit(backward(case.ours))(arguments[0], *arguments)
    assert y.shape == shape
    for gradient, argument in zip(gradients, arguments, strict=True):
        assert gradient.shape == argument.shape
        np.testing.assert_array_equal(gradient, 0.0)
