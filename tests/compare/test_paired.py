"""Values of two models that agree are paired, although tables or the order of rows differ."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bridge
from tests.compare.language import params_of

X = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)


class Model(nn.Module):
    """Has a table that is computed in float32."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(6))
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x * self.table.cos())))


def compared(form: str) -> Any:
    torch.manual_seed(0)
    model = Model()
    p = params_of(model)
    model.table.copy_(10000.0 ** -(torch.arange(6) / 6))
    held = jnp.asarray(model.table.numpy())

    def port(x: Any) -> Any:
        table = 10000.0 ** -(jnp.arange(6, dtype=x.dtype) / 6) if form == "table" else held
        order = np.array([3, 0, 6, 2, 5, 1, 4]) if "rows" in form else np.arange(7)
        y = jnp.tanh((x[order] * jnp.cos(table)) @ p["first.weight"].T + p["first.bias"])
        y = y @ p["last.weight"].T + p["last.bias"]
        return y[order if form == "wrong rows" else np.argsort(order)]

    return bridge.compare(model, port, X)


@pytest.mark.parametrize("form", ["", "table", "rows"])
def test_values_of_models_that_agree_are_paired(form: str) -> None:
    report = compared(form)
    assert not report.parts, str(report)
    assert report.paired == report.values, str(report)


def test_rows_in_a_wrong_order_are_a_part() -> None:
    report = compared("wrong rows")
    assert report.parts, str(report)
