"""A part is measured at the value of its line, although an inner step lies near that one too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bridge


class Model(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6)
        nn.init.normal_(self.first.weight, std=6**-0.5)
        nn.init.zeros_(self.first.bias)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(x), approximate=self.approximate))


@pytest.mark.parametrize("scale", [0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("here", ["none", "tanh"])
def test_gelu_of_small_numbers_is_wrong_once(here: str, scale: float) -> None:
    # There erf(x / √2) and its argument differ by 2 percent.
    torch.manual_seed(0)
    model = Model(here)
    p = {name: jnp.asarray(value.detach().numpy()) for name, value in model.named_parameters()}
    x = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32) * np.float32(scale)

    def port(x: Any) -> Any:
        y = x @ p["first.weight"].T + p["first.bias"]
        y = jax.nn.gelu(y, approximate=here == "none")
        return y @ p["last.weight"].T + p["last.bias"]

    report = bridge.compare(model, port, x)
    (part,) = report.parts
    assert part.count == 1, str(report)
    assert part.error < 1e-3, str(report)
    assert part.cause.startswith("GELU"), str(report)
