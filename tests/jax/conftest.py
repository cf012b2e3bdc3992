"""Fixtures of tests for JAX alone."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

DEVICES = 4

# Set this before any test runs: the number of devices is fixed when the backend starts.
jax.config.update("jax_num_cpu_devices", DEVICES)


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
