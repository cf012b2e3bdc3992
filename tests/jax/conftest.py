"""Fixtures of what only JAX promises."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

DEVICES = 4

# This comes before any test runs: a process cannot change its mind once the backend is up.
jax.config.update("jax_num_cpu_devices", DEVICES)


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
