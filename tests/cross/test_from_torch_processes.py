"""Compiled programs with torch functions never call a function of another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax import export
from jax import numpy as jnp

from bridge.jax import from_torch

REPOSITORY = Path(__file__).parents[2]

CACHED = """
import jax, sys
from jax import numpy as jnp
from bridge.jax import from_torch

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
first, second = [from_torch(lambda t, k=float(k): t * k) for k in sys.argv[2:]]

def function(x):
    return (first(x) - second(x)).sum()

print([jax.jit(function)(jnp.ones(3)).item(), jax.jit(jax.grad(function))(jnp.ones(3)).tolist()])
"""


@pytest.mark.processes
def test_a_cache_on_disk_calls_the_functions_of_its_process(tmp_path: Path) -> None:
    """The programs differ only in their functions, which no cache key contains."""
    for first, second in ((5, 2), (5, 2), (2, 5), (7, 1)):
        child = subprocess.run(
            [sys.executable, "-c", CACHED, str(tmp_path), str(first), str(second)],
            cwd=REPOSITORY,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert child.returncode == 0, child.stderr
        assert eval(child.stdout) == [3.0 * (first - second), [first - second] * 3]


def test_an_export_is_refused() -> None:
    """It is refused whatever checks are disabled: the program would contain a process's index."""
    targets = ["xla_buffer_python_cpu_callback", "xla_ffi_python_cpu_callback"]
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets]
    function = jax.jit(from_torch(lambda t: t * 2))
    with pytest.raises(NotImplementedError, match="serialization of host_callbacks"):
        export.export(function, disabled_checks=checks)(jnp.ones(3))
