"""Running statistics of batch norm: torch's momentum is the weight of the batch, JAX's of the rest.

A line that ends in `# plant: momentum` is where the mistake lies.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch import Tensor, nn

import bridge
from tests.compare.language import params_of
from tests.compare.test_planted_mistakes import planted


class Normalized(nn.Module):
    """A layer in training, which returns its running statistics as well."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.inner, self.bn = nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=momentum)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.tanh(self.bn(self.inner(x)))
        return y, self.bn.running_mean, self.bn.running_var


def port(p: Any, x: Any, keep: float, form: str) -> Any:
    """A port, in which `keep` is the weight of the statistics before."""
    x = x @ p["inner.weight"].T + p["inner.bias"]
    mean, var = x.mean(0), x.var(0)
    y = (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["bn.weight"] + p["bn.bias"]
    unbiased = var * (len(x) / (len(x) - 1))
    old_mean, old_var = p["bn.running_mean"], p["bn.running_var"]
    if form == "weights":
        new_mean = keep * old_mean + (1 - keep) * mean  # plant: momentum
        new_var = keep * old_var + (1 - keep) * unbiased  # plant: momentum
    else:
        new_mean = old_mean + (1 - keep) * (mean - old_mean)  # plant: momentum
        new_var = old_var + (1 - keep) * (unbiased - old_var)  # plant: momentum
    return jnp.tanh(y), new_mean, new_var


def compared(momentum: float, keep: float, form: str, is_jitted: bool = False) -> Any:
    torch.manual_seed(0)
    model = Normalized(momentum)
    params = params_of(model)
    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)

    def function(x: Any) -> Any:
        return port(params, x, keep, form)

    return bridge.compare(model, jax.jit(function) if is_jitted else function, x)


@pytest.mark.parametrize("form", ["weights", "difference"])
@pytest.mark.parametrize("momentum", [0.1, 0.9, 0.03])
def test_the_right_momentum_is_not_accused(momentum: float, form: str) -> None:
    report = compared(momentum, 1 - momentum, form, momentum == 0.9)
    assert not report.parts, str(report)
    assert report.error < 1e-9


@pytest.mark.parametrize("form", ["weights", "difference"])
@pytest.mark.parametrize(("momentum", "keep"), [(0.1, 0.1), (0.9, 0.9), (0.1, 0.99)])
def test_a_wrong_momentum_is_named_at_its_line(momentum: float, keep: float, form: str) -> None:
    report = compared(momentum, keep, form)

    lines = {int(part.jax.source.rpartition(":")[2]) for part in report.parts}
    assert len(report.parts) == len(lines) == 2, str(report)
    assert lines <= planted(sys.modules[__name__], "momentum"), str(report)
    for part in report.parts:
        assert part.torch.code == "y = torch.tanh(self.bn(self.inner(x)))", str(report)
        assert (part.torch.module, part.torch.op) == ("bn", "native_batch_norm")
        cause = f"momentum: the batch has the weight {momentum:g} here, {1 - keep:g} there"
        assert part.cause == cause, str(report)


@pytest.mark.parametrize(("momentum", "count"), [(0.9, 1), (0.1, 2)])
def test_flax(momentum: float, count: int) -> None:
    torch.manual_seed(0)
    model = Normalized(0.1)
    params = params_of(model)
    layer = nnx.BatchNorm(5, momentum=momentum, epsilon=1e-5, rngs=nnx.Rngs(0))
    layer.scale.set_value(params["bn.weight"])
    layer.bias.set_value(params["bn.bias"])
    layer.mean.set_value(params["bn.running_mean"])
    layer.var.set_value(params["bn.running_var"])

    def function(x: Any) -> Any:
        y = layer(x @ params["inner.weight"].T + params["inner.bias"], use_running_average=False)
        return jnp.tanh(y), layer.mean.get_value(), layer.var.get_value()

    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    report = bridge.compare(model, function, x)
    # Flax keeps the variance over n, and torch that over n − 1.
    causes = [part.cause for part in report.parts]
    assert len(causes) == 1, str(report)
    assert report.parts[0].count == count, str(report)
    assert causes[0].startswith("momentum: the batch has the weight 0.1 here" if count > 1 else "")
