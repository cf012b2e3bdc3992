"""Mixtures of experts: the router, and the moves of tokens to experts and back, for JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.choices.experts import COMBINE, PERMUTE, ROUTER, Moves, Router
from bridge.jax._adapter import arrays
from bridge.jax._ops.choices import functions
from bridge.jax._ops.labels import check_labels

ArrayLike = jax.typing.ArrayLike

_router, _moves = Router(arrays, functions), Moves(arrays, functions, check_labels)


def moe_router(
    logits: ArrayLike,
    k: int,
    *,
    score: str = "softmax",
    bias: ArrayLike | None = None,
    normalize: bool = True,
    scale: float = 1.0,
    losses: bool = False,
) -> tuple[jax.Array, ...]:
    r"""The weights and the numbers of each token's k experts, from the logits of a router.

    With s = softmax(logits) or sigmoid(logits), the experts are the columns of the k largest
    s + bias, equal ones in the order of their columns, and their weights are scale·s, without the
    bias. With normalize they are scale·s/(Σ s + 10⁻²⁰), Σ over the token's k experts. A token's
    result depends on that token alone, and `bridge.torch` gives the same bits.

    With losses, two numbers follow, for E experts and T tokens:

    - balance: E·Σ f·P, where f is an expert's part of all k·T choices and P the mean of its
      probability, for sigmoid of s/Σ s. It is 1 if the experts are even. Megatron's and
      DeepSeek-V3's loss without its coefficient; Hugging Face's Mixtral has k times this.
    - z: the mean of logsumexp(logits)².

    Both add up tokens in a fixed order. Every transformation of JAX applies, derivatives of any
    order included; f has no gradient.

    Args:
      logits: `[..., E]` of dtype float16, bfloat16, float32 or float64. Everything is computed in
        float32, for float64 in float64.
      k: the number of experts of a token, from 1 to 64 and at most E.
      score: "softmax" or "sigmoid".
      bias: `[E]`, added for the choice alone. It has no gradient.
      normalize: divide the weights by their sum.
      scale: a factor of the weights.
      losses: return the two losses too.

    Returns:
      Weights `[..., k]` in float32, for float64 in float64, and columns `[..., k]` in int32, from
      the largest s + bias on. With losses also balance and z, each one number.

    Raises:
      TypeError: an argument is no array or has another dtype; a number is none.
      ValueError: a shape that does not fit; k is out of range; another word.

    Example:
      >>> moe_router(jnp.array([[0.0, 2.0, 2.0]]), 2)
      (Array([[0.5, 0.5]], dtype=float32), Array([[1, 2]], dtype=int32))

    Source: arXiv:1701.06538; the balance, arXiv:2101.03961; z, arXiv:2202.08906; sigmoid and the
    bias, arXiv:2412.19437.
    """
    logits, bias = arrays.checked(ROUTER, 1, logits=logits, bias=bias)
    return _router.run(
        logits, k, bias, score=score, normalize=normalize, scale=scale, losses=losses
    )


def moe_permute(
    x: ArrayLike, columns: ArrayLike, experts: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""The rows of the tokens sorted by expert, each token once for each of its k experts.

    The rows of an expert are in the order of their tokens. The gradient of a token adds the
    cotangents of its rows in the order of its choices, in the tree of column sums: for k up to 16
    one after the other. So it depends neither on the numbers of the experts nor on the other
    tokens, and nothing is added atomically. `bridge.torch` gives the same bits. Every
    transformation of JAX applies, derivatives of any order included.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64.
      columns: `[..., k]` of any integer dtype: the experts of each token, as `moe_router` gives.
      experts: the number of experts.

    Returns:
      Rows `[tokens·k, d]` in x's dtype; places `[..., k]` in int32, the row of each choice, for
      `moe_combine`; and the number of rows of each expert, `[experts]` in int32.

    Raises:
      TypeError: an argument is no array or has another dtype; experts is no integer.
      ValueError: a shape that does not fit; an expert out of range. Where that cannot be read
        without waiting for the device, such a row comes behind those of all experts.

    Example:
      >>> moe_permute(jnp.array([[1.0], [2.0]]), jnp.array([[1], [0]]), 2)
      (Array([[2.],
             [1.]], dtype=float32), Array([[1],
             [0]], dtype=int32), Array([1, 1], dtype=int32))
    """
    x, columns = arrays.checked(PERMUTE, 2, ("columns",), x=x, columns=columns)
    return _moves.permute(x, columns, experts)


def moe_combine(y: ArrayLike, weights: ArrayLike | None, places: ArrayLike) -> jax.Array:
    r"""The weighted sum of each token's rows: Σ weights[…, j]·y[places[…, j]] over j.

    The sum is a chain of fused multiply-adds in increasing j, in float32 or float64, rounded once
    to y's dtype. So it depends neither on the order of the rows nor on the other tokens. A row's
    gradient is the weight times the cotangent, a weight's gradient the sum of row times cotangent
    in the tree of a product. `bridge.torch` gives the same bits. Every transformation of JAX
    applies, derivatives of any order included.

    Args:
      y: `[rows, d]` of dtype float16, bfloat16, float32 or float64: the experts' results, in the
        order of `moe_permute`.
      weights: `[..., k]` of any of these dtypes, or None for a plain sum.
      places: `[..., k]` of any integer dtype, as `moe_permute` gives.

    Returns:
      `[..., d]` in y's dtype.

    Raises:
      TypeError: an argument is no array or has another dtype.
      ValueError: a shape that does not fit; a place that is no row, where it can be read without
        waiting for the device: elsewhere it gives NaN.

    Example:
      >>> y, places = jnp.array([[2.0], [10.0]]), jnp.array([[1, 0]])
      >>> moe_combine(y, jnp.array([[0.5, 0.25]]), places)
      Array([[5.5]], dtype=float32)
    """
    y, places, weights = arrays.checked(
        COMBINE, 2, ("places",), y=y, places=places, weights=weights
    )
    return _moves.combine(y, weights, places)  # type: ignore[no-any-return]
