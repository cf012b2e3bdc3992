"""Fixtures of the tests that run only on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bridge

needs_gpu = pytest.mark.skipif(not bridge.has_cuda(), reason="needs a CUDA device")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def jax_device(index: int = 0) -> Any:
    """Returns JAX's device of that number. Call it inside a test: it starts JAX's backends."""
    import jax

    try:
        return jax.devices("cuda")[index]
    except RuntimeError:
        pytest.skip("needs a JAX with CUDA")
