"""Ops that reduce along the row in every way, for the tests of split columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import bridge
from bridge import lang as bl
from tests.lang import declarations


@bridge.op
def largest(x: bridge.Full) -> Any:
    """An op whose derivative needs the place of the largest number."""
    return x / (2.0 + abs(bl.max(x))), 1.0 * bl.argmax(x)


@bridge.op
def sum_of_sums(x: bridge.Full, scale: bridge.PerRow) -> Any:
    centred = x - bl.mean(x)
    return bl.sum(centred * bl.sum(centred * centred * scale)), bl.column_sum(centred * x)


@bridge.op
def dropped_mean(x: bridge.Full, bias: bridge.Row, seed: bl.Integer) -> Any:
    kept = bl.where(bl.dropout_keep(0.25, seed), x + bias, 0.0)
    return kept - bl.mean(kept)


@bridge.op
def tabled(x: bridge.Full, table: bridge.Table) -> Any:
    return x * table + bl.mean(x)


@bridge.op
def numbered(x: bridge.Full) -> Any:
    """An op that uses column numbers, and reduces nothing."""
    return bl.where(bl.column() < 5, x, x / bl.columns())


@dataclass(frozen=True)
class Case:
    """An op with its operands after the first one.

    Attributes:
      operands: "row", "per row", "table", "label" or "seed".
      sent: numbers per row that a part sends in each stage, if the part is one subtree.
    """

    op: Callable[..., Any]
    operands: tuple[str, ...]
    sent: tuple[int, ...]

    def values(self, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
        """Returns x and its other floating operands; a few rows of x are special."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
        rows, columns = x.reshape(-1, shape[-1]), shape[-1]
        rows[0] = -0.0
        rows[0, columns // 2 :] = 0.0
        rows[1] = 1.0
        rows[2, [columns // 3, columns - 1]] = np.nan
        rows[3] = -np.inf
        shapes = {"row": shape[-1:], "per row": shape[:-1], "table": (shape[-2], 1)}
        others = [rng.standard_normal(shapes[kind]) for kind in self.operands if kind in shapes]
        return [value.astype(dtype) for value in (x, *others)]

    def function(self, asarray: Callable[[np.ndarray], Any], shape: tuple[int, ...]) -> Any:
        """Returns the op as a function of the results of `values`; it returns a tuple."""
        rows = shape[:-1]
        label = (np.arange(np.prod(rows), dtype=np.int32) * 37 % shape[-1]).reshape(rows)

        def call(*values: Any) -> tuple[Any, ...]:
            given = iter(values)
            operands = [next(given)]
            for kind in self.operands:
                fixed = {"seed": 5, "label": asarray(label) if kind == "label" else None}
                operands.append(fixed[kind] if kind in fixed else next(given))
            results = self.op(*operands)
            return results if isinstance(results, tuple) else (results,)

        return call


CASES = {
    "rms_norm": Case(bridge.op(keep=("r",))(declarations.rms_norm), ("row",), (1,)),
    "layer_norm": Case(bridge.op(declarations.layer_norm), ("row", "row"), (1, 1)),
    "log_softmax": Case(bridge.op(declarations.log_softmax), (), (1, 2)),
    "cross_entropy": Case(bridge.op(declarations.cross_entropy), ("label",), (2, 2)),
    "largest": Case(largest, (), (3,)),
    "sum_of_sums": Case(sum_of_sums, ("per row",), (1, 1, 1)),
    "dropped_mean": Case(dropped_mean, ("row", "seed"), (1,)),
    "tabled": Case(tabled, ("table",), (1,)),
    "numbered": Case(numbered, (), ()),
}

# Numbers of columns, by the shape of a part when they are split in four.
COLUMNS = {
    "a subtree": 4 * 1024,
    "several subtrees": 4 * 3 * 1024,
    "whole and shared chunks": 4 * (3 * 1024 + 100),
    "halves of chunks": 4 * 1536,
    "less than a chunk": 4 * 24,
}
