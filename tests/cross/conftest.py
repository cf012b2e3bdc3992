"""Shared parts of the tests of functions used in the other framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
import torch


@pytest.fixture
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def draw(rng: np.random.Generator) -> Callable[..., torch.Tensor]:
    def draw(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> torch.Tensor:
        values = rng.standard_normal(shape)
        if dtype.is_complex:
            values = values + 1j * rng.standard_normal(shape)
        return torch.tensor(values, dtype=dtype, requires_grad=grad)

    return draw
