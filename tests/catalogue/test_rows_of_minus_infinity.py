"""A row that is −∞ everywhere has no softmax: its losses, log-probabilities and gradients are NaN.

PyTorch and optax give the same. A row with one finite number has none of these NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec

import bridge
import bridge.jax
import bridge.torch
from bridge import lang as bl
from tests.frameworks import DTYPES, FRAMEWORKS, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
LABELS = np.array([1, 0, 2])

Loss = Callable[[Any, Any, Any], Any]

LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda o, x, n: o.cross_entropy(x, n, reduction="none"),
    "smoothed": lambda o, x, n: o.cross_entropy(x, n, reduction="none", label_smoothing=0.1),
    "z_loss": lambda o, x, n: o.cross_entropy(x, n, reduction="none", z_loss=0.1),
    "token_log_probs": lambda o, x, n: o.token_log_probs(x, n),
    "scaled": lambda o, x, n: o.token_log_probs(x, n, scale=0.5),
    "log_softmax": lambda o, x, n: o.log_softmax(x),
}


def logits(rng: np.random.Generator, dtype: str, columns: int = 5) -> Any:
    """Returns three rows: finite numbers, only −∞, and −∞ beside finite numbers."""
    x = rng.normal(size=(3, columns)).astype(numpy_dtype(dtype))
    x[1] = -np.inf
    x[2, 1] = -np.inf
    return x


def labels_of(own: Any) -> Any:
    return torch.tensor(LABELS) if own.name == "torch" else jnp.asarray(LABELS)


@each
@pytest.mark.parametrize("columns", [5, 1300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient_are_nan(
    own: Any, loss: str, dtype: str, columns: int, rng: Any
) -> None:
    x = logits(rng, dtype, columns)
    value = own.call(lambda x: LOSSES[loss](own.ops, x, labels_of(own)), x)
    g = np.ones(value.shape, value.dtype)
    _, dx = own.vjp(lambda x: LOSSES[loss](own.ops, x, labels_of(own)), [x], g)
    assert np.all(np.isnan(value[1])), value[1]
    assert np.all(np.isnan(dx[1])), dx[1]
    assert not np.any(np.isnan(dx[[0, 2]].astype(np.float64)))
    assert not np.any(np.isnan(value[[0, 2]].astype(np.float64)))


@each
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_ignored_row_is_zero(own: Any, reduction: str, rng: Any) -> None:
    def loss(x: Any) -> Any:
        options = {"reduction": reduction, "ignore_index": 0, "z_loss": 0.1, "label_smoothing": 0.1}
        return own.ops.cross_entropy(x, labels_of(own), **options)

    x = logits(rng, "float32")
    x[2] = rng.normal(size=5)
    value = own.call(loss, x)
    _, dx = own.vjp(loss, [x], np.ones_like(value))
    assert np.all(np.isfinite(value))
    np.testing.assert_array_equal(dx[1], np.zeros(5))
    assert np.all(dx[[0, 2]] != 0)


@each
def test_a_softcap_makes_the_row_finite(own: Any, rng: Any) -> None:
    x = logits(rng, "float32")

    def loss(x: Any) -> Any:
        return own.ops.cross_entropy(x, labels_of(own), reduction="none", softcap=3.0)

    value, dx = own.vjp(loss, [x], np.ones(3, np.float32))
    np.testing.assert_allclose(value[1], np.log(5), rtol=1e-6)
    np.testing.assert_array_equal(np.abs(dx[1]), np.zeros(5))


@each
def test_a_label_of_minus_infinity_has_infinite_loss_and_a_finite_gradient(
    own: Any, rng: Any
) -> None:
    x = rng.normal(size=(1, 5)).astype(np.float32)
    x[0, 1] = -np.inf

    def loss(x: Any) -> Any:
        label = labels_of(own)[:1]
        return own.ops.cross_entropy(x, label, reduction="none")

    value, dx = own.vjp(loss, [x], np.ones(1, np.float32))
    assert value[0] == np.inf
    softmax = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
    softmax[0, 1] -= 1
    np.testing.assert_allclose(dx, softmax, rtol=1e-5)


@each
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_linear_cross_entropy(own: Any, reduction: str, rng: Any) -> None:
    """The bias makes logits of −∞."""
    hidden, weight = (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (5, 4)))
    bias = np.full(5, -np.inf, np.float32)

    def loss(h: Any, w: Any, b: Any) -> Any:
        n = labels_of(own)
        return own.ops.linear_cross_entropy(h, w, n, bias=b, chunk=2, reduction=reduction)

    value = own.call(loss, hidden, weight, bias)
    _, *gradients = own.vjp(loss, [hidden, weight, bias], np.ones_like(value))
    assert np.all(np.isnan(value))
    assert all(np.all(np.isnan(d)) for d in gradients)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_split_vocabulary(devices: int, rng: Any) -> None:
    """A part of −∞ on one device does not make the row NaN; −∞ on all devices does."""
    x = rng.normal(size=(3, 8)).astype(np.float32)
    x[0, : 8 // devices] = -np.inf if devices > 1 else x[0]
    x[1] = -np.inf
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:devices]), ("model",))

    def loss(x: Any) -> Any:
        def of_shard(x: Any) -> Any:
            return bridge.jax.cross_entropy(x, LABELS, axis_name="model", reduction="none")

        specs = PartitionSpec(None, "model")
        split = jax.shard_map(of_shard, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec())
        return split(x)

    value, pull = jax.vjp(jax.jit(loss), jnp.asarray(x))
    dx = np.asarray(pull(jnp.ones(3, jnp.float32))[0])
    whole, pull = jax.vjp(
        lambda x: bridge.jax.cross_entropy(x, LABELS, reduction="none"), jnp.asarray(x)
    )
    np.testing.assert_array_equal(value, whole)
    np.testing.assert_array_equal(dx, pull(jnp.ones(3, jnp.float32))[0])
    assert np.all(np.isnan(dx[1]))
    assert not np.any(np.isnan(dx[[0, 2]]))


def test_logsumexp_of_the_row_is_minus_infinity_without_a_gradient() -> None:
    x = torch.full((1, 4), -torch.inf, requires_grad=True)
    value = bridge.torch.logsumexp(x)
    (dx,) = torch.autograd.grad(value.sum(), x)
    assert value.item() == -torch.inf
    assert torch.equal(dx, torch.zeros(1, 4))


def test_log_softmax_of_a_declaration() -> None:
    @bridge.op
    def chosen(x: bridge.Full) -> Any:
        return bl.log_softmax(x)

    x = torch.full((1, 4), -torch.inf, requires_grad=True)
    y = chosen.torch(x)
    (dx,) = torch.autograd.grad(y[:, 1].sum(), x)
    assert torch.all(torch.isnan(y))
    assert torch.all(torch.isnan(dx))
