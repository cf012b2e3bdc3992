"""Derivatives of programs, which are programs: forward and reverse mode, to any order.

Both modes share the rules of operations.py: the partial derivatives of an operation as values
computed from its inputs and its value. The derivative of a square is one product, doubled, which is
exact.

The order of additions is part of the result (docs/numerics.md). The cotangents of a value are added
in the order in which reverse mode meets its uses: the last use first, and the left input first
within one operation. Cotangents at every place of a row are added before their sum along the row,
and this sum before cotangents that came once per row. Tangents are added from the left input to the
right. Zeros known from the structure of the program are left out; computed zeros are not.

choices.py applies the conditions of selects (where, minimum, maximum, max) to cotangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from bridge.lang import functions as f
from bridge.lang import reductions, roles
from bridge.lang.active import while_active
from bridge.lang.derivatives.selects import (
    Cotangent,
    both,
    conditions,
    is_first,
    select_late,
    uncut,
)
from bridge.lang.dtypes import OF_8_BITS
from bridge.lang.operations import scalar_of
from bridge.lang.program import (
    AXES,
    BLOCK_REDUCTIONS,
    COLUMNS,
    FULL,
    REDUCTIONS,
    ROWS,
    Node,
    Operand,
    Program,
    Result,
    blocks_of,
    pruned,
)
from bridge.lang.rewriting import rewritten
from bridge.lang.values import Builder, Value


def differentiated(y: Value, x: Value) -> Value:
    """dy/dx, for a y computed from x in the same program."""
    builder = x.builder
    read = {y.number}
    for number in range(y.number, x.number, -1):
        if number in read:
            read.update(builder.nodes[number].inputs)
    tangents: dict[int, Value] = {x.number: builder.constant(1.0)}
    for number in sorted(read):
        node = builder.nodes[number]
        if node.dtype == "float" and any(i in tangents for i in node.inputs):
            inputs = [Value(builder, i) for i in node.inputs]
            pushed = _push(
                node, inputs, Value(builder, number), [tangents.get(i) for i in node.inputs]
            )
            assert pushed is not None
            tangents[number] = pushed
    return tangents[y.number]


def _partials(node: Node, x: Sequence[Value], y: Value) -> Sequence[Value]:
    """Returns the partial derivatives of a scalar operation, by its rule in the table."""
    scalar = scalar_of(node.operation, node.static)
    assert scalar is not None
    if scalar.expansion is not None:
        return [differentiated(scalar.expansion(f, x[0]), x[0])]
    assert scalar.rule is not None
    return scalar.rule(f, y, *x)


_LOG_SUMS = ("logsumexp", "logsumexp_rest")


def _rest_of(x: Sequence[Value], y: Value) -> Value:
    """Returns log Σ e^(x − most): an input of a logsumexp node, or the node itself."""
    return x[2] if len(x) > 2 else y


def _over_sum(rest: Value) -> Value:
    """1 / Σ e^(x − most), computed from the logarithm of the sum, which is not negative."""
    return f.apply("exp_low", -rest)


def _beside(x: Value, most: Value) -> Value:
    """e^(x − most), for a `most` at least as large as the row's x; 0 in a row of -inf.

    It is the softmax without its per-row factor.
    """
    return f.apply("exp_low", x - f.where(most == -inf, 0.0, most))


def _push(node: Node, x: Sequence[Value], y: Value, t: Sequence[Value | None]) -> Value | None:
    """Computes the tangent of a node from the tangents of its inputs; None stands for zero."""
    if all(tangent is None for tangent in t):
        return None
    operation = node.operation
    if operation == "sum":
        assert t[0] is not None
        return f.sum(t[0])
    if operation in _LOG_SUMS:
        assert t[0] is not None
        return _over_sum(_rest_of(x, y)) * f.sum(_beside(*x[:2]) * t[0])
    if operation == "where":
        return f.where(x[0], 0.0 if t[1] is None else t[1], 0.0 if t[2] is None else t[2])
    if operation in ("minimum", "maximum"):
        return f.where(is_first(operation, x), *(0.0 if i is None else i for i in t))
    if operation == "straight_through":
        return t[1]
    if operation == "rounded":
        return t[0] if node.static in OF_8_BITS else f.rounded(t[0], node.static)
    if operation == "neg":
        assert t[0] is not None
        return -t[0]
    if operation == "sub":
        if t[1] is None:
            return t[0]
        return -t[1] if t[0] is None else t[0] - t[1]
    if operation == "add":
        terms = [tangent for tangent in t if tangent is not None]
    elif operation == "block_sum":
        assert t[0] is not None
        return f.block_sum(t[0], node.static)
    elif operation == "block_max":
        assert t[0] is not None
        is_largest = f.column() == reductions.block_argmax(x[0], node.static)
        return f.block_sum(f.where(is_largest, t[0], -0.0), node.static)
    elif operation == "max":
        # A select, not a product: the other elements may be infinite.
        assert t[0] is not None
        return f.sum(f.where(f.column() == f.argmax(x[0]), t[0], -0.0))
    elif operation == "div":
        # (t₀ − y·t₁)/x₁, one division.
        top = t[0]
        if t[1] is not None:
            moved = y * t[1]
            top = -moved if top is None else top - moved
        assert top is not None
        return top / x[1]
    elif operation == "mul" and node.inputs[0] == node.inputs[1]:
        assert t[0] is not None
        return 2.0 * (x[0] * t[0])
    else:
        partials = _partials(node, x, y)
        terms = [p * i for p, i in zip(partials, t, strict=True) if i is not None]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _pull(node: Node, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value | None]:
    """Computes the cotangents of a node's inputs; for a select without its conditions."""
    operation = node.operation
    if operation == "where":
        return [None, g, g]
    if operation in ("minimum", "maximum"):
        return [g, g]
    if operation == "straight_through":
        return [None, g]
    if operation == "rounded":
        return [g if node.static in OF_8_BITS else f.rounded(g, node.static)]
    if operation == "neg":
        return [-g]
    if operation == "add":
        return [g, g]
    if operation == "sub":
        return [g, -g]
    if operation in ("sum", "max", "block_sum", "block_max"):
        return [g]
    if operation in _LOG_SUMS:  # one product for each element, the other once for each row
        down = (g * _over_sum(_rest_of(x, y))) * _beside(*x[:2])
        return [down, *[None] * (len(x) - 1)]
    if operation == "div":
        down = g / x[1]
        return [down, -(down * y)]
    if operation == "mul" and node.inputs[0] == node.inputs[1]:
        return [2.0 * (g * x[0]), None]
    return [g * p for p in _partials(node, x, y)]


