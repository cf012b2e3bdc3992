"""The public make_viewless of JAX."""

from __future__ import annotations

import jax

from bridge.jax._adapter.arguments import as_any_array


def make_viewless(x: jax.typing.ArrayLike) -> jax.Array:
    """Returns x, which in JAX is never a view; for code that is ported line by line.

    `bridge.torch.make_viewless_tensor(x, requires_grad, keep_graph=True)` gives a tensor that does
    not keep the history of the base it was a view of. Arrays of JAX have no base, so that this is
    the identity, and so are its derivatives. For keep_graph=False use `jax.lax.stop_gradient`.

    Args:
      x: an array of any shape and dtype.

    Raises:
      TypeError: if x is none.
    """
    return as_any_array("make_viewless", "x", x)
