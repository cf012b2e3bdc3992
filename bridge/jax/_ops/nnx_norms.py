"""The normalisations as modules of Flax NNX, with the constructors of `flax.nnx`."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from flax import nnx

from bridge.jax._adapter.arguments import as_array_likes, as_arrays
from bridge.jax._ops.norms import layer_norm, rms_norm

# Flax's default. It computes in the widest of the dtypes, and so do the ops by themselves.
_PROMOTE_DTYPE = inspect.signature(nnx.RMSNorm.__init__).parameters["promote_dtype"].default


def _in_dtype(norm: Any, results: Any) -> Any:
    """Casts results to the module's dtype, which a user's `promote_dtype` may not do."""
    if norm.dtype is None:
        return results
    return jax.tree.map(lambda y: y.astype(norm.dtype), results)


def _checked(module: str, norm: Any, x: Any, residual: Any, mask: Any) -> list[Any]:
    """Returns x, residual and the parameters in the module's dtype.

    Raises:
      ValueError: for options of the original that do not normalise whole rows.
    """
    if mask is not None:
        raise ValueError(f"{module}: mask is given, expected None: rows are normalised whole")
    if norm.axis_name is not None:
        raise ValueError(
            f"{module}: axis_name is {norm.axis_name!r}, expected None: split columns are "
            "normalised under jit, without it"
        )
    x, residual = as_arrays(*as_array_likes(module, 1, x=x, residual=residual))
    for name in ("reduction_axes", "feature_axes"):
        axes = getattr(norm, name)
        if (axes,) not in ((-1,), ((-1,),), (x.ndim - 1,), ((x.ndim - 1,),), ([-1],)):
            raise ValueError(f"{module}: {name} is {axes}, expected the last dimension")
    parameters = [getattr(norm, name, None) for name in ("scale", "bias")]
    values = [None if p is None or p.get_value() is None else p[...] for p in parameters]
    if norm.dtype is None and norm.promote_dtype is _PROMOTE_DTYPE:
        return [x, residual, *values]
    return list(norm.promote_dtype((x, residual, *values), dtype=norm.dtype))


class RMSNorm(nnx.RMSNorm):
    """`flax.nnx.RMSNorm` over the last dimension, by `rms_norm`; the same parameters.

    The constructor is the original's. `use_fast_variance` has no effect. Options that do not
    normalise whole rows raise ValueError when the module is called.

    Example:
      >>> RMSNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __call__(self, x: Any, mask: Any = None, *, residual: Any = None) -> Any:
        """Returns y, or (y, x + residual)."""
        x, residual, scale, _ = _checked("RMSNorm", self, x, residual, mask)
        return _in_dtype(self, rms_norm(x, scale, residual, eps=self.epsilon))


class LayerNorm(nnx.LayerNorm):
    """`flax.nnx.LayerNorm` over the last dimension, by `layer_norm`; the same parameters.

    The constructor is the original's; see the notes of `RMSNorm`.

    Example:
      >>> LayerNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __call__(self, x: Any, *, mask: Any = None, residual: Any = None) -> Any:
        """Returns y, or (y, x + residual)."""
        x, residual, scale, bias = _checked("LayerNorm", self, x, residual, mask)
        return _in_dtype(self, layer_norm(x, scale, bias, residual, eps=self.epsilon))
