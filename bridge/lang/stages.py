"""Programs cut by their row reductions, to be run on parts of the columns.

A *stage* is the part of a program up to its next reductions: it gives what they reduce, or what the
columns that are here come to. Stages and the *ending*, which has no reduction left, take those of
whole rows that are known by then as operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.lang import roles
from bridge.lang.program import COLUMNS, REDUCTIONS, ROWS, Operand, Program, Result, pruned
from bridge.lang.rewriting import result_of, rewritten
from bridge.lang.values import Builder, Value

_LOG_SUMS = {"logsumexp": "log_sum", "logsumexp_rest": "log_sum_rest"}


def written_out(program: Program) -> Program:
    """The program with every log Σ eˣ as the operations that it is made of, and nothing that only
    derivatives know of."""
    if all(node.operation not in (*_LOG_SUMS, "stop_gradient") for node in program.nodes):
        return program
    builder = Builder()

    def write_out(number: int, inputs: tuple[int, ...]) -> Value | None:
        operation = program.nodes[number].operation
        if operation == "stop_gradient":
            return Value(builder, inputs[0])
        if operation in _LOG_SUMS:
            of_16 = "" if program.nodes[number].static is None else "_16"
            return _log_sum(_LOG_SUMS[operation], of_16, Value(builder, inputs[0]))
        return None

    values = rewritten(program, builder, write_out)
    results = [result_of(values, result) for result in program.results]
    return pruned(program.name, program.operands, builder.nodes, results)


def _log_sum(operation: str, of_16: str, x: Value) -> Value:
    """What is less than the row's largest is added, and what equals it is counted:
    cpp/math/log_sum.h."""

    def along(operation: str, *inputs: Value, dtype: str = "float") -> Value:
        numbers = tuple(value.number for value in inputs)
        return x.builder.node(operation, numbers, axes=ROWS | COLUMNS, dtype=dtype)

    def of_row(operation: str, *inputs: Value) -> Value:
        return x.builder.node(operation, tuple(value.number for value in inputs), axes=ROWS)

    largest = of_row("max", x)
    term = along(f"log_sum_term{of_16}", x, largest)
    is_less = along("lt", x, largest, dtype="bool")
    counted = along("where", is_less, x.builder.constant(0.0), x.builder.constant(1.0))
    return of_row(f"{operation}{of_16}", of_row("sum", term), of_row("sum", counted), largest)


def prepared(program: Program) -> Program:
    """The program whose reductions `reductions` and `stage` count."""
    return written_out(pruned(program.name, program.operands, program.nodes, program.results))


def reductions(program: Program) -> list[list[int]]:
    """The nodes of a prepared program's reductions, those that can be computed together in a list.

    The lists are in the order in which they can be computed.
    """
    phases: dict[int, list[int]] = {}
    for number, phase in enumerate(program.phase()):
        if program.nodes[number].operation in REDUCTIONS:
            phases.setdefault(phase, []).append(number)
    return [phases[phase] for phase in sorted(phases)]


def stage(program: Program, phase: int, columns: int, is_summed: bool) -> Program:
    """A stage of a prepared program, or its ending where `phase` is that behind the last.

    Its operands are those of the program, all reductions of earlier phases and, where columns are
    counted, the number of the first one.

    Args:
      columns: of a whole row.
      is_summed: whether a sum's part of the row is added up. Its terms are the result otherwise.

    Returns:
      A program that gives, of a sum, that or those; of the largest number, the largest that is
      here; of its place, that and the place among the columns that are here, as a floating number.
      The ending gives the results.
    """
    found = reductions(program)
    known = [number for numbers in found[:phase] for number in numbers]
    operands, builder = list(program.operands), Builder()
    for number in known:
        is_place = program.nodes[number].operation == "argmax"
        role = roles.PerRowOfIntegers if is_place else roles.PerRow
        operands.append(Operand(f"reduction {number}", role))
    first = len(operands)
    if any(node.operation == "column" for node in program.nodes):
        operands.append(Operand("first column", roles.Integer))

    def known_here(number: int, inputs: tuple[int, ...]) -> Value | None:
        node = program.nodes[number]
        if number in known:
            position = len(program.operands) + known.index(number)
            return builder.operand(position, 0, ROWS, node.dtype)
        if node.operation == "columns":
            return builder.constant(float(columns))
        if node.operation == "column":
            column = builder.node("column", axes=node.axes, dtype=node.dtype)
            return builder.apply("add", column, builder.operand(first, 0, 0, "int"))
        return None

    values = rewritten(program, builder, known_here)
    if phase == len(found):
        results = [replace(result_of(values, result), like=-1) for result in program.results]
        return pruned(f"ending of {program.name}", operands, builder.nodes, results)
    results = []
    for number in found[phase]:
        results += _results(values[number], is_summed)
    return pruned(f"stage {phase} of {program.name}", operands, builder.nodes, results)


def _results(value: Value, is_summed: bool) -> Sequence[Result]:
    builder = value.builder
    node = builder.nodes[value.number]
    if node.operation == "max" or (node.operation == "sum" and is_summed):
        return [Result(roles.PerRow, (value.number,))]
    if node.operation == "sum":
        return [Result(roles.Full, node.inputs)]
    largest = builder.node("max", node.inputs, axes=ROWS)
    place = builder.floating(value)
    return [Result(roles.PerRow, (largest.number,)), Result(roles.PerRow, (place.number,))]
