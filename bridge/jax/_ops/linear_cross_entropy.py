"""Cross-entropy of a linear layer's logits for JAX; only a few rows of logits exist at a time."""

from __future__ import annotations

import jax

from bridge.catalogue.linear_cross_entropy import NAME, LinearCrossEntropy
from bridge.jax._adapter import arrays
from bridge.jax._adapter.linear_losses import LinearLosses
from bridge.jax._ops import labels as labels_of_jax
from bridge.jax._ops.cross_entropy import cross_entropies

ArrayLike = jax.typing.ArrayLike


def linear_cross_entropy(
    hidden: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    chunk: int | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> jax.Array:
    r"""`cross_entropy(hidden @ weight.T + bias, labels)`, without the logits of all rows in memory.

    The logits of only `chunk` rows exist at a time. For a mean or a sum the forward pass also
    computes the gradients of hidden, weight and bias from them. For `"none"`, and for derivatives
    of gradients, the logits are computed again. The matrix products are XLA's own, so the bits of
    the result differ from `bridge.torch`. The rows of a chunk are equally spaced, so that each
    device works on its own rows if the rows are split over devices.

    Args:
      hidden: `[..., features]`.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: the number of rows whose logits exist at a time, known at compile time. None: as many
        as need about the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows
        or more.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ, shapes that do not fit, a
        chunk that is no positive integer. Under `jax.export` ValueError for a symbolic number of
        rows, and without a chunk for any other symbolic size.

    Example:
      >>> linear_cross_entropy(jnp.zeros((2, 3)), jnp.ones((4, 3)), jnp.array([0, 1]))
      Array(1.3862944, dtype=float32)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    operands = hidden, weight, labels, bias
    options = reduction, ignore_index, label_smoothing, z_loss, softcap
    return _linear.run(operands, chunk, *options)  # type: ignore[no-any-return]


_losses = LinearLosses(NAME, cross_entropies, labels_of_jax.as_signed)
_linear = LinearCrossEntropy(arrays, labels_of_jax, cross_entropies, _losses.run)
