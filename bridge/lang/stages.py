"""Programs cut at their row reductions, to be run on parts of the columns.

A *stage* is the part of a program up to its next reductions. It returns their operands, or their
results over the columns of this part. The *ending* is the part after the last reduction. Stages and
the ending take the results of earlier reductions over whole rows as operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.lang import roles
from bridge.lang.program import COLUMNS, REDUCTIONS, ROWS, Operand, Program, Result, pruned
from bridge.lang.rewriting import result_of, rewritten
from bridge.lang.values import Builder, Value

# Their value is the first input; the rest is for derivatives.
_DERIVED = ("stop_gradient", "straight_through")
_LOG_SUMS = {"logsumexp": "log_sum", "logsumexp_rest": "log_sum_rest"}


def written_out(program: Program) -> Program:
    """Returns the program with each log Σ eˣ written as simple operations.

    Nodes that only derivatives need are removed.
    """
    if all(node.operation not in (*_LOG_SUMS, *_DERIVED) for node in program.nodes):
        return program
    builder = Builder()

    def write_out(number: int, inputs: tuple[int, ...]) -> Value | None:
        operation = program.nodes[number].operation
        if operation in _DERIVED:
            return Value(builder, inputs[0])
        if operation in _LOG_SUMS:
            of_16 = "" if program.nodes[number].static is None else "_16"
            return _log_sum(_LOG_SUMS[operation], of_16, Value(builder, inputs[0]))
        return None

    values = rewritten(program, builder, write_out)
    results = [result_of(values, result) for result in program.results]
    return pruned(program.name, program.operands, builder.nodes, results)


def _log_sum(operation: str, of_16: str, x: Value) -> Value:
    """log Σ eˣ as in cpp/math/log_sum.h.

    It adds the terms of elements below the row's largest, and counts the elements equal to it.
    """

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
    """Returns the form of a program to which the numbers in `reductions` and `stage` refer."""
    return written_out(pruned(program.name, program.operands, program.nodes, program.results))


def reductions(program: Program) -> list[list[int]]:
    """Groups the reductions of a prepared program: one list for each phase, in order.

    The reductions of one list can be computed together.
    """
    phases: dict[int, list[int]] = {}
    for number, phase in enumerate(program.phase()):
        if program.nodes[number].operation in REDUCTIONS:
            phases.setdefault(phase, []).append(number)
    return [phases[phase] for phase in sorted(phases)]


def stage(program: Program, phase: int, columns: int, is_summed: bool) -> Program:
    """Returns a stage of a prepared program, or its ending if `phase` is the number of stages.

    The operands are those of the program, then all reductions of earlier phases and, if the program
    uses column numbers, the number of the first column of the part.

    Args:
      columns: the number of columns of a whole row.
      is_summed: True to return the partial sum of a sum over this part, False to return its terms.

    Returns:
      A program. Its results are: for a sum, the partial sum or the terms; for a max, the largest
      number of the part; for an argmax, that number and its column within the part, as a floating
      number. The results of the ending are those of the program.
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
            return builder.constant(columns if node.dtype == "int" else float(columns))
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
