"""Forms of `matmul`, `linear` and `embedding`, with bounds of their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact


def _turned(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _rows(x: Bounded) -> Bounded:
    """Joins all dimensions but the last."""
    return x.as_view(lambda values: values.reshape(-1, values.shape[-1]))


class Products:
    """A product [*batch, m, k] × [*batch, k, n] whose operands may be stored transposed.

    Another bilinear op has other methods `matrix`, `product`, `of_x` and `of_b`.

    Args:
      case: `bridge.cli.parity.grid.Case`, which knows the dtypes.
    """

    def __init__(self, case: Any, p: Operands) -> None:
        self.case, self.arithmetic, self.p = case, Arithmetic(case.arithmetic), p
        roles = case.entry.roles
        self.turns = {
            "x": roles["x"] == "left transposed",
            "b": roles.get("b") == "layer" or "weight" in roles,
        }
        self.second = "weight" if "weight" in roles else "b"

    def matrix(self, name: str) -> Bounded:
        """Returns an operand, a tangent or a direction as a matrix of the product."""
        operand = name.removeprefix("t_").removeprefix("v_")
        found = exact(self.p[name])
        return found.turned if self.turns["x" if operand == "x" else "b"] else found

    def rounded(self, x: Bounded) -> Bounded:
        return self.arithmetic.rounded(x, self.case.dtype_of("g"))

    def product(self, x: Bounded, b: Bounded) -> Bounded:
        return self.arithmetic.product(x, b)

    def stored(self, gradient: Bounded, name: str) -> Bounded:
        """Returns the gradient of a matrix in the shape of its operand."""
        is_turned = self.turns["x" if name == "x" else "b"]
        return gradient.turned if is_turned else gradient

    def of_x(self, g: Bounded, b: Bounded) -> Bounded:
        return self.stored(self.arithmetic.product(g, b.turned), "x")

    def of_b(self, x: Bounded, g: Bounded) -> Bounded:
        """Returns the gradient of b, which adds over all batches if it serves them all."""
        if self.p[self.second].ndim == 2:
            x, g = _rows(x), _rows(g)
        return self.stored(self.arithmetic.product(x.turned, g), self.second)

    def along(self, kind: str) -> Bounded:
        """Returns the sum of rounded products of an operand and the other's tangent."""
        x, b = self.matrix("x"), self.matrix(self.second)
        first = self.rounded(self.product(self.matrix(f"{kind}_x"), b))
        second = self.rounded(self.product(x, self.matrix(f"{kind}_{self.second}")))
        total = self.arithmetic.add(first, second)
        if "bias" not in self.p:
            return total
        bias = self.rounded(exact(np.broadcast_to(self.p[f"{kind}_bias"], total.shape)))
        return self.arithmetic.add(self.rounded(total), bias)

    def quantities(self) -> dict[str, Bounded]:
        """Returns the values and bounds of the product and all its derivatives."""
        p, second = self.p, self.second
        x, b, g = self.matrix("x"), self.matrix(second), exact(p["g"])
        value = self.product(x, b)
        if "bias" in p:  # before the one rounding
            value = self.arithmetic.add(value, exact(np.broadcast_to(p["bias"], value.shape)))
        found = {
            "forward": value,
            "dx": self.of_x(g, b),
            f"d{second}": self.of_b(x, g),
            "jvp": self.along("t"),
            "d2x": self.of_x(g, self.matrix(f"v_{second}")),
            f"d2{second}": self.of_b(self.matrix("v_x"), g),
            "d2g": self.along("v"),
        }
        if "bias" in p:
            found["dbias"] = self.arithmetic.column_sum(_rows(g))
            found["d2bias"] = exact(np.zeros(p["bias"].shape))
        return found


def product_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    return Products(case, p).quantities()


