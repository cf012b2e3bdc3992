"""Cross-entropy of a linear layer's logits for JAX; only a few rows of logits exist at a time."""

from __future__ import annotations

import math
from typing import Any

import jax

from bridge.catalogue.cross_entropy import Options
from bridge.catalogue.linear_cross_entropy import NAME, ROWS, LinearCrossEntropy
from bridge.catalogue.linear_rows import LinearRows
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._adapter.linear_losses import LinearLosses, refuse_symbolic, split_by_xla
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
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
    bits: str | None = None,
) -> jax.Array:
    r"""`cross_entropy(hidden @ weight.T + bias, labels)`, without the logits of all rows in memory.

    The logits of only `chunk` rows exist at a time. For a mean or a sum the forward pass also
    computes the gradients of hidden, weight and bias from them. For `"none"`, and for derivatives
    of gradients, the logits are computed again. The matrix products are XLA's own, so the bits of
    the result differ from `bridge.torch`. The rows of a chunk are equally spaced, so that each
    device works on its own rows if the rows are split over devices.

    With `bits="portable"` bridge computes the products: loss and gradients have the bits of
    `cross_entropy(linear(hidden, weight, bias), labels)`, the same in `bridge.torch`, for any chunk
    and any split over devices. The backward pass stores the operands and computes the logits again.
    Logits and their gradient are rounded to hidden's dtype, a row's share of a mean included: scale
    the loss in float16. A chunk has consecutive rows, which XLA gathers if the rows are split.

    Args:
      hidden: `[..., features]`.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: the number of rows whose logits exist at a time, known at compile time. None: as many
        as need about the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows
        or more.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.
      bits: None for XLA's matrix products, or "portable" for bridge's. A chunk has then the largest
        256·2ⁿ rows that `chunk` allows, at least 256.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ, shapes that do not fit, a
        chunk that is no positive integer, another word for bits. Under `jax.export` ValueError for
        a symbolic number of rows, and without a chunk for any other symbolic size.

    Example:
      >>> linear_cross_entropy(jnp.zeros((2, 3)), jnp.ones((4, 3)), jnp.array([0, 1]))
      Array(1.3862944, dtype=float32)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    operands = hidden, weight, labels, bias
    options = reduction, ignore_index, label_smoothing, z_loss, softcap
    return _linear.run(operands, chunk, bits, *options)  # type: ignore[no-any-return]


def _portable(operands: tuple[Any, ...], chunk: int | None, options: Options) -> jax.Array:
    hidden, weight, labels, bias = operands
    refuse_symbolic(NAME, math.prod(hidden.shape[:-1]), chunk, weight.shape)
    run, is_none = _compiled(chunk, options), options.reduction == "none"
    return split_by_xla(run, (hidden, weight, labels, bias), labels if is_none else None)  # type: ignore[no-any-return]


@compiled_for
def _compiled(chunk: int | None, options: Options) -> Any:
    def run(*operands: Any) -> jax.Array:
        return _linear.composed(_rows.run, operands, chunk, options)  # type: ignore[no-any-return]

    run.__name__ = NAME
    return run


_rows = Composition(LinearRows(functions, ROWS))
_losses = LinearLosses(NAME, cross_entropies, labels_of_jax.as_signed)
_linear = LinearCrossEntropy(arrays, labels_of_jax, cross_entropies, _losses.run, _portable)
