"""Reduced-precision lowering: programs on arrays of one 16-bit type use cheaper functions.

A function may have a small relative error if its value reaches the results only through operations
that keep a relative error small, and the results are rounded to 16 bits. cpp/math has such
functions at a third of the cost. Values that are added, compared, summed along a row, saved as
residuals or returned in float32 keep the accuracy of the arithmetic. If only one column of each row
needs the accurate value, both values are computed. log Σ eˣ of 16-bit numbers is an exception: it
has a version with fewer operations and nearly the same accuracy, used everywhere.

The lowering sees the whole program, before it is cut into stages or loses unwanted results, so a
value does not depend on the choice of other results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from bridge.lang import functions
from bridge.lang.operations import FOR_16_BITS, silu_slope
from bridge.lang.program import COLUMNS, Node, Program, constant_of, pruned, sole_column
from bridge.lang.values import Builder

_FUNCTIONS = frozenset(operation for operation, _ in FOR_16_BITS)
_LOG_SUMS = frozenset({"logsumexp", "logsumexp_rest"})
# Operations with the inputs whose relative error they pass on as a relative error.
_PASSES = {"mul": (0, 1), "div": (0, 1), "neg": (0,), "abs": (0,), "where": (1, 2)}


def with_short_log_sums(program: Program, dtype: str) -> Program:
    """Marks each log Σ eˣ of 16-bit numbers in a declared program to be computed in the short form.

    Derivatives use the marks of the program and set none: a residual would look like an operand to
    them.
    """

    def shortened(node: Node) -> Node:
        if node.operation in _LOG_SUMS and _is_of_16_bits(program, node.inputs[0]):
            return replace(node, static=dtype)
        return node

    return replace(program, nodes=tuple(map(shortened, program.nodes)))


def narrowed(program: Program, dtype: str, is_exact: Sequence[bool]) -> Program:
    """Replaces functions by those of a 16-bit type where their accuracy suffices.

    Args:
      is_exact: for each result, True if its numbers are not rounded to that type.
    """
    slopes = _slopes(program)
    may = _may_be_rough(program, is_exact, slopes, dtype)

    def narrow(number: int, node: Node) -> Node:
        if number in slopes:
            return replace(node, operation="silu_slope", inputs=(slopes[number],), static=dtype)
        static = (*node.static, dtype) if isinstance(node.static, tuple) else dtype
        # A per-row power is not worth it.
        is_power_of_row = node.operation == "exp_low" and not node.axes & COLUMNS
        if (node.operation, static) not in FOR_16_BITS or is_power_of_row:
            return node
        return replace(node, static=static)

    nodes: list[Node] = []
    places: list[int] = []  # the new numbers of the program's nodes

    def add(node: Node, inputs: Sequence[int]) -> int:
        nodes.append(replace(node, inputs=tuple(inputs)))
        return len(nodes) - 1

    @functools.cache
    def rough(number: int) -> int:
        """Returns the number of a less accurate copy of a node, for readers that accept it."""
        if may[number]:
            return places[number]
        node = program.nodes[number]
        narrow_node = narrow(number, node)
        own = [places[i] for i in narrow_node.inputs]
        if narrow_node is not node:
            return add(narrow_node, own)
        passed = _PASSES.get(node.operation, ())
        inputs = [rough(i) if k in passed else places[i] for k, i in enumerate(node.inputs)]
        return places[number] if inputs == own else add(node, inputs)

    for number, node in enumerate(program.nodes):
        if may[number]:
            node = narrow(number, node)
        inputs = [places[i] for i in node.inputs]
        is_choice = node.operation == "where" and may[number]
        if is_choice and sole_column(program.nodes, node.inputs[0]) is not None:
            # This column may need an accurate value; all other columns do not.
            inputs[2] = rough(node.inputs[2])
        places.append(add(node, inputs))
    results = [replace(r, nodes=tuple(places[i] for i in r.nodes)) for r in program.results]
    return pruned(program.name, program.operands, nodes, results)


def _is_of_16_bits(program: Program, number: int) -> bool:
    """True for an operand, or an operand times a constant; hidden elements may be 0 or -inf."""
    node = program.nodes[number]
    if node.operation == "where":
        others = [i for i in node.inputs[1:] if not _is_filling(program.nodes[i])]
        return len(others) == 1 and _is_of_16_bits(program, others[0])
    if node.operation == "mul":
        operations = [program.nodes[i].operation for i in node.inputs]
        return sorted(operations) == ["constant", "operand"]
    return node.operation == "operand"


def _is_filling(node: Node) -> bool:
    return node.operation == "constant" and constant_of(node) in (0.0, -math.inf)


def depends_on_functions(program: Program, numbers: Sequence[int]) -> bool:
    """True if nodes are computed from values that `narrowed` may change."""
    read = set(numbers)
    for number in range(len(program.nodes) - 1, -1, -1):
        if number in read:
            if program.nodes[number].operation in _FUNCTIONS:
                return True
            read.update(program.nodes[number].inputs)
    return False


def _may_be_rough(
    program: Program, is_exact: Sequence[bool], slopes: dict[int, int], dtype: str
) -> list[bool]:
    may = [True] * len(program.nodes)
    for result, is_kept in zip(program.results, is_exact, strict=True):
        for number in result.nodes:
            may[number] = may[number] and not is_kept
    for number in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[number]
        if number in slopes and may[number]:
            continue  # it is computed from its argument only
        if node.operation == "rounded" and node.static == dtype:
            continue  # it has the bits of a result that another op reads
        passed = _PASSES.get(node.operation, ()) if may[number] else ()
        for place, i in enumerate(node.inputs):
            may[i] = may[i] and place in passed
    return may


def _slopes(program: Program) -> dict[int, int]:
    """Finds the derivatives of SiLU in the form of operations.py; returns x for each."""
    nodes, found = program.nodes, {}
    for number, node in enumerate(nodes):
        if node.operation == "add" and nodes[node.inputs[0]].operation == "sigmoid":
            (x,) = nodes[node.inputs[0]].inputs
            builder = Builder()
            silu_slope(functions, builder.operand(0, 0, nodes[x].axes, "float"))
            if _is_copy(nodes, number, builder.nodes, {0: x}):
                found[number] = x
    return found


def _is_copy(
    nodes: Sequence[Node], number: int, other: Sequence[Node], same: dict[int, int]
) -> bool:
    """True if a node is computed as the last node of `other`, where `same` maps equal nodes."""
    wanted = [(len(other) - 1, number)]
    while wanted:
        theirs, own = wanted.pop()
        if theirs in same:
            if same[theirs] != own:
                return False
            continue
        a, b = other[theirs], nodes[own]
        if replace(a, inputs=b.inputs) != b:
            return False
        wanted.extend(zip(a.inputs, b.inputs, strict=True))
    return True
