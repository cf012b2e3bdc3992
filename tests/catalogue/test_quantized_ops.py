"""Norms and gated units with `quantize=`: the bytes of the op followed by `quantize`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from bridge import Quantization
from bridge.catalogue.quantization import FORMATS
from tests.catalogue.refusals import Refusal, assert_refused
from tests.catalogue.test_quantization import bytes_of

KINDS = [
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("bfloat16", "float64"),
    ("float16", "float32"),
]
SHAPE, D = (2, 3, 256), 256


def drawn(rng: Any, shape: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(rng.normal(size=shape)).to(getattr(torch, dtype))


def assert_bytes(call: Any, name: str, arrays: dict[str, Any], has_sum: bool = False) -> None:
    """Compares call(ops, arrays, quantization) with two calls, and with JAX."""
    quantization = Quantization(name)
    apart = call(bridge.torch, arrays, None)
    y, *sums = apart if has_sum else (apart,)
    expected = (*bridge.torch.quantize(y, quantization), *sums)
    found = call(bridge.torch, arrays, quantization)
    with jax.enable_x64(True):
        of_jax = {k: None if t is None else bridge.to_jax(t, copy=True) for k, t in arrays.items()}
        others = call(bridge.jax, of_jax, quantization)
    assert len(found) == len(others) == len(expected)
    for own, other, right in zip(found, others, expected, strict=True):
        assert own.dtype == right.dtype
        assert own.shape == other.shape == right.shape
        assert not own.requires_grad
        np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
        np.testing.assert_array_equal(bytes_of(other), bytes_of(right))


@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_norms(norm: str, name: str, kinds: Any, has_weight: bool, has_sum: bool, rng: Any) -> None:
    dtype, of_weight = kinds
    arrays: dict[str, Any] = {"x": drawn(rng, SHAPE, dtype)}
    if has_weight:
        arrays["weight"] = drawn(rng, (D,), of_weight)
    if has_sum:
        arrays["residual"] = drawn(rng, SHAPE, dtype)
    if norm == "layer_norm":
        arrays["bias"] = drawn(rng, (D,), of_weight) if has_weight else None

    def call(ops: Any, arrays: Any, quantize: Any) -> Any:
        own = {"offset": 1.0} if norm == "rms_norm" and has_weight else {}
        return getattr(ops, norm)(**arrays, eps=1e-3, **own, quantize=quantize)

    assert_bytes(call, name, arrays, has_sum)


@pytest.mark.parametrize("layout", ["packed", "interleaved", "apart"])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("has_others", [False, True])
def test_gated_units(name: str, kinds: Any, layout: str, has_others: bool, rng: Any) -> None:
    dtype, of_weight = kinds
    arrays: dict[str, Any] = {"gate": drawn(rng, SHAPE, dtype)}
    if layout == "apart":
        arrays["up"] = drawn(rng, SHAPE, dtype)
    if has_others:
        arrays["bias"] = drawn(rng, (D,), of_weight)
        arrays["weight"] = drawn(rng, (*SHAPE[:-1], 1), dtype)

    def glu(ops: Any, arrays: Any, quantize: Any) -> Any:
        static = {"limit": 1.5, "interleaved": layout == "interleaved", "quantize": quantize}
        return ops.glu(**arrays, activation="gelu_tanh", **static)

    assert_bytes(glu, name, arrays)
    if layout != "interleaved":
        assert_bytes(lambda ops, a, q: ops.swiglu(**a, quantize=q), name, arrays)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_squared_relu(name: str, kinds: Any, rng: Any) -> None:
    for weight in (None, drawn(rng, SHAPE[:-1], kinds[1]), drawn(rng, (*SHAPE[:-1], 1), kinds[0])):
        arrays = {"x": drawn(rng, SHAPE, kinds[0]), "weight": weight}
        assert_bytes(lambda ops, a, q: ops.squared_relu(**a, quantize=q), name, arrays)


def test_transforms(rng: Any) -> None:
    """torch.compile, vmap and jit; operands that want a gradient get none."""
    x, weight = drawn(rng, (3, 4, 64), "float32"), drawn(rng, (64,), "float32").requires_grad_()
    for name in ("int8_row", "mxfp8"):
        q = Quantization(name)

        def norm(x: Any, ops: Any = bridge.torch, w: Any = weight, q: Any = q) -> Any:
            return ops.rms_norm(x, w, quantize=q)

        def gate(x: Any, ops: Any = bridge.torch, w: Any = None, q: Any = q) -> Any:
            return ops.swiglu(x, x + 1, quantize=q)

        for call in (norm, gate):
            expected = call(x)
            torch.compiler.reset()
            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            array = jnp.asarray(x.numpy())
            w = jnp.asarray(weight.detach().numpy())

            def of_jax(x: Any, call: Any = call, w: Any = w) -> Any:
                return call(x, bridge.jax, w)

            results = compiled(x), torch.func.vmap(call)(x)
            for found in (*results, jax.jit(of_jax)(array), jax.vmap(of_jax)(array)):
                for own, right in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
            assert not any(each.requires_grad for each in expected)


Q = Quantization("mxfp8")
REFUSALS: dict[str, Refusal] = {
    "a word": (lambda m, a: m.rms_norm(a(2, 64), quantize="mxfp8"), TypeError, "quantize is 'mx"),
    "blocks of a norm": (
        lambda m, a: m.layer_norm(a(2, 48), quantize=Q),
        ValueError,
        r"x has shape \[2, 48\], expected a last dimension that is a multiple of 32",
    ),
    "a weight": (
        lambda m, a: m.rms_norm(a(2, 64), a(3), quantize=Q),
        ValueError,
        r"weight has shape \[3\], expected \[64\]",
    ),
    "an offset": (
        lambda m, a: m.rms_norm(a(2, 64), offset=1.0, quantize=Q),
        ValueError,
        "offset is 1.0 and weight is None",
    ),
    "blocks of a gate": (
        lambda m, a: m.swiglu(a(2, 48), quantize=Q),
        ValueError,
        r"swiglu: gate has shape \[2, 48\], expected a last dimension that is twice a multiple",
    ),
    "up": (
        lambda m, a: m.swiglu(a(2, 64), a(2, 32), quantize=Q),
        ValueError,
        r"up has shape \[2, 32\], expected \[2, 64\]",
    ),
    "a bias": (
        lambda m, a: m.swiglu(a(2, 64), a(2, 64), a(3), quantize=Q),
        ValueError,
        r"bias has shape \[3\], expected \[64\]",
    ),
    "a factor": (
        lambda m, a: m.squared_relu(a(2, 64), a(3), quantize=Q),
        ValueError,
        r"weight has shape \[3\], expected \[2\]",
    ),
    "packed blocks": (
        lambda m, a: m.swiglu(a(2, 64), blocks=2, quantize=Q),
        ValueError,
        "blocks is 2 and quantize is given",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    assert_refused(REFUSALS[name])


def test_out_is_refused() -> None:
    x = torch.ones(2, 64)
    for call in (bridge.torch.rms_norm, bridge.torch.swiglu, bridge.torch.squared_relu):
        with pytest.raises(ValueError, match="out is given with"):
            call(x, out=x, quantize=Q)
