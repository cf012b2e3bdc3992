"""The public RMS norm with a gate of JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.gated_norms import GatedNorm
from bridge.jax._adapter import arrays

ArrayLike = jax.typing.ArrayLike

_gated_rms_norm = GatedNorm(arrays)


def gated_rms_norm(
    x: ArrayLike,
    gate: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_first: bool = True,
    groups: int = 1,
) -> jax.Array:
    r"""rms_norm(x)·act(gate), or rms_norm(x·act(gate)) with `norm_first=False`, in one pass.

    rms_norm(h) is h·r·weight with r = 1/√(mean(h²) + eps) over the last dimension, or over each of
    `groups` equal parts of it. No intermediate result is rounded: 16-bit arrays and float32 are
    computed in float32, float64 in float64, and rounded once. A row's bits depend on that row
    alone, and `bridge.torch` gives the same bits. A row, or a group, whose sum of squares overflows
    gives 0 before the gate. Every transformation of JAX applies, derivatives of any order included.
    The backward pass saves the arguments and r, one number per row and group.

    Args:
      x: `[..., d]`, float16, bfloat16, float32 or float64.
      gate: of x's shape, of any of these dtypes.
      weight: `[d]`, of any of these dtypes.
      eps: a positive finite number.
      activation: the function of the gate, one of those of `glu`: "silu", "gelu", "gelu_tanh",
        "gelu_sigmoid", "relu" or "sigmoid".
      norm_first: the gate multiplies the normalised row, as in Qwen3-Next. Otherwise it multiplies
        x, and the product is normalised, as in Mamba2.
      groups: the number of groups of columns, each of which is normalised by itself; a divisor of
        d.

    Returns:
      An array of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is no array or has another dtype; eps is no number, groups no integer,
        norm_first neither True nor False, or one of them is traced.
      ValueError: a shape that does not fit x; eps is not positive or not finite; an unknown
        activation; groups that are not positive or do not divide d.

    Example:
      >>> x, gate = jnp.array([[3.0, 4.0, 0.0, 0.0]]), jnp.array([[1.0, 1.0, 2.0, 2.0]])
      >>> gated_rms_norm(x, gate, activation="relu", eps=1e-12)
      Array([[1.2, 1.6, 0. , 0. ]], dtype=float32)

    Source: Dao and Gu, "Transformers are SSMs", arXiv:2405.21060, section 7; Zhang and Sennrich,
    arXiv:1910.07467.
    """
    x, gate, weight = arrays.checked("gated_rms_norm", 2, x=x, gate=gate, weight=weight)
    return _gated_rms_norm.run(x, gate, weight, groups, eps, activation, norm_first)  # type: ignore[no-any-return]
