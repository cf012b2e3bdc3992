"""Compositions for the numbers of linear layers, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from bridge.catalogue.linear_rows import LinearRows
from bridge.catalogue.post_training.linear_numbers import OPS, LinearNumbers, composed
from bridge.torch._adapter import arrays
from bridge.torch._compositions import functions
from bridge.torch._compositions.composition import Composition
from bridge.torch._compositions.framework_products import framework_functions
from bridge.torch._ops import labels as labels_of_torch
from bridge.torch._ops.products import linear


def _computed(word: str, operands: tuple[Any, ...], options: Any, bits: str | None) -> Any:
    if any(type(t).__name__ == "DTensor" for t in operands):
        return _apart(word, operands, options, bits)
    return composed(_compositions[word, bits].run, word, operands, options)


def _apart(word: str, operands: tuple[Any, ...], options: Any, bits: str | None) -> Any:
    """Runs the parts one by one, each with its own rule for splits of DTensors."""
    of = OPS[word]
    layers = [operands[3 * i : 3 * (i + 1)] for i in range(len(of.layers))]
    multiply = linear if bits else torch.nn.functional.linear
    logits = [multiply(*each) for each in layers]
    read = (*logits, *operands[3 * len(layers) :])
    return of.op.entry("torch").run(read, None, *of.static(options))


_compositions = {
    (word, bits): Composition(LinearRows(own, of, name))
    for word, of in OPS.items()
    for bits, own, name in (
        ("portable", functions, of.name),
        (None, framework_functions, f"{of.name}_by_torch"),
    )
}
NUMBERS = LinearNumbers(arrays, labels_of_torch, _computed)
