"""Several CPU devices for tests of sharded arrays."""

from __future__ import annotations

import jax

from tests.jax.conftest import DEVICES

# Set this before any test runs: the number of devices is fixed when the backend starts.
jax.config.update("jax_num_cpu_devices", DEVICES)
