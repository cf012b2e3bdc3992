"""Bounds on the effect of roundings on the results of a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bridge.checked.arrays import Arrays
from bridge.checked.comparisons import BrokenPromiseError, hold_close
from bridge.checked.example import Example, shape_of, space_of
from bridge.lang import roles
from bridge.lang.dtypes import DTYPES
from bridge.lang.program import COLUMNS, FULL, Node, Operand, Program, constant_of
from bridge.lang.reference import evaluate

_ROLE_OF = {FULL: roles.Full, COLUMNS: roles.Row}
_EXACT = {"neg", "abs", "where", "minimum", "maximum", "max", "float", "columns", "binade"}
_EXACT |= {"stop_gradient", "straight_through"}


def hold_right(e: Example, what: str, arrays: Arrays) -> None:
    """Checks value and gradients: bits in both frameworks, dtypes, distance from the reference."""
    cotangents = e.cotangents(arrays)
    found, exact = e.pulled(what, arrays, cotangents), e.exact(arrays, cotangents)
    names = names_of_pulled(e, what, len(cotangents))
    dtypes = [*e.dtypes(arrays), *(arrays[i].dtype for i in e.smooth)]
    bounds = _bounds(e, arrays, cotangents)
    for name, array, right, dtype, bound in zip(names, found, exact, dtypes, bounds, strict=True):
        if array.dtype != dtype:
            raise BrokenPromiseError(f"{name} is {array.dtype}, expected {dtype}")
        form = DTYPES[dtype]
        unit, largest = form.epsilon, form.largest
        overflows = np.isinf(array.values) & (array.values * right > 0)
        overflows &= np.abs(right) > largest * (1 - unit)
        expected = (
            np.where(overflows, array.values, right) if right.shape == array.data.shape else right
        )
        hold_close(
            name, array.values, expected, 4 * unit * np.abs(right) + bound + 4 * form.smallest
        )


def names_of_pulled(e: Example, what: str, results: int) -> list[str]:
    """Returns the names of results and then gradients, as `pulled` returns them."""
    names = [*(f"{what}: result {i}" for i in range(results))]
    return names + [f"{what}: gradient of {e.program.operands[i].name}" for i in e.smooth]


def _bounds(e: Example, arrays: Arrays, cotangents: Arrays) -> list[Any]:
    """Estimates the effect of roundings on float results; a bound for each row or each number.

    Every value of the program is changed by a unit at random. The bound is the largest change in
    the row, of several draws.
    """
    is_double = any(a.dtype == "float64" for a in arrays)
    unit = DTYPES["float64" if is_double else "float32"].epsilon
    space = space_of(e.program, arrays)
    operands = [a.values for a in arrays]
    bounds: list[Any] = []
    for program, given in (
        (e.program, operands),
        (e.back, [*operands, *(c.values for c in cotangents)]),
    ):
        exact = evaluate(program, given)
        moved = [np.zeros(np.shape(right)) for right in exact]
        noisy = _noisy(program)
        shapes = [shape_of(o.role, space) for o in noisy.operands[len(given) :]]
        for _ in range(4):
            factors = [1 + unit * e.rng.choice([-1, 1], shape) for shape in shapes]
            for array, right, other in zip(
                moved, exact, evaluate(noisy, [*given, *factors]), strict=True
            ):
                with np.errstate(invalid="ignore"):
                    np.fmax(array, np.abs(other - right), out=array)
        bounds += [m.max(axis=-1, keepdims=True, initial=0.0) if m.ndim else m for m in moved]
    return [8 * bound for bound in bounds]


def _noisy(program: Program) -> Program:
    """Returns the program with every rounded value multiplied by a further operand.

    These operands follow the program's own, in the roles of the values.
    """
    nodes: list[Node] = []
    operands = list(program.operands)
    new: list[int] = []
    for node in program.nodes:
        nodes.append(replace(node, inputs=tuple(new[i] for i in node.inputs)))
        if node.dtype == "float" and _is_rounded(node):
            factor = Node("operand", (), (len(operands), 0), node.axes, "float")
            operands.append(Operand("rounding", _ROLE_OF.get(node.axes, roles.PerRow)))
            value = len(nodes) - 1
            if node.operation == "logsumexp":  # the rounded powers are inside the logarithm
                one = Node("constant", (), (1.0).hex(), 0, "float")
                moved = replace(node, operation="fma", inputs=(value, value + 1, value + 1))
                nodes += [factor, moved, one]
                nodes.append(replace(node, operation="sub", inputs=(value + 2, value + 3)))
            else:
                moved = replace(node, operation="mul", inputs=(value, value + 1), static=None)
                nodes += [factor, moved]
        new.append(len(nodes) - 1)
    results = [replace(r, nodes=tuple(new[i] for i in r.nodes)) for r in program.results]
    return replace(program, operands=tuple(operands), nodes=tuple(nodes), results=tuple(results))


def _is_rounded(node: Node) -> bool:
    if node.operation != "constant":
        return node.operation not in _EXACT
    with np.errstate(over="ignore"):
        return bool(float(np.float32(constant_of(node))) != constant_of(node))
