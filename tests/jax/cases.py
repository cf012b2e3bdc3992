"""Every op and its equivalent in jax.numpy, whose derivatives are JAX's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge.jax
from bridge.lang.philox import threshold_of, words
from tests.jax.compositions import normal

Function = Callable[..., Any]


def plain_softmax(x: Any, mask: Any = None, scale: float = 1.0, causal: bool = False) -> Any:
    """Computes the formula; rows that see nothing are zeros in value and derivatives."""
    hidden = jnp.zeros((1,) * x.ndim, bool) if mask is None else mask
    if causal:
        rows, columns = x.shape[-2:]
        hidden = hidden | ~np.tri(rows, columns, columns - rows, dtype=bool)
    hidden = jnp.broadcast_to(hidden, x.shape)
    # The inner `where` keeps NaN out of the derivatives of elements that the outer one drops.
    z = jnp.where(hidden, -jnp.inf, jnp.where(hidden, 0.0, x) * scale)
    blind = hidden.all(-1, keepdims=True)
    return jnp.where(blind, 0.0, jax.nn.softmax(jnp.where(blind, 0.0, z), axis=-1))


def keep(shape: tuple[int, ...], p: float, seed: int, offset: int = 0) -> np.ndarray:
    """Returns a mask of the elements that dropout keeps."""
    index = np.arange(math.prod(shape), dtype=np.uint64)
    seed, offset = seed % 2**64, offset % 2**64
    return (words(seed, offset, index) >= threshold_of(p)).reshape(shape)


def plain_dropout_add(
    x: Any, bias: Any = None, residual: Any = None, *, p: float, seed: int, offset: int = 0
) -> Any:
    h = x if bias is None else x + bias
    y = jnp.where(keep(x.shape, p, seed, offset), h / (1.0 - p), 0.0)
    return y if residual is None else residual + y


@dataclass(frozen=True)
class Case:
    """bridge's op and its equivalent, as functions of the same differentiable arguments.

    Attributes:
      shapes: the shapes of the arguments; the first is also the shape of the result.
      targets: FFI targets that the op and its derivatives call.
    """

    name: str
    ours: Function
    theirs: Function
    shapes: tuple[tuple[int, ...], ...]
    targets: tuple[str, ...]

    def draw(self, rng: np.random.Generator, dtype: Any = None) -> tuple[jax.Array, ...]:
        return tuple(normal(rng, *shape, dtype=dtype) for shape in self.shapes)


_SOFTMAX = ("bridge_program",)
_DROPOUT = ("bridge_program",)
_MASK = np.asarray([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 0]], bool)
_DRAWN = {"p": 0.3, "seed": 2**40 + 5, "offset": 3}

CASES = (
    Case(
        "softmax",
        partial(bridge.jax.scaled_softmax, scale=0.7),
        partial(plain_softmax, scale=0.7),
        ((4, 5),),
        _SOFTMAX,
    ),
    Case(
        "masked softmax",
        lambda x: bridge.jax.scaled_masked_softmax(x, _MASK, -1.3),
        lambda x: plain_softmax(x, _MASK, -1.3),
        ((2, 4, 5),),
        _SOFTMAX,
    ),
    Case(
        "causal softmax",
        partial(bridge.jax.scaled_causal_softmax, scale=0.5),
        partial(plain_softmax, scale=0.5, causal=True),
        ((2, 4, 3),),
        _SOFTMAX,
    ),
    Case(
        "bias dropout add",
        partial(bridge.jax.bias_dropout_add, **_DRAWN),
        partial(plain_dropout_add, **_DRAWN),
        ((4, 5), (5,), (4, 5)),
        _DROPOUT,
    ),
    Case(
        "dropout",
        partial(bridge.jax.bias_dropout_add, **_DRAWN),
        partial(plain_dropout_add, **_DRAWN),
        ((3, 7),),
        _DROPOUT,
    ),
)

# These accept arguments of any shape: the masked softmax has a mask of a fixed shape.
ANY_SHAPE = tuple(case for case in CASES if case.name != "masked softmax")
