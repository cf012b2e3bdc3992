"""Derivatives of programs in float64: against differences and each other, to third order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bridge.lang.derivatives.modes import jvp, vjp
from bridge.lang.program import Program
from bridge.lang.reference import evaluate
from bridge.lang.tracing import declared, trace
from tests.lang import declarations as ops
from tests.lang.arrays import draw
from tests.lang.random_programs import random_call, steps_of

OPS = [
    ops.rms_norm,
    ops.layer_norm,
    ops.soft_capped_gate,
    ops.log_softmax,
    ops.row_dot,
    ops.weighted_squared_relu,
    ops.swish_gate,
    ops.cross_entropy,
    ops.rotary,
    ops.turned_pairs,
    ops.masked_mean,
    ops.spread,
    ops.dropped,
    ops.functions,
]
named = pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)


def program_of(op: Callable[..., Any], **static: Any) -> Program:
    declaration = declared(op)
    present = [True] * len(declaration.parameters)
    return trace(declaration, present, {**declaration.static, **static})


def floating(program: Program) -> list[bool]:
    return [operand.dtype == "float" for operand in program.operands]


def arrays(rng: np.random.Generator, program: Program) -> list[Any]:
    return [draw(rng, operand) for operand in program.operands]


def moved(operands: Sequence[Any], tangents: Sequence[Any], mask: Sequence[bool], by: float) -> Any:
    steps = iter(tangents)
    return [
        x + by * next(steps) if is_moved else x for x, is_moved in zip(operands, mask, strict=True)
    ]


def dot(left: Sequence[Any], right: Sequence[Any]) -> float:
    return sum(float(np.sum(a * b)) for a, b in zip(left, right, strict=True))


@named
def test_forward_mode_is_the_limit_of_differences(op: Any, rng: np.random.Generator) -> None:
    program = program_of(op)
    mask = floating(program)
    tangent = jvp(program, mask)
    operands = arrays(rng, program)
    directions = [draw(rng, o) for o, m in zip(program.operands, mask, strict=True) if m]
    found = evaluate(tangent, [*operands, *directions])
    step = 1e-6
    above, below = (evaluate(program, moved(operands, directions, mask, s)) for s in (step, -step))
    for value, high, low in zip(found, above, below, strict=True):
        np.testing.assert_allclose(value, (high - low) / (2 * step), rtol=1e-6, atol=1e-7)
        assert np.any(value)


@named
@pytest.mark.parametrize("order", [1, 2, 3])
def test_reverse_mode_is_the_transpose(op: Any, order: int, rng: np.random.Generator) -> None:
    """⟨cotangent, J·tangent⟩ = ⟨Jᵀ·cotangent, tangent⟩, for the program and its derivatives."""
    program = program_of(op)
    for _ in range(order - 1):
        program = vjp(program, [True] * len(program.results), floating(program))
    mask = floating(program)
    operands = arrays(rng, program)
    directions = [draw(rng, o) for o, m in zip(program.operands, mask, strict=True) if m]
    tangents = evaluate(jvp(program, mask), [*operands, *directions])
    weights = [rng.normal(size=np.shape(t)) for t in tangents]
    back = vjp(program, [True] * len(program.results), mask)
    cotangents = evaluate(back, [*operands, *weights])
    scale = sum(float(np.sum(abs(a * b))) for a, b in zip(weights, tangents, strict=True))
    assert abs(dot(weights, tangents) - dot(cotangents, directions)) < 1e-12 * scale
    floats = [operand for operand, m in zip(operands, mask, strict=True) if m]
    for operand, cotangent in zip(floats, cotangents, strict=True):
        assert np.shape(cotangent) == np.shape(operand)


def test_reverse_mode_of_random_programs_is_the_transpose() -> None:
    compared = 0
    for number in range(400):
        program = random_call(number, steps_of(number)).program
        mask = floating(program)
        if not any(mask):
            continue
        rng = np.random.default_rng(number)
        operands = arrays(rng, program)
        directions = [draw(rng, o) for o, m in zip(program.operands, mask, strict=True) if m]
        tangents = evaluate(jvp(program, mask), [*operands, *directions])
        weights = [rng.normal(size=np.shape(t)) for t in tangents]
        back = vjp(program, [True] * len(program.results), mask)
        cotangents = evaluate(back, [*operands, *weights])
        pairs = [*zip(weights, tangents, strict=True), *zip(cotangents, directions, strict=True)]
        scale = sum(float(np.sum(abs(a * b))) for a, b in pairs)
        if not 1e-3 < scale < 1e6:  # infinite, NaN, or constant
            continue
        compared += 1
        difference = dot(weights, tangents) - dot(cotangents, directions)
        assert abs(difference) < 1e-9 * scale, f"random_call({number}):\n{program}"
    assert compared > 100


@named
def test_what_is_not_wanted_is_not_computed(op: Any) -> None:
    program = program_of(op)
    mask = floating(program)
    given = [True] * len(program.results)
    for position in np.flatnonzero(mask):
        only = [i == position for i in range(len(mask))]
        alone = vjp(program, given, only)
        assert len(alone.results) == 1
        assert len(alone.nodes) <= len(vjp(program, given, mask).nodes)


def test_kept_values_are_read_and_give_the_same(rng: np.random.Generator) -> None:
    program = trace(declared(ops.rms_norm, keep=("r",)), [True, True], {"eps": 1e-6})
    node = dict(program.named)["r"]
    again = vjp(program, [True], [True, True])
    saved = vjp(program, [True], [True, True], kept=[node])
    assert "rsqrt" in {n.operation for n in again.nodes}
    assert "rsqrt" not in {n.operation for n in saved.nodes}
    x, weight, cotangent = (
        draw(rng, operand) for operand in (*program.operands, program.operands[0])
    )
    r = 1 / np.sqrt((x * x).mean(-1) + 1e-6)
    for one, other in zip(
        evaluate(again, [x, weight, cotangent]),
        evaluate(saved, [x, weight, r, cotangent]),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_stopped_gradients(rng: np.random.Generator) -> None:
    from bridge import lang as bl

    def op(x: bl.Full):
        return x * bl.stop_gradient(bl.max(x) + x)

    program = program_of(op)
    x, g = rng.normal(size=(2, 3, 5))
    factor = x.max(-1, keepdims=True) + x
    np.testing.assert_array_equal(evaluate(program, [x])[0], x * factor)
    for derivative in (vjp(program, [True], [True]), jvp(program, [True])):
        np.testing.assert_array_equal(evaluate(derivative, [x, g])[0], g * factor)


def test_where_sends_zeros_to_what_was_not_chosen() -> None:
    from bridge import lang as bl

    def op(x: bl.Full, hidden: bl.Mask):
        return bl.where(hidden, 0.0, bl.log(x) * 2.0)

    program = program_of(op)
    back = vjp(program, [True], [True, False])
    x = np.array([[1.0, -1.0, 0.0, np.nan, 4.0]])
    hidden = np.array([False, True, True, True, False])
    (found,) = evaluate(back, [x, hidden, np.ones_like(x)])
    # log' is infinite or NaN there.
    np.testing.assert_array_equal(found, [[2.0, 0.0, 0.0, 0.0, 0.5]])


def test_what_counts_in_one_column_is_added_there() -> None:
    from bridge import lang as bl

    def op(x: bl.Full, labels: bl.PerRow[int]):
        own = bl.sum(bl.where(bl.column() == labels, x, -0.0))
        return bl.sum(x * -0.0) + bl.max(x) + own

    program = program_of(op)
    back = vjp(program, [True], [True, False])
    x, labels = np.array([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]]), np.array([1, 0])
    (found,) = evaluate(back, [x, labels, np.array([7.0, 8.0])])
    np.testing.assert_array_equal(found, [[0.0, 7.0, 7.0], [16.0, 0.0, 0.0]])
    np.testing.assert_array_equal(np.signbit(found), [[True, False, False], [False, True, True]])


# Choices whose other branch has an infinite or NaN derivative: x, and the first derivative.
CHOICES: dict[str, tuple[Any, Any, Any]] = {
    "log": (lambda bl, x: bl.where(x > 0, bl.log(x), 0.0), [-1.0, 0, 2], [0.0, 0, 0.5]),
    "sqrt": (lambda bl, x: bl.where(x > 0, bl.sqrt(x), 0.0), [-1.0, 0, 4], [0.0, 0, 0.25]),
    "division": (lambda bl, x: bl.where(x == 0, 0.0, 1 / x), [-1.0, 0, 2], [-1.0, 0, -0.25]),
    "entropy": (lambda bl, x: bl.where(x > 0, x * bl.log(x), 0.0), [0.0, 1, 1], [0.0, 1, 1]),
    "overflow": (lambda bl, x: bl.where(x < 10, bl.exp(x), x), [0.0, 20, 1e4], [1.0, 1, 1]),
    "minimum": (lambda bl, x: bl.minimum(bl.exp(x), 1.0), [-1e4, 20, 1e4], [0.0, 0, 0]),
    "maximum": (lambda bl, x: bl.maximum(bl.log(x), -1.0), [0.0, 1, 0.01], [0.0, 1, 0]),
    "nested": (
        lambda bl, x: bl.where(x > 0, bl.where(x < 1e3, bl.log(x * x), x), 0.0),
        [0.0, 2, 1e4],
        [0.0, 1, 1],
    ),
    "row": (
        lambda bl, x: x * bl.where(bl.sum(x) > 0, 1 / bl.sum(x), 0.0),
        [1.0, -1, 0],
        [0.0, 0, 0],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_between_numbers_and_what_has_no_finite_derivative(name: str) -> None:
    from bridge import lang as bl

    choose, x, expected = CHOICES[name]

    def op(x: bl.Full):
        return choose(bl, x)

    first = vjp(program_of(op), [True], [True])
    numbers, ones = np.array([x]), np.ones((1, 3))
    (found,) = evaluate(first, [numbers, ones])
    np.testing.assert_allclose(found, [expected])
    # Second order, and forward over reverse: finite and equal.
    second = vjp(first, [True], [True, False])
    (pulled,) = evaluate(second, [numbers, ones, ones])
    (pushed,) = evaluate(jvp(first, [True, False]), [numbers, ones, ones])
    np.testing.assert_allclose(pulled, pushed)
    assert np.isfinite(pulled).all()


def test_the_gradient_of_max_goes_to_the_first_of_equal_ones() -> None:
    from bridge import lang as bl

    def op(x: bl.Full):
        return bl.max(x)

    back = vjp(program_of(op), [True], [True])
    x = np.array([[1.0, 3.0, 3.0, -np.inf]])
    (found,) = evaluate(back, [x, np.array([2.0])])
    np.testing.assert_array_equal(found, [[0.0, 2.0, 0.0, 0.0]])


@pytest.mark.parametrize("kind", ["tanh", "none", "sigmoid"])
def test_gelu_to_the_fifth_order(kind: Any) -> None:
    """Each order is compared with differences of the order below, a program by itself."""
    from bridge import lang as bl

    def op(x: bl.Full):
        return bl.gelu(x, kind)

    program = program_of(op)
    x = np.linspace(-6, 6, 241)[None]
    for _ in range(5):
        derivative = jvp(program, [True] + [False] * (len(program.operands) - 1))
        ones = [np.ones_like(x)] * (len(program.operands) - 1)
        step = 1e-6
        (found,) = evaluate(derivative, [x, *ones, np.ones_like(x)])
        (above,), (below,) = (evaluate(program, [x + s, *ones]) for s in (step, -step))
        np.testing.assert_allclose(found, (above - below) / (2 * step), rtol=1e-6, atol=3e-8)
        program = derivative


def test_cotangents_are_added_in_the_documented_order() -> None:
    """The last use comes first; terms per element are summed along the row before terms per row."""
    from bridge import lang as bl

    def op(x: bl.Full, r: bl.PerRow):
        a = bl.exp(x)
        b = bl.tanh(x)
        return a * r + b * r, r * r

    program = vjp(program_of(op), [True, True], [False, True])
    lines = [
        line.split("  per row")[0].split("  full")[0].strip() for line in str(program).split("\n")
    ]
    assert lines == [
        "vjp of op(x: Full, r: PerRow, cotangent of result 0: Full, cotangent of result 1: PerRow)",
        "phase 0",
        "a = exp(x)",
        "b = tanh(x)",
        "c = cotangent of result 1 * r",
        "d = 2.0 * c",
        "e = cotangent of result 0 * b",
        "f = cotangent of result 0 * a",
        "g = e + f",
        "h = sum(g)",
        "phase 1",
        "i = h + d",
        "-> cotangent of r: i (PerRow)",
    ]


def test_tangents_are_added_from_left_to_right() -> None:
    from bridge import lang as bl

    def op(x: bl.Full, y: bl.Full, z: bl.Full):
        return bl.fma(x, y, z)

    lines = [
        line.split("  full")[0].strip() for line in str(jvp(program_of(op), [True] * 3)).split("\n")
    ]
    assert lines[2:-1] == [
        "a = y * tangent of x",
        "b = x * tangent of y",
        "c = a + b",
        "d = c + tangent of z",
    ]


def test_log_softmax_against_jax(rng: np.random.Generator) -> None:
    """JAX is an independent reference from a declaration to its second derivative."""
    import jax
    import jax.numpy as jnp

    x, g, t = (rng.normal(size=(5, 9)) for _ in range(3))
    back = vjp(program_of(ops.log_softmax), [True], [True])
    second = jvp(back, [True, False])
    with jax.enable_x64(True):
        pulled = lambda x: jax.vjp(jax.nn.log_softmax, x)[1](jnp.asarray(g))[0]  # noqa: E731
        expected, tangent = jax.jvp(pulled, (jnp.asarray(x),), (jnp.asarray(t),))
    np.testing.assert_allclose(evaluate(back, [x, g])[0], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(evaluate(second, [x, g, t])[0], tangent, rtol=1e-12, atol=1e-13)
