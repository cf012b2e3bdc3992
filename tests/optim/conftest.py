"""Several devices for the optimizers' tests, as many as those of tests/jax have."""

from __future__ import annotations

import jax

from tests.jax.conftest import DEVICES

jax.config.update("jax_num_cpu_devices", DEVICES)
