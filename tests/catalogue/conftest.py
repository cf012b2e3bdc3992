"""Several CPU devices for what is sharded."""

from __future__ import annotations

import jax

from tests.jax.conftest import DEVICES

# This comes before any test runs: a process cannot change its mind once the backend is up.
jax.config.update("jax_num_cpu_devices", DEVICES)