def kept_operands(program: Program, kept: Sequence[int]) -> list[Operand]:
    """Returns the operands through which residuals come in."""
    by_axes = {FULL: roles.Full, ROWS: roles.PerRow, COLUMNS: roles.Row}
    return [Operand(f"kept {number}", by_axes[program.nodes[number].axes]) for number in kept]


def replayed(program: Program, builder: Builder, kept: Sequence[int]) -> list[Value]:
    """Writes the program's nodes into another builder; residuals are read as operands.

    If rows are segments, further sums leave out the columns that the program leaves out.
    """

    def read(number: int, inputs: tuple[int, ...]) -> Value | None:
        if number not in kept:
            return None
        position = len(program.operands) + kept.index(number)
        return builder.operand(position, 0, program.nodes[number].axes, "float")

    values = rewritten(program, builder, read)
    for position, operand in enumerate(program.operands):
        if operand.role is roles.Segments:
            builder.end_rows_at(builder.operand(position, 0, ROWS, operand.dtype))
    return values


def _moving(program: Program, moved: Sequence[bool]) -> list[bool]:
    """True for each node that depends, differentiably, on a moved operand."""
    moving: list[bool] = []
    for node in program.nodes:
        if node.operation == "operand":
            moving.append(node.dtype == "float" and moved[node.static[0]])
        else:
            may_move = node.dtype == "float" and node.operation != "stop_gradient"
            moving.append(may_move and any(moving[i] for i in node.inputs))
    return moving


def _halves(role: type[roles.Annotation]) -> range:
    return range(2 if role in roles.DOUBLE else 1)


def jvp(program: Program, moved: Sequence[bool], kept: Sequence[int] = ()) -> Program:
    """Forward mode: the tangents of a program's results.

    Args:
      program: any.
      moved: for each operand, True if it has a tangent; the others are constants.
      kept: the residuals: nodes of the program whose values are operands of the derivative.

    Returns:
      A program of the operands, the residuals and the tangents of the moved operands, in this
      order. It returns the tangents of all results, a constant 0 for a result that does not move.
    """
    builder = Builder()
    operands = [*program.operands, *kept_operands(program, kept)]

    def write() -> list[Result]:
        values = replayed(program, builder, kept)
        tangents: list[Value | None] = [None] * len(values)
        place = {
            position: _append(operands, program, position, "tangent of ")
            for position, is_moved in enumerate(moved)
            if is_moved
        }
        moving = _moving(program, moved)
        for number, node in enumerate(program.nodes):
            if not moving[number]:
                continue
            if node.operation == "operand":
                position, half = node.static
                tangents[number] = builder.operand(place[position], half, node.axes, "float")
            else:
                own_inputs = [uncut(program, values, i) for i in node.inputs]
                inputs, moved_by = (
                    [values[i] for i in own_inputs],
                    [tangents[i] for i in own_inputs],
                )
                tangents[number] = _push(node, inputs, values[number], moved_by)
        results = []
        for result in program.results:
            found = [tangents[number] for number in result.nodes]
            numbers = [builder.constant(0.0) if t is None else builder.floating(t) for t in found]
            results.append(replace(result, nodes=tuple(value.number for value in numbers)))
        return results

    results = while_active(builder, write)
    return pruned(f"jvp of {program.name}", operands, builder.nodes, results)


