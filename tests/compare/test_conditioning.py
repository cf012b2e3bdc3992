"""A variance of JAX that loses digits in float32 is in the notes with its line."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import bridge

torch.manual_seed(0)
MODEL = torch.nn.LayerNorm(12)
with torch.no_grad():
    MODEL.weight.normal_()
    MODEL.bias.normal_()
WEIGHT, BIAS = (jnp.asarray(p.detach().numpy()) for p in (MODEL.weight, MODEL.bias))
ROWS = np.random.default_rng(0).standard_normal((7, 12)).astype(np.float32)
WORDS = "times as large as the result"


def port(x: Any, form: str) -> Any:
    mean = x.mean(-1, keepdims=True)
    if form == "fast":
        variance = jnp.mean(x * x, -1, keepdims=True) - mean * mean
    elif form == "power":
        variance = jnp.maximum(jnp.mean(x**2, -1, keepdims=True) - mean**2, 0)
    elif form == "var":
        variance = x.var(-1, keepdims=True)
    else:
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * WEIGHT + BIAS


def noted(model: Any, function: Any, x: np.ndarray) -> list[str]:
    report = bridge.compare(model, function, x)
    assert not report.parts, str(report)
    return [note for note in report.notes if WORDS in note]


@pytest.mark.parametrize("mean", [40.0, 300.0, 1000.0, -5000.0])
@pytest.mark.parametrize("form", ["fast", "power"])
def test_a_fast_variance_with_a_large_mean_is_named(form: str, mean: float) -> None:
    x = ROWS + np.float32(mean)
    report = bridge.compare(MODEL, lambda x: port(x, form), x)
    assert report.own_error > 1e-4  # float32 shows it, and the report says why
    notes = noted(MODEL, jax.jit(lambda x: port(x, form)), x)
    assert len(notes) == 1, report.notes
    source, _, line = notes[0].split(" ")[0].rpartition(":")
    assert source.endswith("tests/compare/test_conditioning.py")
    with open(__file__) as file:
        assert "variance =" in file.read().splitlines()[int(line) - 1]


@pytest.mark.parametrize("form", ["two passes", "var"])
def test_two_passes_are_not_named(form: str) -> None:
    assert not noted(MODEL, lambda x: port(x, form), ROWS + np.float32(300))


def test_a_fast_variance_with_a_small_mean_is_not_named() -> None:
    assert not noted(MODEL, lambda x: port(x, "fast"), ROWS)


def test_a_difference_that_torch_takes_too_is_not_named() -> None:
    def fast(x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + 1e-5) * MODEL.weight + MODEL.bias

    assert not noted(fast, lambda x: port(x, "fast"), ROWS + np.float32(300))


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_layer_of_flax(is_fast: bool) -> None:
    layer = nnx.LayerNorm(12, epsilon=1e-5, use_fast_variance=is_fast, rngs=nnx.Rngs(0))
    layer.scale.set_value(WEIGHT)
    layer.bias.set_value(BIAS)
    notes = noted(MODEL, layer, ROWS + np.float32(300))
    assert len(notes) == is_fast, notes
    assert all("flax" in note for note in notes)
