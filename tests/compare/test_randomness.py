"""A report says where random numbers are drawn, and calls dropout only what zeros or scales."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bridge
from tests.compare.language import params_of

torch.manual_seed(0)
LAYER = nn.Linear(6, 6)
P = params_of(LAYER)
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
KEY = jax.random.key(0)


def port(x: Any) -> Any:
    return x @ P["weight"].T + P["bias"]


def kept(x: Any) -> Any:
    return jax.random.bernoulli(KEY, 0.8, x.shape)


JAX: dict[str, Any] = {
    "select": lambda x: jnp.where(kept(port(x)), port(x) / 0.8, 0),
    "product": lambda x: port(x) * kept(port(x)) / 0.8,
    "path": lambda x: x + port(x) * (jax.random.uniform(KEY, (len(x), 1)) < 0.8),
}
JAX_OTHER: dict[str, Any] = {
    "noise": lambda x: port(x) + 0.1 * jax.random.normal(KEY, x.shape),
    "scaled noise": lambda x: port(x) + P["bias"] * jax.random.normal(KEY, x.shape),
    "unused": lambda x: (port(x), jax.random.normal(KEY, (3,)))[0],
    "token": lambda x: port(x) + jax.random.categorical(KEY, port(x))[:, None],
    "masked position": lambda x: port(x) + jnp.where(kept(x), 1.0, 2.0),
}
TORCH: dict[str, Any] = {
    "dropout": lambda x: F.dropout(LAYER(x), 0.2, True),
    "product": lambda x: LAYER(x) * torch.bernoulli(torch.full_like(x, 0.8)) / 0.8,
    "mask": lambda x: LAYER(x).masked_fill(torch.rand_like(x) < 0.2, 0.0),
    "path": lambda x: x + LAYER(x) * torch.empty(len(x), 1).bernoulli_(0.8).div_(0.8),
}
TORCH_OTHER: dict[str, Any] = {
    "noise": lambda x: LAYER(x) + 0.1 * torch.randn_like(x),
    "normal_": lambda x: LAYER(x) + torch.empty_like(x).normal_(),
    "token": lambda x: LAYER(x) + torch.multinomial(LAYER(x).softmax(-1), 1),
}


@pytest.mark.parametrize("form", JAX)
def test_dropout_in_jax(form: str) -> None:
    report = bridge.compare(LAYER, JAX[form], X)
    (warning,) = report.warnings
    assert "JAX draws random numbers at tests/compare/test_randomness.py:" in warning
    assert "dropout is on, switch it off (deterministic=True)" in warning
    assert report.parts
    assert any("dropout is on" in part.cause for part in report.parts), str(report)


@pytest.mark.parametrize("form", JAX_OTHER)
def test_other_random_numbers_in_jax(form: str) -> None:
    report = bridge.compare(LAYER, JAX_OTHER[form], X)
    (warning,) = report.warnings
    assert warning.startswith("JAX draws random numbers at tests/compare/test_randomness.py:")
    assert "dropout" not in str(report)
    assert bool(report.parts) == (form != "unused"), str(report)


@pytest.mark.parametrize("form", TORCH)
def test_dropout_in_torch(form: str) -> None:
    report = bridge.compare(TORCH[form], port, X)
    (warning,) = report.warnings
    assert "torch draws random numbers at tests/compare/test_randomness.py:" in warning
    assert "dropout is on, switch it off (model.eval())" in warning
    assert report.parts


@pytest.mark.parametrize("form", TORCH_OTHER)
def test_other_random_numbers_in_torch(form: str) -> None:
    report = bridge.compare(TORCH_OTHER[form], port, X)
    (warning,) = report.warnings
    assert warning.startswith("torch draws random numbers at tests/compare/test_randomness.py:")
    assert "dropout" not in str(report)
    assert report.parts


def test_dropout_that_is_off() -> None:
    model = nn.Sequential(nn.Dropout(0.2), LAYER, nn.Dropout(0.2)).eval()
    report = bridge.compare(model, port, X)
    assert not report.warnings
    assert not report.parts, str(report)
