"""Every derivative transform of JAX, up to six orders, against JAX's own derivatives in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge import lang as bl
from bridge.jax import bias_dropout_add, bias_gelu, layer_norm, rms_norm, rotary
from tests.jax.compositions import FORMS, assert_close, normal, plain

pytestmark = pytest.mark.usefixtures("x64")

Function = Callable[..., Any]


def weighted(function: Function, form: str, weights: Any) -> Function:
    """Returns a scalar loss with a random cotangent, quadratic, with a second order of its own."""

    def loss(x: Any, bias: Any) -> Any:
        y = function(x, bias, approximate=form)
        return jnp.vdot(weights, y) + jnp.vdot(weights, y * y)

    return loss


def hessian_of_gradient_norm(loss: Function) -> Function:
    """Returns third derivatives: the hessian of a function of the gradient."""

    def norm(x: Any, bias: Any) -> Any:
        dx, db = jax.grad(loss, (0, 1))(x, bias)
        return (dx**2).sum() + (db**3).sum()

    return jax.hessian(norm, (0, 1))


def linearized(loss: Function) -> Function:
    def run(x: Any, bias: Any) -> Any:
        value, push = jax.linearize(loss, x, bias)
        return value, push(jnp.cos(x), jnp.sin(bias)), push(x, bias)

    return run


def jvp_of_grad(loss: Function) -> Function:
    def run(x: Any, bias: Any) -> Any:
        grad = jax.grad(loss, (0, 1))
        return jax.jvp(grad, (x, bias), (jnp.cos(x), jnp.sin(bias)))

    return run


def grad_of_jvp(loss: Function) -> Function:
    def derivative(x: Any, bias: Any) -> Any:
        return jax.jvp(loss, (x, bias), (jnp.cos(x), jnp.sin(bias)))[1]

    return jax.grad(derivative, (0, 1))


TRANSFORMS: dict[str, Function] = {
    "grad of x": partial(jax.grad, argnums=0),
    "grad of bias": partial(jax.grad, argnums=1),
    "value_and_grad": partial(jax.value_and_grad, argnums=(0, 1)),
    "linearize": linearized,
    "jacfwd": partial(jax.jacfwd, argnums=(0, 1)),
    "jacrev": partial(jax.jacrev, argnums=(0, 1)),
    "jvp of grad": jvp_of_grad,
    "grad of jvp": grad_of_jvp,
    "hessian": partial(jax.hessian, argnums=(0, 1)),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 1)),
    "third order": hessian_of_gradient_norm,
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "tanh") for name in TRANSFORMS),
        ("third order", "none"),
        ("third order", "sigmoid"),
    ],
)
def test_transform_of_a_loss(name: str, form: str, rng: np.random.Generator) -> None:
    x, bias, weights = normal(rng, 3, 5), normal(rng, 5), normal(rng, 3, 5)
    ours, theirs = (
        jax.jit(TRANSFORMS[name](weighted(function, form, weights)))(x, bias)
        for function in (bias_gelu, plain)
    )
    assert_close(ours, theirs, 1e-9)  # 1 + tanh of the jax.numpy form cancels in the tail


def test_jacobians_of_the_op_itself(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 2, 3), normal(rng, 3)
    expected = jax.jit(jax.jacfwd(plain, (0, 1)))(x, bias)
    for jacobian in (jax.jacfwd, jax.jacrev):
        assert_close(jax.jit(jacobian(bias_gelu, (0, 1)))(x, bias), expected)


def test_outside_jit(rng: np.random.Generator) -> None:
    x, bias, weights = normal(rng, 2, 3), normal(rng, 3), normal(rng, 2, 3)
    for name in ("value_and_grad", "jvp of grad", "linearize"):
        ours = TRANSFORMS[name](weighted(bias_gelu, "tanh", weights))(x, bias)
        theirs = jax.jit(TRANSFORMS[name](weighted(plain, "tanh", weights)))(x, bias)
        assert_close(ours, theirs)


def derivative(function: Function, order: int) -> Function:
    for _ in range(order):
        function = jax.grad(function)
    return function


@pytest.mark.parametrize("form", FORMS)
def test_sixth_order(form: str) -> None:
    x = jnp.asarray(0.7)
    ours, theirs = (
        jax.jit(derivative(partial(function, approximate=form), 6))(x)
        for function in (bias_gelu, plain)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_vjp_twice_with_the_same_residuals(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3), normal(rng, 3)
    _, pull = jax.vjp(bias_gelu, x, bias)
    _, plain_pull = jax.vjp(plain, x, bias)
    for _ in range(2):
        g = normal(rng, 4, 3)
        assert_close(pull(g), plain_pull(g))


def test_linear_transpose_of_the_derivative(rng: np.random.Generator) -> None:
    x, bias, g = normal(rng, 4, 3), normal(rng, 3), normal(rng, 4, 3)

    def pushed(function: Function) -> Any:
        def push(t: Any, t_bias: Any) -> Any:
            return jax.jvp(function, (x, bias), (t, t_bias))[1]

        return jax.linear_transpose(push, x, bias)(g)

    assert_close(pushed(bias_gelu), pushed(plain))


def test_linear_transpose_of_the_op_is_refused() -> None:
    with pytest.raises(TypeError, match="bias_gelu is not linear in x"):
        jax.linear_transpose(bias_gelu, jnp.ones(3))(jnp.ones(3))
    cos = jnp.ones((4, 2))
    with pytest.raises(TypeError, match="rotary is not linear in x"):
        jax.linear_transpose(lambda x, cos: rotary(x, cos, cos), jnp.ones((4, 4)), cos)(
            jnp.ones((4, 4))
        )


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_linear_transpose_of_linear_ops(
    count: int, training: bool, rng: np.random.Generator
) -> None:
    """The transpose excludes the contribution of the other operands."""
    x, bias, residual, g = normal(rng, 4, 6), normal(rng, 6), normal(rng, 4, 6), normal(rng, 4, 6)

    def added(*linear: Any) -> Any:
        given = (*linear, *(x, bias, residual)[count:])
        return bias_dropout_add(*given, p=0.3, seed=5, training=training)

    def turned(x: Any) -> Any:
        return rotary(x, jnp.cos(g[:, :3]), jnp.sin(g[:, :3]))

    for function, given in ((added, (x, bias, residual)[:count]), (turned, (x,))):
        found = jax.linear_transpose(jax.jit(function), *given)(g)
        for one, other in zip(found, jax.vjp(function, *given)[1](g), strict=True):
            np.testing.assert_array_equal(one, other)


@bridge.op(keep=("r",))
def scaled_rows(x: bridge.Full, weight: bridge.Row):
    r = bl.rsqrt(bl.mean(x * x) + 1e-6)
    return x * r * weight


def test_linear_transpose_of_ops_that_keep_what_a_backward_pass_reads(
    rng: np.random.Generator,
) -> None:
    """There are no residuals, because the op has not run."""
    x, w, g = normal(rng, 4, 6), normal(rng, 6), normal(rng, 4, 6)
    for function in (
        lambda w: rms_norm(x, w),
        lambda w: layer_norm(x, w, None),
        lambda w: rms_norm(x, w, g)[0],
        lambda w: scaled_rows(x, w),
    ):
        (found,) = jax.linear_transpose(jax.jit(function), w)(g)
        np.testing.assert_array_equal(found, jax.vjp(function, w)[1](g)[0])
        batched = jax.vmap(jax.linear_transpose(function, w))(jnp.stack([g, 2 * g]))[0]
        np.testing.assert_array_equal(batched, jnp.stack([found, 2 * found]))


def test_symbolic_zero_tangents_cost_nothing(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3), normal(rng, 3)
    text = str(jax.make_jaxpr(jax.grad(lambda b: bias_gelu(x, b).sum()))(bias))
    assert ":f64[3] = bridge_program" in text
    assert text.count(":f64[4,3] = bridge_program") == 1  # no dx for a constant x
    text = str(jax.make_jaxpr(jax.grad(lambda x: bias_gelu(x, bias).sum()))(x))
    assert ":f64[3] = bridge_program" not in text  # no column sums for a constant bias
    tangents = jax.jvp(lambda x: bias_gelu(jax.lax.stop_gradient(x), bias), (x,), (x,))[1]
    np.testing.assert_array_equal(tangents, 0.0)


def test_an_unread_gradient_is_not_computed(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3), normal(rng, 3)

    def bias_gradient(x: Any, bias: Any) -> Any:
        return jax.vjp(bias_gelu, x, bias)[1](x)[1]

    lowered = jax.jit(bias_gradient).lower(x, bias).as_text()
    assert lowered.count("@bridge_program") == 1  # and the forward call is gone
    assert "outputs = 2" in lowered
    _, expected = jax.vjp(plain, x, bias)[1](x)
    assert_close(jax.jit(bias_gradient)(x, bias), expected)


def test_residuals_are_x_and_bias_alone(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3), normal(rng, 3)
    _, pull = jax.vjp(bias_gelu, x, bias)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(pull) if hasattr(leaf, "shape"))
    assert shapes == [(3,), (4, 3)]


def test_float0_tangents_pass_by(rng: np.random.Generator) -> None:
    x, bias, index = normal(rng, 4, 3), normal(rng, 3), jnp.asarray([2, 0])

    def gather(function: Function) -> Function:
        return lambda x, bias, index: function(x, bias)[index]

    arguments = (x, bias, index)
    tangents = (x, bias, np.zeros(index.shape, jax.dtypes.float0))
    ours = jax.jvp(gather(bias_gelu), arguments, tangents)
    assert_close(ours, jax.jvp(gather(plain), arguments, tangents))


def test_inside_custom_jvp_and_custom_vjp(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 3), normal(rng, 3)

    @jax.custom_jvp
    def forward(x: Any, bias: Any) -> Any:
        return bias_gelu(x, bias)

    @forward.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        value, tangent = jax.jvp(bias_gelu, primals, tangents)
        return value, 3.0 * tangent

    @jax.custom_vjp
    def reverse(x: Any, bias: Any) -> Any:
        return bias_gelu(x, bias)

    def keep(x: Any, bias: Any) -> Any:
        return jax.vjp(bias_gelu, x, bias)

    def pull(saved: Any, g: Any) -> Any:
        return jax.tree.map(lambda gradient: 3.0 * gradient, saved(g))

    reverse.defvjp(keep, pull)
    expected = jax.grad(lambda *a: 3.0 * (plain(*a) ** 2).sum(), (0, 1))(x, bias)
    for function in (forward, reverse):
        ours = jax.grad(lambda *a, f=function: (f(*a) ** 2).sum(), (0, 1))(x, bias)
        assert_close(ours, expected)


def test_gradients_have_the_dtype_of_their_argument(rng: np.random.Generator) -> None:
    dtypes = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)
    for x_dtype in dtypes:
        for bias_dtype in dtypes:
            x, bias = normal(rng, 4, 3, dtype=x_dtype), normal(rng, 3, dtype=bias_dtype)
            y, pull = jax.vjp(bias_gelu, x, bias)
            g = normal(rng, 4, 3, dtype=y.dtype)
            dx, db = pull(g)
            assert (dx.dtype, db.dtype) == (x_dtype, bias_dtype)
            wide = [a.astype(jnp.float64) for a in (x, bias, g)]
            expected = jax.vjp(plain, *wide[:2])[1](wide[2])
            for gradient, reference in zip((dx, db), expected, strict=True):
                # Gradients are computed in float32 and rounded once to the argument's dtype.
                tolerance = max(jnp.finfo(gradient.dtype).eps, 2.0**-22)
                assert_close(gradient.astype(jnp.float64), reference, float(tolerance))
