"""What JAX does outside of jit around each op of its own, for ours: the search for NaN."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge._private.jax import without_search


@contextlib.contextmanager
def as_one_op() -> Iterator[None]:
    """Makes a jitted function that consists of one op count as that op.

    Under jax_debug_nans JAX calls a jitted function again without jit when it finds a NaN in its
    results, to see which op the NaN comes from; this one would be found again and again. And what
    is one op is compiled even where jit is disabled.
    """
    with jax.disable_jit(False), without_search(jax.debug_nans), without_search(jax.debug_infs):
        yield


def check_special(name: str, results: Sequence[jax.Array]) -> None:
    """Raises FloatingPointError as JAX does, if the results of an op hold what is looked for."""
    config: Any = jax.config
    for wanted, is_special, word in (
        (config.jax_debug_nans, jnp.isnan, "nan"),
        (config.jax_debug_infs, jnp.isinf, "inf"),
    ):
        if not wanted:
            continue
        with as_one_op():  # the look itself is not looked at
            found = [
                bool(is_special(result).any())
                for result in results
                if jnp.issubdtype(result.dtype, jnp.inexact)
            ]
        if any(found):
            raise FloatingPointError(f"invalid value ({word}) encountered in {name}")
