"""The same values for both frameworks, in every dtype of the conversions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from bridge.exchange.dtypes import TO_JAX

DTYPES = list(TO_JAX)
NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    """Returns an array with any bits of the dtype, NaN payloads among them."""
    name = TO_JAX[dtype]
    if name == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    raw = rng.integers(0, 256, (*shape, name.itemsize), dtype=np.uint8)
    return np.ascontiguousarray(raw).view(name).reshape(shape)


def tensor_of(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor with the array's bits in torch's own memory, aligned as XLA requires."""
    if not values.size:
        return torch.empty(values.shape, dtype=dtype)
    raw = torch.from_numpy(np.ascontiguousarray(values).reshape(-1).view(np.uint8)).clone()
    return raw.view(dtype).reshape(values.shape)


def bits_of(value: Any) -> bytes:
    """Returns the elements' bytes in row-major order, for a tensor or an array."""
    if isinstance(value, torch.Tensor):
        value = value.resolve_conj().resolve_neg().contiguous()
        return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return np.ascontiguousarray(np.asarray(value)).tobytes()


def address_of(value: Any) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value.unsafe_buffer_pointer()


def array_of(values: np.ndarray) -> Any:
    return jnp.array(values)
