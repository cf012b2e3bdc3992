"""Cases of the ops that a model is made of: products, embedding, attention, losses, optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.catalogue import COMPARED
from tests.golden.catalogue import Declared, LikeFirst, OneNan, beside, labels_of


@dataclass(frozen=True)
class Finite(Declared):
    """Products of finite numbers, in four dtypes and perhaps a mix.

    A sum of products with a NaN among thousands of numbers would be NaN, and show nothing.
    """

    mixes: bool = True


class FiniteLikeFirst(Finite, LikeFirst):
    """The result has the dtype of the first array."""


class Special(OneNan, Finite):
    """Zeros, infinities, NaN and subnormal numbers among the operands."""


class Steps(Finite):
    """Steps of an optimizer, which have no derivatives."""

    def function(self, framework: Any) -> Callable[..., Any]:
        call = COMPARED[self.name].call
        return lambda x, grads: call(framework.ops, {"x": x, "grads": grads})


def _turned(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _matmul(name: str, first: tuple[int, ...], second: tuple[int, ...], kind: Any = Finite) -> Any:
    shape = np.matmul(np.zeros(first), np.zeros(second)).shape
    return kind(f"matmul{name}", lambda o, a, b: o.matmul(a, b), (first, second), shape)


PRODUCTS = (
    _matmul("", (5, 3), (3, 4)),
    _matmul(" of two leaves", (3, 300), (300, 5)),
    _matmul(" of many leaves", (2, 1300), (1300, 3)),
    _matmul(" of vectors", (7,), (7,)),
    _matmul(" of batches", (2, 1, 3, 17), (4, 17, 2)),
    _matmul(" without terms", (3, 0), (0, 2)),
    _matmul(" of special numbers", (9, 33), (33, 5), Special),
    Finite(
        "matmul transposed",
        lambda o, a, b: o.matmul(_turned(a), _turned(b)),
        ((257, 3), (4, 257)),
        (3, 4),
    ),
    Finite("linear", lambda o, *a: o.linear(*a), ((5, 3), (4, 3), (4,)), (5, 4)),
    Finite("linear", lambda o, *a: o.linear(*a), ((2, 3, 270), (5, 270), (5,)), (2, 3, 5)),
    Finite("linear without bias", lambda o, *a: o.linear(*a), ((300, 3), (4, 3)), (300, 4)),
    Finite(
        "embedding",
        lambda o, w: o.embedding(beside(w, np.array([[3, 0, 3], [1, 3, 0]])), w),
        ((5, 7),),
        (2, 3, 7),
    ),
    Finite(
        "embedding of one id",
        lambda o, w: o.embedding(beside(w, np.zeros(300, np.int32)), w),
        ((2, 3),),
        (300, 3),
    ),
)


def _attention(
    name: str,
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    features: int = 0,
    *,
    has_mask: bool = False,
    has_sink: bool = False,
    **options: Any,
) -> Finite:
    """Returns a case; `features` is the number of features of a value, that of a key for 0."""
    values = (*keys[:-1], features or keys[-1])
    mask = np.arange(queries[-2] * keys[-2]).reshape(queries[-2], keys[-2]) * 5 % 7 < 3

    def call(ops: Any, q: Any, k: Any, v: Any, sink: Any = None) -> Any:
        given = {"mask": beside(q, mask)} if has_mask else {}
        return ops.attention(q, k, v, sink=sink, **given, **options)

    shapes = (queries, keys, values, *([queries[-3:-2]] if has_sink else []))
    shape = (*queries[:-1], values[-1])
    return FiniteLikeFirst(f"attention{name}", call, shapes, shape, mixes=False)


ATTENTION = (
    _attention("", (2, 5, 8), (2, 9, 8), 6),
    _attention(" without batch, one query", (1, 1, 4), (1, 3, 4)),
    _attention(" causal", (2, 2, 7, 5), (2, 2, 7, 5), causal=True),
    _attention(" of more queries than keys", (1, 9, 3), (1, 4, 3), causal=True),
    _attention(" of groups in a window", (6, 11, 5), (2, 13, 5), 3, causal=True, window=4),
    _attention(" of many keys", (1, 3, 6), (1, 600, 6), 2),
    _attention(" of many features", (1, 3, 300), (1, 5, 300)),
    _attention(" with a mask", (2, 5, 4), (1, 7, 4), has_mask=True, scale=-0.7),
    _attention(" with a sink", (2, 5, 4), (2, 7, 4), has_sink=True),
    _attention(" with a softcap", (2, 5, 4), (2, 5, 4), causal=True, softcap=1.5),
    _attention(
        " with all",
        (4, 9, 5),
        (2, 12, 5),
        has_mask=True,
        has_sink=True,
        causal=True,
        window=6,
        softcap=2.0,
    ),
)


def _loss(ops: Any, hidden: Any, weight: Any, *bias: Any) -> Any:
    return ops.linear_cross_entropy(
        hidden,
        weight,
        labels_of(hidden) % len(weight),
        bias=bias[0] if bias else None,
        reduction="none",
        bits="portable",
        label_smoothing=0.1,
        z_loss=1e-3,
    )


LOSSES = (
    Finite("linear_cross_entropy portable", _loss, ((5, 3), (4, 3)), (5,), True, False),
    Finite("linear_cross_entropy portable", _loss, ((17, 9), (11, 9), (11,)), (17,), True, False),
    Finite("linear_cross_entropy portable", _loss, ((300, 4), (6, 4), (6,)), (300,), True, False),
)

OPTIMIZERS = tuple(
    Steps(name, lambda o, *a: None, (shape, (3, *shape)), (3, *shape), True, False)
    for name in ("adamw", "sgd", "clip_by_global_norm")
    for shape in ((5, 3), (2, 3, 70))
)

MODEL = (*PRODUCTS, *ATTENTION, *LOSSES, *OPTIMIZERS)