def _matmul(
    name: str,
    roles: tuple[str, str],
    *shapes: tuple[int, ...],
    further: tuple[tuple[int, ...], ...] = (),
) -> Entry:
    def matrices(p: Operands) -> tuple[Any, Any]:
        x = _turned(p["x"]) if roles[0] == "left transposed" else p["x"]
        return x, _turned(p["b"]) if roles[1] == "layer" else p["b"]

    def own(p: Operands) -> Any:
        x, b = matrices(p)
        if hasattr(x, "astype") or x.dtype == b.dtype:
            return x @ b
        import torch

        dtype = torch.promote_types(x.dtype, b.dtype)
        return x.to(dtype) @ b.to(dtype)

    return Entry(
        name,
        dict(zip(("x", "b"), roles, strict=True)),
        ("product",),
        lambda ops, p: ops.matmul(*matrices(p), bits="portable"),  # on a GPU those of the CPU
        own,
        own,
        compared=_comparison("products", shapes, further, product_bounds),
    )


def _comparison(
    op: str,
    own_shapes: tuple[tuple[int, ...], ...],
    shapes: tuple[tuple[int, ...], ...],
    bounds: Callable[[Any, Operands], Mapping[str, Any]],
    **others: Any,
) -> Comparison:
    return Comparison(
        op,
        bounds=bounds,
        second_order=True,
        are_rows_independent=False,
        usual=False,
        own_shapes=own_shapes,
        shapes=shapes,
        **others,
    )


def _linear(bias: bool, *shapes: tuple[int, ...]) -> Entry:
    def own(p: Operands) -> Any:
        x, weight, offset = p["x"], p["weight"], p.get("bias")
        if hasattr(x, "astype"):
            y = x @ weight.T
            return y if offset is None else y + offset
        import torch

        others = (each.dtype for each in (weight, offset) if each is not None)
        dtype = x.dtype
        for each in others:
            dtype = torch.promote_types(dtype, each)
        offset = None if offset is None else offset.to(dtype)
        return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), offset)

    roles = {"x": "left", "weight": "layer", **({"bias": "columns"} if bias else {})}
    return Entry(
        "linear" if bias else "linear without bias",
        roles,
        ("product",),
        lambda ops, p: ops.linear(p["x"], p["weight"], p.get("bias"), bits="portable"),
        own,
        own,
        compared=_comparison("products", shapes, (), product_bounds),
    )


# ---- Embedding ----


def embedding_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    """Returns the values and bounds of an embedding; the rows of a value are not computed."""
    arithmetic, ids = Arithmetic(case.arithmetic), p["ids"]

    def rows(name: str) -> Bounded:
        return exact(p[name][ids])

    g, weight = exact(p["g"].reshape(ids.size, -1)), p["x"]
    each = [
        arithmetic.column_sum(g.as_view(lambda x, place=place: x[ids.reshape(-1) == place]))
        for place in range(len(weight))
    ]
    stacked = (np.stack([getattr(x, field) for x in each]) for field in ("values", "error", "unit"))
    return {
        "forward": rows("x"),
        "dx": Bounded(*stacked),
        "jvp": rows("t_x"),
        "d2x": exact(np.zeros(weight.shape)),
        "d2g": rows("v_x"),
    }


def _own_embedding(p: Operands) -> Any:
    return p["x"][p["ids"]]


PRODUCTS = (
    _matmul("matmul", ("left", "right"), (9, 17, 600)),
    _matmul("matmul transposed", ("left transposed", "layer"), (13, 19, 257)),
    _matmul("matmul of batches", ("left", "right of batches"), (3, 5, 11, 67)),
    _matmul("matmul of sums that cancel", ("left mirrored", "right mirrored"), (16, 24, 1100)),
    _linear(True, (3, 23, 15, 300)),
    _linear(False, (11, 9, 31)),
    Entry(
        "embedding",
        {"x": "vocabulary", "ids": "ids"},
        ("embedded",),
        lambda ops, p: ops.embedding(p["ids"], p["x"]),
        _own_embedding,
        _own_embedding,
        compared=_comparison("embedding", ((3, 50, 7, 21),), ((300, 2, 5),), embedding_bounds),
    ),
)
