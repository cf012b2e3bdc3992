"""The search for NaN and infinity that JAX makes after each primitive, for the ops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge._private.jax import without_search


@contextlib.contextmanager
def as_one_op() -> Iterator[None]:
    """Makes a jitted function of one op count as a single primitive.

    If jax_debug_nans finds a NaN in the results of a jitted function, JAX calls the function again
    without jit to find the primitive that produced it. For an op, this would find the same function
    again without end. The op is also compiled where jit is disabled.
    """
    with jax.disable_jit(False), without_search(jax.debug_nans), without_search(jax.debug_infs):
        yield


def check_special(name: str, results: Sequence[jax.Array]) -> None:
    """Raises FloatingPointError as JAX does, if results hold a value that the flags look for."""
    config: Any = jax.config
    for wanted, is_special, word in (
        (config.jax_debug_nans, jnp.isnan, "nan"),
        (config.jax_debug_infs, jnp.isinf, "inf"),
    ):
        if not wanted:
            continue
        with as_one_op():  # the search must not search its own operations
            found = [
                bool(is_special(result).any())
                for result in results
                if jnp.issubdtype(result.dtype, jnp.inexact)
            ]
        if any(found):
            raise FloatingPointError(f"invalid value ({word}) encountered in {name}")


def define_eager(primitive: Any, static: Sequence[str]) -> None:
    """Gives a primitive its eager call: a jitted function that counts as one op.

    Args:
      static: the names of the primitive's parameters.
    """
    jitted = jax.jit(primitive.bind, static_argnames=tuple(static))

    def run(*operands: Any, **parameters: Any) -> Any:
        with as_one_op():
            results = jitted(*operands, **parameters)
        check_special(primitive.name, results if primitive.multiple_results else [results])
        return results

    primitive.def_impl(run)
