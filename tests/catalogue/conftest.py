"""Rows are spread over devices, of which a process has as many as it says before it has any."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 4)
