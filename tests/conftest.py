"""Fixtures of the promises that both frameworks keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frameworks import FRAMEWORKS


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator whose seed is the test's name: the same numbers on every run, others per test."""
    return np.random.default_rng(list(request.node.name.encode()))
