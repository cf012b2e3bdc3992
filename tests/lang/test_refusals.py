"""Errors for common mistakes in declarations name the line and the correct code."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
import bridge.jax
import bridge.torch
from bridge import lang as bl

# A type checker cannot check code that is meant to be wrong.
lang: Any = bl


@bridge.op
def doubled(x: bridge.Full):
    return x * 2.0


def wrapped_by_the_user(x: Any) -> Any:
    return x.exp()


MISTAKES: list[tuple[str, Callable[..., Any], str]] = [
    (f"x.{name}", lambda x, y, name=name: getattr(x, name), f"a value has no {name}: {instead}")
    for name, instead in (
        ("sum", "write bl.sum(x)"),
        ("mean", "write bl.mean(x)"),
        ("exp", "write bl.exp(x)"),
        ("clamp", "write bl.clip(x, low, high)"),
        ("relu", "write bl.relu(x)"),
        ("cos", "write bl.cos(x)"),
        ("tan", "write bl.sin(x) / bl.cos(x)"),
        ("shape", "bl.columns() is the length of a row"),
        ("dtype", "a declaration is for all dtypes: bl.rounded(x, dtype)"),
        ("T", "an op computes on whole rows"),
        ("foo", "values have Python's operators and the functions of bridge.lang"),
    )
]
MISTAKES += [
    ("torch.exp", lambda x, y: torch.exp(x), "use those of bridge.lang"),
    ("torch.where", lambda x, y: torch.where(x > 0, x, 0.0), "PyTorch's functions"),
    ("torch.nn", lambda x, y: torch.nn.functional.softmax(x, -1), "PyTorch's functions"),
    ("a tensor @", lambda x, y: torch.ones(3) @ x, "PyTorch's functions"),
    ("a tensor *", lambda x, y: torch.ones(3) * x, "arrays come in as operands"),
    ("jnp.exp", lambda x, y: jnp.exp(x), "JAX's functions"),
    ("jnp.sum", lambda x, y: jnp.sum(x), "JAX's functions"),
    ("jnp.where", lambda x, y: jnp.where(x > 0, x, 0.0), "use those of bridge.lang"),
    ("an array *", lambda x, y: jnp.ones(3) * x, "arrays come in as operands"),
    ("np.exp", lambda x, y: np.exp(x), "NumPy's functions"),
    ("np.sum", lambda x, y: np.sum(x), "NumPy's functions"),
    ("np.mean", lambda x, y: np.mean(x), "NumPy's functions"),
    ("np.where", lambda x, y: np.where(x > 0, x, 0.0), "NumPy's functions"),
    ("math.exp", lambda x, y: math.exp(x), "compute with it as it is"),
    ("//", lambda x, y: x // 2, "nothing is rounded to integers"),
    ("r//", lambda x, y: 2 // x, "nothing is rounded to integers"),
    ("%", lambda x, y: x % 2, "even and odd columns as Pairs"),
    ("divmod", lambda x, y: divmod(x, 2), "nothing is rounded to integers"),
    ("round", lambda x, y: round(x), "nothing is rounded to integers"),
    ("2**x", lambda x, y: 2.0**x, "write bl.exp2(x), or bl.exp(p * bl.log(base))"),
    ("x**y", lambda x, y: x**y, "or bl.exp(p * bl.log(x))"),
    ("@", lambda x, y: x @ y, "bl.sum(x * y) is the product"),
    ("[]", lambda x, y: x[0], "bl.column() == k"),
    ("[:]", lambda x, y: x[:, 1:], "bl.column() == k"),
    ("[]=", lambda x, y: x.__setitem__(0, 1.0), "a value cannot be written to"),
    ("in", lambda x, y: 1.0 in x, "bl.where(x == k, 1.0, 0.0)"),
    ("^", lambda x, y: (x > 0) ^ (y > 0), "write (a | b) & ~(a & b)"),
    ("len", lambda x, y: len(x), "bl.columns()"),
    ("float", lambda x, y: float(x), "compute with it as it is"),
    ("and", lambda x, y: x and y, "bl.where(condition, a, b)"),
    ("max", lambda x, y: max(x, y), "bl.where(condition, a, b)"),
    ("bl.tan", lambda x, y: lang.tan(x), "bridge.lang has no tan: write bl.sin(x) / bl.cos(x)"),
    ("bl.relu6", lambda x, y: lang.relu6(x), "write bl.clip(x, 0.0, 6.0)"),
    ("bl.clip", lambda x, y: lang.clip(x), "clip has neither low nor high"),
    ("bl.softmax", lambda x, y: lang.softmax(x), "write bl.exp(bl.log_softmax(x))"),
    ("bl.amin", lambda x, y: lang.amin(x), "write bl.min(x)"),
    ("bl.expm", lambda x, y: lang.expm(x), "bridge.lang has no expm: it has expm1, exp"),
    ("bl.zeta", lambda x, y: lang.zeta(x), "bridge.lang has no zeta: it has abs, argmax"),
    ("axis", lambda x, y: lang.mean(x, axis=-1), "takes no axis: write bl.mean(x)"),
    ("min of two", lambda x, y: lang.min(x, y), "takes no axis: write bl.min(x)"),
    ("-1", lambda x, y: lang.logsumexp(x, -1), "takes no axis: write bl.logsumexp(x)"),
    ("keepdims", lambda x, y: lang.sum(x, keepdims=True), "takes no axis: write bl.sum(x)"),
    ("max of two", lambda x, y: lang.max(x, y), "bl.maximum(x, y) is the larger one"),
    ("an op", lambda x, y: doubled(x), "doubled is an op, which is called with arrays"),
    ("an op's .torch", lambda x, y: doubled.torch(x), "PyTorch's functions"),
    ("an op's .jax", lambda x, y: doubled.jax(x), "JAX's functions"),
    ("an op's .reference", lambda x, y: doubled.reference(x), "NumPy's functions"),
    ("bridge.torch", lambda x, y: bridge.torch.bias_gelu(x, y), "PyTorch's functions"),
    ("bridge.jax", lambda x, y: bridge.jax.bias_gelu(x, y), "JAX's functions"),
    ("column_sum.sum", lambda x, y: lang.column_sum(x).sum(), "can only be returned"),
    ("column_sum @", lambda x, y: lang.column_sum(x) @ y, "can only be returned"),
    ("10**400", lambda x, y: x * 10**400, "a whole number of 1329 bits is no float64"),
    ("fraction", lambda x, y: x * Fraction(10**400), "a Fraction beyond 1.8e308 is no float64"),
    ("np.exp of column_sum", lambda x, y: np.exp(lang.column_sum(x)), "can only be returned"),
]


@pytest.mark.parametrize(
    ("mistake", "words"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_usual_mistake(mistake: Callable[..., Any], words: str) -> None:
    line = mistake.__code__.co_firstlineno

    def op(x: bridge.Full, y: bridge.Full):
        return mistake(x, y)

    with pytest.raises(bl.DeclarationError, match=re.escape(words)) as caught:
        bridge.op(op)
    # The line is in this file, not in the function that got the value.
    assert re.match(rf".*, line {line} of {re.escape(__file__)}: `", str(caught.value))


@pytest.mark.parametrize("part", ["x[0]", "len(x)", "x >= 0.0", "x @ x", "x.sum()", "abs(x)"])
def test_halves_that_were_not_taken_apart(part: str) -> None:
    def op(x: bridge.Halves):
        return eval(part)

    with pytest.raises(bl.DeclarationError, match="first, second = x"):
        bridge.op(op)


def test_the_line_of_a_function_that_the_declaration_calls() -> None:
    def op(x: bridge.Full):
        return wrapped_by_the_user(x)

    with pytest.raises(bl.DeclarationError, match=r"wrapped_by_the_user, line .*: `return x\.exp"):
        bridge.op(op)


def test_what_is_not_there_can_be_asked_for() -> None:
    found = []

    def op(x: bridge.Halves):
        first, second = x
        found.extend(hasattr(value, "foo") for value in (x, first, bl.column_sum(first)))
        found.append(getattr(first, "shape", None) is not None)
        copy.copy(first)
        return first * second

    bridge.op(op)
    assert found == [False] * 4
    assert not hasattr(bl, "relu6")
    with pytest.raises(ImportError):
        exec("from bridge.lang import relu6")


def test_every_function_of_one_value_is_suggested_for_the_method_of_its_name() -> None:
    from bridge.lang.suggestions import instead_of_attribute

    takes_one = [
        *(
            "abs",
            "argmax",
            "argmin",
            "column_sum",
            "erf",
            "exp",
            "exp2",
            "expm1",
            "gelu",
            "log",
            "log1p",
        ),
        *(
            "log_softmax",
            "logsumexp",
            "max",
            "mean",
            "min",
            "relu",
            "rsqrt",
            "sigmoid",
            "silu",
            "softplus",
        ),
        *("sqrt", "sum", "tanh"),
    ]
    for name in takes_one:
        assert callable(getattr(bl, name))
        assert f"write bl.{name}(x)" in instead_of_attribute(name)


def test_an_error_of_the_users_own_stays() -> None:
    def op(x: bridge.Full):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$") as caught:
        bridge.op(op)
    assert not isinstance(caught.value, bl.DeclarationError)


@pytest.mark.parametrize("name", ["device", "dtypes", "arch", "quiet"])
def test_static_parameters_that_compile_and_check_could_not_take(name: str) -> None:
    scope: dict[str, Any] = {"bridge": bridge}
    exec(f"def scaled(x: bridge.Full, *, {name}: float = 2.0):\n    return x * {name}", scope)
    with pytest.raises(bl.DeclarationError, match=f"static parameter {name} has the name of"):
        bridge.op(scope["scaled"])


@pytest.mark.parametrize("name", ["<lambda>", "an op", "lambda", ""])
def test_names_that_no_function_could_have(name: str) -> None:
    def op(x: bridge.Full):
        return x

    op.__name__ = name
    with pytest.raises(bl.DeclarationError, match=f"{name!r} is no name"):
        bridge.op(op)


def test_numpys_truth_values_are_conditions() -> None:
    @bridge.op
    def chosen(x: bridge.Full):
        return bl.where(np.bool_(True), x, 2 * x) + bl.where(np.bool_(False), x, 2 * x)

    x = np.arange(6.0).reshape(2, 3)
    assert (chosen.reference(x) == 3 * x).all()
