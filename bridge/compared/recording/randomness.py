"""Random numbers of a run: the lines that draw them, and whether dropout uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bridge.compared.recording.sources import Line
from bridge.compared.recording.values import Value

DROPOUT = {"native_dropout", "_fused_dropout"}  # operations that draw, scale and zero
MASKS = {"bernoulli", "bernoulli_"}  # draws of zeros and ones
PRODUCTS = {"mul", "mul_", "select_n", "where", "masked_fill", "masked_fill_", "div", "div_"}


def line_of(value: Value) -> Line | None:
    """Returns the line of a value of either side."""
    return value.place if isinstance(value.place, Line) else getattr(value.place, "line", None)


def lines_of_dropout(
    values: Sequence[Value], draws: Collection[str], lines: Iterable[Line]
) -> set[Line]:
    """Returns the lines whose random numbers zero or scale an activation.

    A mask is made of such numbers alone, by a comparison or as zeros and ones. Dropout multiplies
    a value that does not depend on them with it, or selects with it. Noise that is added and a
    token that is drawn are no dropout.
    """
    found = set()
    for line in lines:
        drawn: set[int] = set()  # computed from these random numbers alone
        masks: set[int] = set()
        for value in values:
            is_draw = value.op in draws and line_of(value) == line
            if is_draw and value.op in DROPOUT:
                found.add(line)
                break
            parents = drawn.intersection(value.parents)
            if not (is_draw or parents):
                continue
            others = [values[k] for k in value.parents if k not in drawn and values[k].tells]
            if is_draw or not others:
                drawn.add(value.index)
                is_mask = value.printed is None or value.op in MASKS
                if is_mask or not masks.isdisjoint(value.parents):
                    masks.add(value.index)
            elif value.op in PRODUCTS and not masks.isdisjoint(value.parents):
                found.add(line)
                break
    return found
