"""The public bias_gelu of JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from bridge.jax._lowering import call, spec_of
from bridge.ops import BIAS_GELU, check_bias_gelu


def bias_gelu(
    x: jax.typing.ArrayLike, bias: jax.typing.ArrayLike | None = None, *, approximate: str = "tanh"
) -> jax.Array:
    """TODO docstring."""
    return _bias_gelu(x, bias, approximate=approximate)


@partial(jax.jit, static_argnames="approximate", inline=True)
def _bias_gelu(x, bias, *, approximate):
    params = check_bias_gelu(spec_of(x), None if bias is None else spec_of(bias), approximate)
    return call(BIAS_GELU, (x, bias), params)[0]
