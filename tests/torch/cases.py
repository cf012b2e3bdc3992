"""Every public function of every op on small tensors, with torch's own operations in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.lang.philox import threshold_of, words
from bridge.torch import (
    bias_dropout_add,
    bias_gelu,
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from tests.torch.attention import above_diagonal, softmax64


@dataclass(frozen=True)
class Case:
    """A function of differentiable tensors, and its expected result.

    Attributes:
      shapes: the shapes of the arguments.
      function: the public function.
      expected: the same, in torch's own operations; differentiable to any order.
    """

    shapes: tuple[tuple[int, ...], ...]
    function: Callable[..., Tensor]
    expected: Callable[..., Tensor]

    def inputs(self, draw: Any, **options: Any) -> tuple[Tensor, ...]:
        return tuple(draw(*shape, **options) for shape in self.shapes)


# A fully hidden row, a fully visible one, and one with a single visible element.
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0],
        [1, 1, 0, 1, 1],
        [0, 1, 0, 0, 1],
    ],
    dtype=torch.bool,
)
P, SEED, OFFSET = 0.4, 123456789, 3


def kept(shape: tuple[int, ...], p: float = P, seed: int = SEED, offset: int = 0) -> Tensor:
    """True where dropout keeps an element, from the definition's random words."""
    place = np.arange(math.prod(shape), dtype=np.uint64)
    keep = words(seed % 2**64, offset, place) >= threshold_of(p)
    return torch.from_numpy(keep.reshape(shape))


def dropped(h: Tensor, p: float = P, seed: int = SEED, offset: int = 0) -> Tensor:
    return h * kept(tuple(h.shape), p, seed, offset) / (1.0 - p)


def tanh_gelu(h: Tensor) -> Tensor:
    return h * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (h + 0.044715 * h**3))


CASES = {
    "bias_gelu": Case(((4, 3), (3,)), bias_gelu, lambda x, b: tanh_gelu(x + b)),
    "softmax": Case(
        ((3, 5),), lambda x: scaled_softmax(x, -0.7), lambda x: softmax64(x, None, -0.7)
    ),
    "softmax masked": Case(
        ((4, 5),),
        lambda x: scaled_masked_softmax(x, MASK, 0.6),
        lambda x: softmax64(x, MASK, 0.6),
    ),
    "softmax mask of heads": Case(
        ((2, 3, 4, 5),),
        lambda x: scaled_masked_softmax(x, torch.stack([MASK, ~MASK])[:, None].byte() * 7),
        lambda x: softmax64(x, torch.stack([MASK, ~MASK])[:, None]),
    ),
    "softmax causal": Case(
        ((3, 5),),
        lambda x: scaled_causal_softmax(x, 0.6),
        lambda x: softmax64(x, above_diagonal(3, 5), 0.6),
    ),
    "softmax causal with rows that see nothing": Case(
        ((2, 5, 3),),
        lambda x: scaled_causal_softmax(x),
        lambda x: softmax64(x, above_diagonal(5, 3)),
    ),
    "softmax backward": Case(
        ((3, 5), (3, 5)),
        lambda g, x: scaled_softmax_backward(g, scaled_softmax(x, 0.6), 0.6),
        lambda g, x: (y := softmax64(x, None, 0.6)) * 0.6 * (g - (g * y).sum(-1, keepdim=True)),
    ),
    "dropout": Case(((4, 3),), lambda x: bias_dropout_add(x, p=P, seed=SEED), dropped),
    "dropout bias": Case(
        ((4, 3), (3,)),
        lambda x, b: bias_dropout_add(x, b, p=P, seed=SEED),
        lambda x, b: dropped(x + b),
    ),
    "dropout residual": Case(
        ((4, 3), (4, 3)),
        lambda x, r: bias_dropout_add(x, None, r, p=P, seed=SEED, offset=OFFSET),
        lambda x, r: r + dropped(x, offset=OFFSET),
    ),
    "dropout bias residual": Case(
        ((2, 4, 3), (3,), (2, 4, 3)),
        lambda x, b, r: bias_dropout_add(x, b, r, p=P, seed=-5),
        lambda x, b, r: r + dropped(x + b, seed=-5),
    ),
    "dropout of nothing": Case(
        ((4, 3), (3,), (4, 3)),
        lambda x, b, r: bias_dropout_add(x, b, r, p=0.3, training=False),
        lambda x, b, r: r + x + b,
    ),
    "dropout of everything": Case(
        ((4, 3), (3,), (4, 3)),
        lambda x, b, r: bias_dropout_add(x, b, r, p=1.0, seed=SEED),
        lambda x, b, r: r + 0.0 * (x + b),
    ),
}
