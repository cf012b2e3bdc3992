"""Several CPU devices for tests of sharded arrays."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
import torch

from tests.jax.conftest import DEVICES

# Set this before any test runs: the number of devices is fixed when the backend starts.
jax.config.update("jax_num_cpu_devices", DEVICES)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()
