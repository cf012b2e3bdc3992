"""The public make_viewless of JAX."""

from __future__ import annotations

import jax

from bridge.jax._adapter.arguments import as_any_array


def make_viewless(x: jax.typing.ArrayLike) -> jax.Array:
    """Returns x. In JAX an array is never a view; for code that is ported line by line.

    `bridge.torch.make_viewless_tensor(x, requires_grad, keep_graph=True)` returns a tensor that
    does not keep the history of its base. JAX arrays have no base, so this function and its
    derivatives are the identity. For keep_graph=False use `jax.lax.stop_gradient`.

    Args:
      x: an array of any shape and dtype.

    Raises:
      TypeError: if x cannot become an array.
    """
    return as_any_array("make_viewless", "x", x)
