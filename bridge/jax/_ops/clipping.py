"""Clipping of gradients by their global norm."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import optimizers
from bridge.catalogue.checks import number
from bridge.jax._adapter import arrays
from bridge.jax._ops.leaves import Leaves, Optimizer, arithmetic_of, reshaped

_max_norm = number("a number from 0 on", lambda value: value >= 0)


class ClipState(NamedTuple):
    """The state of `clip_by_global_norm`: the norm of the last gradients, before the scaling."""

    norm: Any


def clip_by_global_norm(max_norm: Any) -> Optimizer:
    r"""Scales all gradients by min(1, max_norm/norm) with norm = √(Σ g²).

    It has the bits of `bridge.torch.optim.clip_grad_norm_` with names. Each array's squares are
    added in the tree of row sums, in row-major order; then the sums of the arrays, in the same
    tree, in the order of their sorted names. A name has the keys of the path in the tree, joined by
    dots: `layers.0.weight`.

    Args:
      max_norm: a number from 0 on, or an array without dimensions, which may be traced.

    Returns:
      An `Optimizer` for a chain, whose state has the last norm: float32, or float64 if a gradient
      is float64. It needs no parameters.

    Raises:
      TypeError, ValueError: for a negative max_norm, and at an update for an array of another
        dtype.

    Example:
      >>> clip = clip_by_global_norm(1.0)
      >>> grads = {"w": jnp.ones((2, 3))}
      >>> clipped, state = clip.update(grads, clip.init(grads))
    """
    name = "clip_by_global_norm"
    # An update refuses an array with dimensions.
    if not isinstance(max_norm, jax.core.Tracer) and not np.shape(max_norm):
        max_norm = _max_norm(name, "max_norm", max_norm)

    def norm_dtype(tree: Any) -> Any:
        is_wide = any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(tree))
        return jnp.float64 if is_wide else jnp.float32

    def init(params: Any) -> ClipState:
        return ClipState(jnp.zeros((), norm_dtype(params)))

    def update(grads: Any, state: ClipState, params: Any = None, **_: Any) -> tuple[Any, ClipState]:
        leaves = Leaves(name, grads, grads)
        if not leaves.grads:
            return grads, state
        ordered = sorted(leaves.named(), key=lambda pair: pair[0])
        flat = [reshaped(g, (g.size,)) for _, g in ordered]
        dtype = norm_dtype(grads)
        sums = [optimizers.squares(arrays, g).astype(dtype) for g in flat]
        limit = leaves.scalar("max_norm", max_norm, dtype).reshape(1)
        norms, factors = optimizers.norm_and_factor.jax(jnp.stack(sums, -1), limit)
        factor = factors.reshape(())

        def run(g: Any, _: Any) -> Any:
            own = jnp.broadcast_to(factor.astype(arithmetic_of(g)), g.shape[:-1])
            return (optimizers.clipped.jax(g, own),)

        (scaled,) = leaves.run(run, 1)
        return scaled, ClipState(norms.reshape(()))

    return Optimizer(init, update)
