"""The gated units as modules of Flax NNX."""

from __future__ import annotations

import jax
from flax import nnx

from bridge.catalogue.checks import check_each
from bridge.catalogue.gates import CHECKS, check_blocks
from bridge.jax._adapter.arguments import as_flag
from bridge.jax._ops.gates import glu


class GLU(nnx.Module):
    """`bridge.jax.glu` of a packed array: follows an `nnx.Linear(d, 2 * features)`.

    `flax.nnx.glu` is a different function: its activation is sigmoid, and its gate the second half.

    Args:
      activation, limit, linear_offset, interleaved, blocks: as for `glu`.

    Raises:
      TypeError, ValueError: as for `glu`.

    Example:
      >>> GLU("gelu_tanh")(jnp.ones((2, 32))).shape
      (2, 16)
    """

    def __init__(
        self,
        activation: str = "silu",
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
    ) -> None:
        name = type(self).__name__
        numbers = {"limit": limit, "linear_offset": linear_offset}
        check_each(CHECKS, name, activation=activation, **numbers)
        self.activation, self.limit = activation, limit
        self.linear_offset = linear_offset
        self.interleaved = as_flag(name, "interleaved", interleaved)
        self.blocks = check_blocks(name, blocks, self.interleaved)

    def __call__(
        self, gate: jax.Array, up: jax.Array | None = None, weight: jax.Array | None = None
    ) -> jax.Array:
        """Returns `[..., features]` for a packed gate `[..., 2 * features]`, or for gate and up.

        Args:
          gate, up, weight: as for `glu`.
        """
        return glu(
            gate,
            up,
            activation=self.activation,
            weight=weight,
            limit=self.limit,
            linear_offset=self.linear_offset,
            interleaved=self.interleaved,
            blocks=self.blocks,
        )


class _Named(GLU):
    """`GLU` with a fixed activation."""

    _activation: str

    def __init__(
        self,
        limit: float | None = None,
        linear_offset: float = 0.0,
        interleaved: bool = False,
        blocks: int = 1,
    ) -> None:
        super().__init__(self._activation, limit, linear_offset, interleaved, blocks)


class SwiGLU(_Named):
    """`GLU("silu")`; takes the other arguments of `GLU`."""

    _activation = "silu"


class GEGLU(_Named):
    """`GLU("gelu")`, with x·Φ(x) as in `geglu`; takes the other arguments of `GLU`."""

    _activation = "gelu"


class ReGLU(_Named):
    """`GLU("relu")`; takes the other arguments of `GLU`."""

    _activation = "relu"
