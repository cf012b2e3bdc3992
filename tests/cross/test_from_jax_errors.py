"""Errors of from_jax: each names the place, the problem and the remedy."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp

import bridge.torch
from bridge.torch import from_jax

X = torch.ones(3)


@dataclasses.dataclass(frozen=True, eq=False)
class Frozen:
    x: Any


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: from_jax(3), TypeError, "fn has type int, expected a function of JAX arrays"),
        (lambda: from_jax(torch.nn.ReLU()), TypeError, "fn is a torch module, ReLU"),
        (
            lambda: from_jax(jnp.sin, static_argnums="x"),
            TypeError,
            "static_argnums holds 'x' of type str, expected int",
        ),
        (
            lambda: from_jax(jnp.sin, static_argnames=[2]),
            TypeError,
            "static_argnames holds 2 of type int, expected str",
        ),
        (
            lambda: from_jax(lambda a, b: a, static_argnums=2),
            ValueError,
            "static_argnums holds 2, but <lambda> takes 2 positional arguments",
        ),
        (
            lambda: from_jax(lambda a, *, b: a, static_argnames="c"),
            ValueError,
            "static_argnames holds 'c', but <lambda> takes a, b",
        ),
        (
            lambda: from_jax(functools.partial(jax.nn.relu, 3), static_argnums=2),
            ValueError,
            "static_argnums holds 2, but relu takes 0 positional arguments",
        ),
    ],
)
def test_construction(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^from_jax: .*{re.escape(message)}"):
        make()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda f: f({"a": [X, X.double()]}),
            ValueError,
            "from_jax: args[0]['a'][1]: Tensor, shape (3,), strides (1,), dtype torch.float64, "
            "device cpu is float64, which JAX narrows to 32 bits while jax_enable_x64 is off: ",
        ),
        (
            lambda f: f(k=torch.ones(3, dtype=torch.float8_e4m3fnuz)),
            TypeError,
            "from_jax: k: Tensor, shape (3,), strides (1,), dtype torch.float8_e4m3fnuz",
        ),
        (lambda f: f(X.to_sparse()), TypeError, "is torch.sparse_coo, not dense"),
        (lambda f: f(torch.ones(3, device="meta")), ValueError, "is on meta"),
        (
            lambda f: f([X, {1, 2}]),
            TypeError,
            "from_jax: args[0][1] has type set, expected a tensor, an array, a number, or a value "
            "that can be hashed",
        ),
        (
            lambda f: f(torch.nn.ParameterDict({"w": X})),
            TypeError,
            "from_jax: an argument is a torch module, ParameterDict, expected tensors; pass dict(",
        ),
        (
            lambda f: f([Frozen(X)]),
            TypeError,
            "from_jax: an argument is a Frozen, which JAX does not know as a pytree; register it",
        ),
        (
            lambda f: f(torch.linalg.qr(torch.eye(3))),
            TypeError,
            "from_jax: an argument is a linalg_qr that holds tensors, which JAX does not know as",
        ),
        (
            lambda f: f(X, w={"b": torch.nn.UninitializedParameter()}),
            ValueError,
            "from_jax: w['b']: UninitializedParameter, dtype torch.float32, device cpu "
            "is lazy and has no shape yet: run its module once in torch first",
        ),
    ],
)
def test_calls(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call(from_jax(lambda *args, **kwargs: X.shape[0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: [x, "a"], "from_jax: <lambda> returned a leaf of type str, expected arrays of"),
        (
            lambda x: torch.ones(3),
            "from_jax: <lambda> returned a leaf of type Tensor, expected arr",
        ),
        (lambda x: x.astype("int4"), "from_jax: a result: ArrayImpl, shape (3,), dtype int4"),
    ],
)
def test_results(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        from_jax(make)(X)


def test_static_values() -> None:
    f = from_jax(lambda x, n: x, static_argnames="n")
    with pytest.raises(TypeError, match="static argument 1 has type list, expected a value that"):
        f(X, [1])
    with pytest.raises(TypeError, match="static argument 'n' is a tensor"):
        f(X, n=X)


def test_tracers() -> None:
    f = from_jax(jnp.sin)
    with pytest.raises(TypeError, match=r"a leaf is a JAX tracer.*call the JAX function itself"):
        jax.jit(lambda x: f(x))(jnp.ones(3))


def test_errors_of_the_function_pass_through() -> None:
    def wrong(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        from_jax(wrong)(X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        from_jax(lambda x: x if x.sum() > 0 else -x)(X)


def test_no_forward_rule() -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (g,))
    with pytest.raises(TypeError, match="custom_vjp"):
        torch.func.jvp(from_jax(f), (X,), (X,))


def test_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'jax'", name="jax")

    monkeypatch.delitem(vars(bridge.torch), "from_jax", raising=False)
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"bridge.torch.from_jax needs jax, .*pip install"):
        _ = bridge.torch.from_jax
    with pytest.raises(AttributeError, match="has no attribute 'from_jaxx'"):
        _ = bridge.torch.from_jaxx
