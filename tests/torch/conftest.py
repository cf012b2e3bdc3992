"""Fixtures of the torch tests: numbers that are equal in every run, and differ between tests."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

Draw = Callable[..., Tensor]


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Draw:
    """Returns draw(*shape, dtype=float64, grad=False): normal numbers with deviation 3."""
    generator = torch.Generator().manual_seed(zlib.crc32(request.node.name.encode()))

    def tensor(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
        return values.to(dtype).requires_grad_(grad)

    return tensor


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Removes the graphs of earlier tests, and of this one."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
