"""Compositions for the numbers of linear layers, in JAX."""

from __future__ import annotations

import math
from typing import Any

import jax

from bridge.catalogue.linear_rows import LinearRows
from bridge.catalogue.post_training.linear_numbers import OPS, LinearNumbers, composed
from bridge.jax._adapter import arrays
from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._adapter.linear_losses import refuse_symbolic, split_by_xla
from bridge.jax._compositions import functions
from bridge.jax._compositions.composition import Composition
from bridge.jax._compositions.framework_products import framework_functions
from bridge.jax._ops import labels as labels_of_jax

ArrayLike = jax.typing.ArrayLike


def _computed(word: str, operands: tuple[Any, ...], options: Any, bits: str | None) -> Any:
    hidden, weight, *_ = operands
    chunk = options.chunk or None
    refuse_symbolic(_PUBLIC.get(word, word), math.prod(hidden.shape[:-1]), chunk, weight.shape)
    return split_by_xla(_compiled(word, options, bits), operands, hidden, last=1)


_PUBLIC = {word: "linear_divergence" for word in OPS if not word.startswith("linear")}


@compiled_for
def _compiled(word: str, options: Any, bits: str | None) -> Any:
    def run(*operands: Any) -> Any:
        return composed(_compositions[word, bits].run, word, operands, options)

    run.__name__ = _PUBLIC.get(word, word)
    return run


_compositions = {
    (word, bits): Composition(LinearRows(own, of, name))
    for word, of in OPS.items()
    for bits, own, name in (
        ("portable", functions, of.name),
        (None, framework_functions, f"{of.name}_by_xla"),
    )
}
NUMBERS = LinearNumbers(arrays, labels_of_jax, _computed)
