"""The dtypes that both frameworks have, by their names in each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bridge.lang.dtypes import DTYPES

# These are DLPack's newest dtype codes: a framework without them gets bytes instead.
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"})
WIDE = frozenset({"uint64", "int64", "float64", "complex128"})
_NAMES = (*DTYPES, "complex64", "complex128", *sorted(FLOAT8))

TO_JAX: dict[torch.dtype, np.dtype] = {getattr(torch, n): jnp.dtype(n) for n in _NAMES}
TO_TORCH: dict[np.dtype, torch.dtype] = {array: tensor for tensor, array in TO_JAX.items()}
SUPPORTED = ", ".join(_NAMES)

# While jax_enable_x64 is off, 64-bit arrays would break JAX's own functions.
NARROW: frozenset[torch.dtype] = frozenset(
    tensor for tensor, array in TO_JAX.items() if array.name not in WIDE
)


def crosses_to_jax(dtype: torch.dtype) -> bool:
    """True if JAX accepts the dtype in its current configuration."""
    return dtype in NARROW or (dtype in TO_JAX and jax.config.jax_enable_x64)  # type: ignore[attr-defined]
