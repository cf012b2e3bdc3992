"""Values and derivatives equal the float64 reference, to the accuracy of docs/numerics.md.

The reference starts from the op's own inputs by the contract (h = x + bias with one addition in the
arithmetic type, the value of softmax as returned). So the errors are the op's own, without the
conditioning of earlier steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cases import (
    CASES,
    DROPOUTS,
    MIXED,
    BiasDropoutAdd,
    BiasGelu,
    Case,
    Exact,
    Inputs,
    Softmax,
    name_of,
)
from tests.frameworks import DTYPES, EPSILON, FORMS, bits, numpy_dtype

# The smallest positive numbers.
LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
INF, NAN = np.inf, np.nan


def assert_exact(what: str, actual: Any, exact: Exact, dtype: str) -> None:
    """Compares within the allowed error of arithmetic, and one rounding to the dtype."""
    assert actual.dtype == numpy_dtype(dtype), what
    assert actual.shape == exact.values.shape, what
    got, expected = actual.astype(np.float64), exact.values
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(got[special], expected[special], err_msg=what)
    got, expected = got[~special], expected[~special]
    allowed = np.broadcast_to(exact.allowed, special.shape)[~special]
    rounding = 0.5 * EPSILON[dtype] * np.abs(expected) + LEAST[dtype] * (expected != 0)
    tolerance = allowed + rounding
    wrong = ~(np.abs(got - expected) <= tolerance)
    if np.any(wrong):
        place = np.flatnonzero(wrong)[0]
        raise AssertionError(
            f"{what}: {wrong.sum()} of {wrong.size} are off; {got[place]!r}, expected "
            f"{expected[place]!r} within {tolerance[place]:.3g}"
        )


def check(framework: Any, case: Case, inputs: Inputs) -> None:
    """Compares value, gradients, tangent and second order of a case with the reference."""
    got = framework.everything(
        case.function(framework),
        inputs.arguments,
        inputs.cotangent,
        inputs.tangents,
        inputs.directions,
    )
    with np.errstate(all="ignore"):
        exact = case.exact(inputs, got.value)
    own = [name_of(a.dtype) for a in inputs.arguments]
    result = case.result_dtype(own)
    dtypes = [result, result, *own, result, *own, result]
    names = ["value", "value of jvp", *(f"gradient {i}" for i in range(len(own))), "tangent"]
    names += [f"second order {i}" for i in range(len(own))] + ["second order of the cotangent"]
    for what, a, e, dtype in zip(names, got.arrays(), exact.arrays(), dtypes, strict=True):
        assert_exact(what, a, e, dtype)
    np.testing.assert_array_equal(bits(got.value), bits(got.again))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_derivatives(framework: Any, rng: Any, case: Case, dtype: str) -> None:
    check(framework, case, case.draw(rng, dtype))


LENGTHS = [2, 31, 32, 33, 63, 64, 65, 255, 1023, 1024, 1025, 1057, 2047, 2049, 3073, 8193]


@pytest.mark.parametrize("kind", ["plain", "masked", "causal"])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_of_softmax_rows(framework: Any, rng: Any, length: int, kind: str) -> None:
    """Lengths are near the steps, blocks, chunks and buffers of the kernels."""
    mask = (3, length) if kind == "masked" else None
    case = Softmax((3, length), mask, kind == "causal", scale=0.7)
    for dtype in DTYPES:
        check(framework, case, case.draw(rng, dtype))


LONG = 2**18 + 3


@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        ("bfloat16", Softmax((1, LONG), (LONG,), scale=0.7)),
        ("float32", Softmax((1, LONG), (LONG,), scale=0.7)),
        ("float32", Softmax((2, LONG + 1), causal=True, scale=-0.3)),
        ("float64", Softmax((1, LONG), scale=0.7)),
    ],
    ids=str,
)
def test_a_row_longer_than_every_buffer(
    framework: Any, rng: Any, dtype: str, case: Softmax
) -> None:
    check(framework, case, case.draw(rng, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("value", "result"), [(NAN, NAN), (INF, NAN), (-INF, 0.0)])
def test_what_is_not_finite_in_a_long_row(
    framework: Any, rng: Any, dtype: str, value: float, result: float
) -> None:
    """It is seen at the very end of the row; if hidden, it has no effect."""
    case = Softmax((1, LONG), (LONG,))
    inputs = case.draw(rng, dtype)
    (x,) = inputs.arguments
    hidden = case.hidden() != 0
    x[0, hidden] = value
    y = framework.call(case.function(framework), x)
    assert np.all(y[0, hidden] == 0)
    assert np.abs(y.astype(np.float64).sum() - 1) < LONG * LEAST[dtype] + 1e-2
    last = np.flatnonzero(~hidden)[-1]
    x[0, last] = value
    y = framework.call(case.function(framework), x)
    assert np.all(y[0, hidden] == 0)
    np.testing.assert_array_equal(y[0, last], result)
    assert np.isnan(result) == np.all(np.isnan(y[0, ~hidden]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [1, 7, 64, 1000, 4096])
def test_rows_sum_to_one(framework: Any, rng: Any, dtype: str, length: int) -> None:
    case = Softmax((8, length), scale=3.0)
    y = framework.call(case.function(framework), *case.draw(rng, dtype).arguments)
    total = y.astype(np.longdouble).sum(axis=-1)
    assert np.all(np.abs(total - 1) <= 4 * EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_far_from_zero(framework: Any, rng: Any, dtype: str) -> None:
    """Powers of the keys themselves would be infinite, or 0."""
    case = Softmax((401, 40))
    inputs = case.draw(rng, dtype)
    inputs.arguments[0][...] += np.arange(-2000, 2001, 10, numpy_dtype(dtype))[:, None]
    check(framework, case, inputs)


SPECIAL_ROWS = [
    [-INF] * 5,
    [-INF, 1.0, -INF, 2.0, -INF],
    [INF, 0.0, 1.0, -INF, 2.0],
    [0.0, NAN, 1.0, 2.0, 3.0],
    [NAN, INF, -INF, 0.0, 1.0],
    [-INF, -INF, NAN, -INF, -INF],
    [0.0, -0.0, 0.0, -0.0, 0.0],
    [6e4, -6e4, 6e4, -6e4, 0.0],
    [1e-7, -1e-7, 5.9e-8, 0.0, -0.0],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 70, 1030])
@pytest.mark.parametrize("kind", ["plain", "masked", "causal", "negative scale"])
def test_special_rows(framework: Any, rng: Any, dtype: str, length: int, kind: str) -> None:
    """Rows have infinities and NaN, visible or hidden, at either end; some see nothing."""
    shape = (2 * len(SPECIAL_ROWS), length)
    scale = -0.5 if kind == "negative scale" else 0.5
    case = Softmax(shape, shape if kind == "masked" else None, kind == "causal", scale)
    inputs = case.draw(rng, dtype)
    (x,) = inputs.arguments
    for i, row in enumerate(SPECIAL_ROWS):
        x[i, :5] = row
        x[len(SPECIAL_ROWS) + i, -5:] = row
    x[0] = x[len(SPECIAL_ROWS)] = -INF
    check(framework, case, inputs)
    value, dx = framework.vjp(case.function(framework), (x,), inputs.cotangent)
    hidden = ~case.visible()
    assert not np.any(bits(value)[hidden])  # exactly +0
    assert not np.any(dx[hidden])
    if kind != "negative scale":
        assert not np.any(bits(value)[[0, len(SPECIAL_ROWS)]])
        assert not np.any(dx[[0, len(SPECIAL_ROWS)]])


@pytest.mark.parametrize("mask_dtype", ["bool", "uint8"])
@pytest.mark.parametrize("length", [4, 40, 1500])
def test_a_fully_masked_row_is_zero(framework: Any, rng: Any, length: int, mask_dtype: str) -> None:
    """Value and gradient are zero, whatever x and the cotangent are."""
    case = Softmax((3, length), (3, length), mask_dtype=mask_dtype)
    inputs = case.draw(rng, "float32")
    assert np.all(case.hidden()[0])
    for filling in (0.0, INF, NAN, -INF):
        inputs.arguments[0][0] = filling
        inputs.cotangent[0] = filling
        value, dx = framework.vjp(case.function(framework), inputs.arguments, inputs.cotangent)
        assert not np.any(bits(value)[0])
        assert not np.any(dx[0])
        assert np.all(np.isfinite(value))
        assert np.all(np.isfinite(dx))


@pytest.mark.parametrize("case", [c for c in DROPOUTS if c.p > 0 and c.training], ids=str)
def test_what_is_dropped_is_zero_whatever_it_holds(
    framework: Any, rng: Any, case: BiasDropoutAdd
) -> None:
    inputs = case.draw(rng, "float32")
    inputs.arguments[0][...] = rng.choice([NAN, INF, -INF, 1.0], case.shape)
    check(framework, case, inputs)


def strided(rng: np.random.Generator, array: Any) -> Any:
    """Returns the same values in another layout: order of dimensions, gaps, any alignment."""
    order = rng.permutation(array.ndim)
    stored = array.transpose(order)
    steps = rng.integers(1, 4, array.ndim)
    room = np.zeros([n * s + 1 for n, s in zip(stored.shape, steps, strict=True)], array.dtype)
    places = (slice(1, 1 + n * s, s) for n, s in zip(stored.shape, steps, strict=True))
    view = room[tuple(places)]
    view[...] = stored
    return view.transpose(np.argsort(order))


LAID_OUT = [
    BiasGelu((3, 5, 70)),
    Softmax((3, 5, 70), scale=0.7),
    Softmax((3, 5, 70), (5, 70), scale=0.7),
    Softmax((3, 50, 37), causal=True),
    Softmax((3, 4, 5), (3, 1, 5)),
    BiasDropoutAdd((3, 5, 70), 0.3),
    BiasDropoutAdd((3, 5, 70), 0.3, residual=False),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("case", LAID_OUT, ids=str)
def test_strides(framework: Any, rng: Any, case: Case, dtype: str) -> None:
    inputs = case.draw(rng, dtype)
    for _ in range(2):
        arrays = [inputs.arguments, [inputs.cotangent], inputs.tangents, inputs.directions]
        x, (g,), t, v = ([strided(rng, a) for a in group] for group in arrays)
        check(framework, case, Inputs(x, g, t, v))


@pytest.mark.parametrize("case", LAID_OUT, ids=str)
def test_expanded_arrays(framework: Any, rng: Any, case: Case) -> None:
    """Arrays have strides of zero, as in the cotangents of a sum."""
    inputs = case.draw(rng, "float32")

    def expanded(array: Any) -> Any:
        dimension = int(rng.integers(array.ndim))
        return np.broadcast_to(array.take([0], dimension), array.shape)

    g = expanded(inputs.cotangent)
    t, v = ([expanded(a) for a in group] for group in (inputs.tangents, inputs.directions))
    check(framework, case, Inputs(inputs.arguments, g, t, v))
    # Not with `check`: torch itself refuses tangents of expanded tensors.
    x = [expanded(a) for a in inputs.arguments]
    dense = [a.copy() for a in x]
    for one, other in zip(
        framework.vjp(case.function(framework), x, g),
        framework.vjp(case.function(framework), dense, g.copy()),
        strict=True,
    ):
        np.testing.assert_array_equal(bits(one), bits(other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case",
    [
        BiasGelu((6, 50)),
        Softmax((6, 5)),
        Softmax((6, 50), (6, 50)),
        Softmax((6, 50), causal=True),
        BiasDropoutAdd((6, 50), 0.3),
        BiasDropoutAdd((6, 50), 0.3, bias=False, residual=False),
    ],
    ids=str,
)
def test_inputs_are_not_written(framework: Any, rng: Any, case: Case, dtype: str) -> None:
    """The backward pass of one original wrote into the cotangent."""
    inputs = case.draw(rng, dtype)
    given = [framework.array(a.copy()) for a in (*inputs.arguments, inputs.cotangent)]
    framework.vjp(case.function(framework), given[:-1], given[-1])
    framework.jvp(case.function(framework), given[:-1], given[:-1])
    framework.grad_of_vjp(case.function(framework), given[:-1], given[-1], given[:-1])
    for array, before in zip(given, (*inputs.arguments, inputs.cotangent), strict=True):
        np.testing.assert_array_equal(bits(framework.numpy(array)), bits(before))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_limits(framework: Any, dtype: str, form: str) -> None:
    top = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.79e308}
    x = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, top[dtype], -top[dtype], 300.0, -600.0, 800.0, -1e3]
    ).astype(numpy_dtype(dtype))
    g = np.ones_like(x)
    value, dx = framework.vjp(lambda x: framework.ops.bias_gelu(x, approximate=form), (x,), g)
    value, dx = value.astype(np.float64), dx.astype(np.float64)
    large = x.astype(np.float64)
    expected = [0.0, -0.0, np.inf, -0.0, np.nan, large[5], -0.0, 300.0, -0.0, 800.0, -0.0]
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(np.signbit(value[:4]), [False, True, False, True])
    assert np.all(np.signbit(value[[6, 8, 10]]))
    np.testing.assert_array_equal(dx, [0.5, 0.5, 1, 0, np.nan, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(("case", "dtypes"), MIXED, ids=str)
def test_mixed_dtypes(framework: Any, rng: Any, case: Case, dtypes: tuple[str, ...]) -> None:
    check(framework, case, case.draw(rng, *dtypes))