def _append(operands: list[Operand], program: Program, position: int, prefix: str) -> int:
    own = program.operands[position]
    operands.append(Operand(prefix + own.name, own.role))
    return len(operands) - 1


def vjp(
    program: Program,
    given: Sequence[bool],
    wanted: Sequence[bool],
    kept: Sequence[int] = (),
) -> Program:
    """Reverse mode: the cotangents of a program's operands.

    Args:
      program: any.
      given: for each result, True if it has a cotangent; the others count as zero.
      wanted: for each operand, True if its cotangent is wanted; False for operands not floating.
      kept: the residuals: nodes of the program whose values are operands of the derivative.

    Returns:
      A program of the operands, the residuals and the given cotangents, in this order. Its results
      are the wanted cotangents, each in the dtype of its operand: a column sum for a Row operand, a
      sum along the row for a PerRow operand, a sum over the repeated dimensions for a Table.
    """
    builder = Builder()
    operands = [*program.operands, *kept_operands(program, kept)]

    def write() -> list[Result]:
        values = replayed(program, builder, kept)
        moving = _moving(program, wanted)
        late = select_late(program, moving)
        blocks = blocks_of(program.operands, program.nodes)
        # Cotangents received at every place of a row, and cotangents received once per row.
        along: list[Cotangent | None] = [None] * len(values)
        beside: list[Cotangent | None] = [None] * len(values)

        def receive(
            number: int, cotangent: Cotangent, came_along: bool = False, from_blocks: int = 0
        ) -> None:
            if not moving[number]:
                return
            is_wider = cotangent.axes & COLUMNS and not program.nodes[number].axes & COLUMNS
            if blocks[number]:
                is_wider = came_along
            elif from_blocks and not program.nodes[number].axes & COLUMNS:
                # One number for each block, which stands in each of its columns.
                once = reductions.in_first_columns(cotangent.selected(), from_blocks)
                cotangent, is_wider = Cotangent(once), True
            elif came_along and not cotangent.axes & COLUMNS:
                # The same number arrived at every place of the row.
                cotangent = replace(cotangent, value=f.columns() * cotangent.value)
            received = along if is_wider else beside
            own = received[number]
            received[number] = cotangent if own is None else own.plus(cotangent, late[number])

        def total(number: int) -> Cotangent | None:
            wide, own = along[number], beside[number]
            if wide is not None:
                if late[number]:
                    summed = wide.summed(blocks[number])
                elif blocks[number]:
                    summed = Cotangent(f.block_sum(wide.selected(), blocks[number]))
                else:
                    summed = Cotangent(f.sum(wide.selected()))
                own = summed if own is None else summed.plus(own, late[number])
            if own is None or late[number]:
                return own
            return Cotangent(own.selected())

        for result, is_given in zip(program.results, given, strict=True):
            if not is_given:
                continue
            operands.append(Operand(f"cotangent of {result.name or 'result'}", result.role))
            for half, number in zip(_halves(result.role), result.nodes, strict=True):
                g = builder.operand(len(operands) - 1, half, AXES[result.role], "float")
                receive(uncut(program, values, number), Cotangent(g))
        for number in range(len(program.nodes) - 1, -1, -1):
            node = program.nodes[number]
            if node.operation == "operand" or not moving[number]:
                continue
            cotangent = total(number)
            if cotangent is None:
                continue
            own_inputs = [uncut(program, values, i) for i in node.inputs]
            inputs = [values[i] for i in own_inputs]
            pulled = _pull(node, inputs, values[number], cotangent.value)
            is_reduction = node.operation in REDUCTIONS or node.operation in BLOCK_REDUCTIONS
            is_wide = bool(node.axes & COLUMNS or is_reduction)
            own = 0 if is_reduction else blocks[number]
            for i, value, chosen in zip(own_inputs, pulled, conditions(node, inputs), strict=True):
                if value is not None:
                    came_along = is_wide and not program.nodes[i].axes & COLUMNS
                    if blocks[i]:
                        came_along = not own
                    pulled_back = Cotangent(value, both(cotangent.conditions, chosen))
                    receive(i, pulled_back, came_along, own)
        of_operands = [(n, node) for n, node in enumerate(program.nodes) if node.inputs == ()]
        places = {node.static: n for n, node in of_operands if node.operation == "operand"}
        results = []
        for position, operand in enumerate(program.operands):
            if not wanted[position]:
                continue
            halves = [places.get((position, half)) for half in _halves(operand.role)]
            totals = [None if place is None else total(place) for place in halves]
            numbers = [builder.constant(0.0) if each is None else each.value for each in totals]
            results.append(
                Result(
                    operand.role,
                    tuple(value.number for value in numbers),
                    position,
                    f"cotangent of {operand.name}",
                )
            )
        return results

    results = while_active(builder, write)
    return pruned(f"vjp of {program.name}", operands, builder.nodes, results)
