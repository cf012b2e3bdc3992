"""The seed of a torch function: two words in JAX, the state of the generators in torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from bridge.jax._adapter.integers import as_integer, refuse_no_seed, words

# Torch has one generator per device for all threads, so only one seeded call runs at a time. A
# seeded call inside a seeded call, on a thread of XLA, would deadlock: it raises after a timeout.
_generators = threading.RLock()
_TIMEOUT_SECONDS = 600


def seed_words(seed: Any, function: str) -> Any:
    """Returns an int, integer array or random key as a seed, uint32 `[2]`, low word first."""
    refuse_no_seed(function, seed)
    seed = as_integer(function, "seed", seed)
    return jax.numpy.asarray(words(function, "seed", seed), np.uint32)


@contextlib.contextmanager
def seeded(seed: Tensor, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Draws as after `torch.manual_seed`, and restores torch's generators afterwards.

    Raises:
        RuntimeError: another seeded call has not ended within the timeout.
    """
    if type(seed) is not Tensor:  # a FakeTensor has no value
        yield
        return
    low, high = seed.tolist()
    cuda = sorted({tensor.get_device() for tensor in tensors if tensor.is_cuda})
    if not _generators.acquire(timeout=_TIMEOUT_SECONDS):
        raise RuntimeError(
            f"from_torch: another seeded call has held torch's generators for {_TIMEOUT_SECONDS} "
            "seconds: is this call made inside that call, through JAX?"
        )
    try:
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(low | high << 32)
            yield
    finally:
        _generators.release()
