"""The public functions in the forms of docs/sharding.md, to be split over devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS = (4, 64), 2048
PARTS = 2  # devices that share the rows, or the columns


@dataclass(frozen=True)
class Form:
    """A public function, and the kinds of its operands.

    Attributes:
      function: a function of `bridge.torch` or `bridge.jax`, and the operands.
      operands: a word for each of them, see `SHAPES`.
    """

    function: Callable[..., Any]
    operands: tuple[str, ...]


_HALF = (ROWS[-1], COLUMNS // 2)
SHAPES: dict[str, tuple[int, ...]] = {
    "x": (*ROWS, COLUMNS),
    "packed": (*ROWS, 2 * COLUMNS),
    "row": (COLUMNS,),
    "packed row": (2 * COLUMNS,),
    "number": (1,),
    "three numbers": (3,),
    "channels": ROWS[-1:],
    "number a row": ROWS,
    "label": ROWS,
    "angles": _HALF,  # constants without a gradient here
    "angles that learn": _HALF,
    "packed angles": (ROWS[-1], COLUMNS),
    "mask": (1, ROWS[-1], COLUMNS),
    "sink": (1,),
    "hidden": (*ROWS, 32),
    "vocabulary": (COLUMNS, 32),  # each row gives one logit column
}
CONSTANTS = ("label", "angles", "packed angles", "mask")


def split_dim(operand: str, dim: int) -> int | None:
    """Returns the split dimension of an operand, or None, if dimension `dim` of x is split."""
    shape = SHAPES[operand]
    if dim == 0:
        return 0 if shape[:2] == ROWS else None
    if operand == "vocabulary":
        return 0
    is_wide = shape[-1] in (COLUMNS, 2 * COLUMNS, COLUMNS // 2)
    return len(shape) - 1 if is_wide else None


def drawn(operand: str, rng: np.random.Generator) -> np.ndarray:
    shape = SHAPES[operand]
    if operand == "label":
        return rng.integers(0, COLUMNS, shape, np.int32)
    if operand == "mask":
        return rng.random(shape) < 0.4
    return rng.standard_normal(shape, np.float32)


_NORM_ROTARY = ("packed", "packed row", "packed angles", "packed angles")
FORMS = {
    "bias_gelu": Form(lambda ops, x: ops.bias_gelu(x), ("x",)),
    "bias_gelu, bias": Form(lambda ops, *a: ops.bias_gelu(*a), ("x", "row")),
    "bias_dropout_add": Form(
        lambda ops, x, residual: ops.bias_dropout_add(x, None, residual, p=0.3, seed=7), ("x", "x")
    ),
    "bias_dropout_add, bias": Form(
        lambda ops, *a: ops.bias_dropout_add(*a, p=0.3, seed=7), ("x", "row", "x")
    ),
    "scaled_softmax": Form(lambda ops, x: ops.scaled_softmax(x, 0.7), ("x",)),
    "scaled_masked_softmax": Form(lambda ops, *a: ops.scaled_masked_softmax(*a), ("x", "mask")),
    "scaled_causal_softmax": Form(lambda ops, x: ops.scaled_causal_softmax(x), ("x",)),
    "a softmax, sink": Form(lambda ops, x, sink: ops.scaled_softmax(x, sink=sink), ("x", "sink")),
    "rms_norm": Form(lambda ops, x: ops.rms_norm(x), ("x",)),
    "rms_norm, weight": Form(lambda ops, *a: ops.rms_norm(*a), ("x", "row")),
    "layer_norm": Form(lambda ops, x: ops.layer_norm(x), ("x",)),
    "layer_norm, weight, bias": Form(lambda ops, *a: ops.layer_norm(*a), ("x", "row", "row")),
    "dyt": Form(lambda ops, *a: ops.dyt(*a), ("x", "number", "row", "row")),
    "poly_norm": Form(lambda ops, *a: ops.poly_norm(*a), ("x", "three numbers", "number")),
    "gated_rms_norm": Form(lambda ops, *a: ops.gated_rms_norm(*a), ("x", "x")),
    "gated_rms_norm, weight": Form(lambda ops, *a: ops.gated_rms_norm(*a), ("x", "x", "row")),
    "gated_rms_norm, weight, groups": Form(
        lambda ops, *a: ops.gated_rms_norm(*a, groups=PARTS), ("x", "x", "row")
    ),
    "group_norm": Form(lambda ops, x: ops.group_norm(x, 8), ("x",)),
    "group_norm, weight, bias": Form(
        lambda ops, x, *a: ops.group_norm(x, 8, *a), ("x", "channels", "channels")
    ),
    "glu, gate and up": Form(lambda ops, *a: ops.swiglu(*a), ("x", "x")),
    "glu, gate and up, weight": Form(
        lambda ops, gate, up, weight: ops.swiglu(gate, up, weight=weight),
        ("x", "x", "number a row"),
    ),
    "glu, packed": Form(lambda ops, x: ops.swiglu(x), ("packed",)),
    "glu, packed, bias": Form(
        lambda ops, x, bias: ops.swiglu(x, None, bias), ("packed", "packed row")
    ),
    "glu, interleaved": Form(lambda ops, x: ops.swiglu(x, interleaved=True), ("packed",)),
    "glu, blocks": Form(lambda ops, x: ops.swiglu(x, blocks=PARTS), ("packed",)),
    "squared_relu": Form(lambda ops, x: ops.squared_relu(x), ("x",)),
    "rotary": Form(lambda ops, *a: ops.rotary(*a), ("x", "angles", "angles")),
    "rotary, interleaved": Form(
        lambda ops, *a: ops.rotary(*a, interleaved=True), ("x", "angles", "angles")
    ),
    "rotary, gradients of cos and sin": Form(
        lambda ops, *a: ops.rotary(*a, interleaved=True),
        ("x", "angles that learn", "angles that learn"),
    ),
    "rms_norm_rotary": Form(lambda ops, *a: ops.rms_norm_rotary(*a), _NORM_ROTARY),
    "rms_norm_rotary, interleaved": Form(
        lambda ops, *a: ops.rms_norm_rotary(*a, interleaved=True), _NORM_ROTARY
    ),
    "log_softmax": Form(lambda ops, x: ops.log_softmax(x), ("x",)),
    "logsumexp": Form(lambda ops, x: ops.logsumexp(x), ("x",)),
    "cross_entropy": Form(lambda ops, *a: ops.cross_entropy(*a, reduction="none"), ("x", "label")),
    "cross_entropy, mean": Form(lambda ops, *a: ops.cross_entropy(*a), ("x", "label")),
    "token_log_probs": Form(lambda ops, *a: ops.token_log_probs(*a), ("x", "label")),
    "entropy": Form(lambda ops, x: ops.entropy(x), ("x",)),
    "kl_div": Form(lambda ops, *a: ops.kl_div(*a), ("x", "x")),
    "js_div": Form(lambda ops, *a: ops.js_div(*a), ("x", "x")),
    "tv_distance": Form(lambda ops, *a: ops.tv_distance(*a), ("x", "x")),
    "policy_loss, none": Form(
        lambda ops, *a: ops.policy_loss(*a, reduction="none"), ("x", "x", "number a row")
    ),
    "preference_loss, none": Form(
        lambda ops, *a: ops.preference_loss(*a, reduction="none"), ("x", "x")
    ),
    "linear_cross_entropy": Form(
        lambda ops, hidden, weight, labels: ops.linear_cross_entropy(hidden, weight, labels),
        ("hidden", "vocabulary", "label"),
    ),
}


@dataclass(frozen=True)
class Listed:
    """A row of the table of docs/sharding.md: cells by (framework, direction)."""

    jax_forward: str
    jax_backward: str
    dtensor_forward: str
    dtensor_backward: str


def listed() -> dict[tuple[str, str], Listed]:
    """Returns the table by form and split dimension, "rows" or "columns"."""
    page = (Path(__file__).parents[1] / "docs" / "sharding.md").read_text()
    table = page.split("<!-- collectives -->")[1].split("<!-- end of collectives -->")[0]
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    return {
        (form, dim): Listed(*cells)
        for form, dims, *cells in filter(lambda line: len(line) == 6, lines[3:])
        for dim in dims.split(", ")
    }


def transfers(cell: str) -> dict[str, list[int]]:
    """Returns for each collective the amounts in a cell for JAX; empty if it names none."""
    if cell == "–":
        return {}
    found = re.findall(
        r"(all-gather|all-reduce|collective-permute)(?: of ([\d +]+))?(?:, |$)", cell
    )
    assert ", ".join(f"{name} of {n}" if n else name for name, n in found) == cell
    return {name: [int(each) for each in n.split("+") if n] for name, n in found}


def counts(cell: str) -> dict[str, int]:
    """Returns the count of each collective in a cell for DTensor."""
    found = re.findall(r"(\d+) (all-gather|all-to-all|all-reduce)", cell)
    assert (", ".join(f"{count} {name}" for count, name in found) or "–") == cell
    return {name: int(count) for count, name in found}
