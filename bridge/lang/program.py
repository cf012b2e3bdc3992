"""Programs: a declaration as a short list of operations on whole rows.

The type of a value is the set of dimensions along which it varies (the rows of the space, its
columns, both or neither) and its kind: floating, integer or boolean. Arithmetic broadcasts. A row
reduction removes the columns. A column sum removes the rows and is allowed in results only.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.lang import roles

ROWS, COLUMNS = 1, 2
FULL = ROWS | COLUMNS
AXES: dict[Any, int] = {
    roles.Full: FULL,
    roles.Row: COLUMNS,
    roles.PerRow: ROWS,
    roles.PerRowOfIntegers: ROWS,
    roles.Quantized: FULL,
    **dict.fromkeys(roles.OF_BLOCKS.values(), FULL),  # the same number in all columns of a block
    roles.Scale: ROWS,
    roles.Table: FULL,
    roles.Mask: FULL,
    roles.Halves: FULL,
    roles.Pairs: FULL,
    roles.Integer: 0,
    roles.Segments: ROWS,
}

REDUCTIONS = frozenset({"sum", "max", "argmax", "logsumexp", "logsumexp_rest"})
# Reductions of each block of columns; their static parameter is the number of columns of a block.
# The value has the block's number in each of its columns.
BLOCK_REDUCTIONS = frozenset({"block_sum", "block_max", "block_argmax"})


@dataclass(frozen=True)
class Operand:
    """An array that a program reads.

    Attributes:
      name: the name of its parameter.
      role: the annotation of its parameter.
    """

    name: str
    role: type[roles.Annotation]

    @property
    def dtype(self) -> str:
        if self.role is roles.Mask:
            return "bool"
        return "int" if self.role.integer else "float"


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
      operation: its name; "operand" and "constant" have no inputs.
      inputs: numbers of the nodes that it reads, all smaller than its own.
      static: parameters fixed when the program is made: the number of a constant (a floating one as
        hexadecimal text, which distinguishes 0.0 and -0.0, with the name of a parameter behind a
        space), the position and half of an operand, the kind and order of a GELU, a threshold.
      axes: the dimensions along which the value varies, ROWS | COLUMNS.
      dtype: "float", "int" or "bool".
    """

    operation: str
    inputs: tuple[int, ...]
    static: Any
    axes: int
    dtype: str


def sole_column(nodes: Sequence[Node], number: int) -> int | None:
    """Returns `label` for a node `column == label` with one label for each row, else None.

    Such a condition holds in at most one column of a row.
    """
    node = nodes[number]
    if node.operation not in ("eq", "integer_eq"):
        return None
    first, second = node.inputs
    for column, named in ((first, second), (second, first)):
        if nodes[column].operation == "column" and not nodes[named].axes & COLUMNS:
            return named
    return None


def constant_of(node: Node) -> Any:
    """Returns the number of a constant node."""
    if node.dtype != "float":
        return node.static
    return float.fromhex(node.static.partition(" ")[0])


def blocks_of(operands: Sequence[Operand], nodes: Sequence[Node]) -> list[int]:
    """Returns, for each node with one number for each block, the columns of a block; else 0."""
    found: list[int] = []
    for node in nodes:
        if node.operation in BLOCK_REDUCTIONS:
            found.append(0 if node.operation == "block_argmax" else node.static)
        elif node.operation == "operand":
            found.append(getattr(operands[node.static[0]].role, "block", 0))
        elif not node.axes & COLUMNS:
            found.append(0)
        else:
            wide = {found[i] for i in node.inputs if nodes[i].axes & COLUMNS}
            found.append(wide.pop() if len(wide) == 1 else 0)
    return found


def largest_block(program: Program) -> int:
    """Returns the most columns of a block in a program, 0 without blocks: they divide a row."""
    arrays: list[Any] = [*program.operands, *program.results]
    of_nodes = [n.static for n in program.nodes if n.operation in BLOCK_REDUCTIONS]
    return max([0, *of_nodes, *(getattr(each.role, "block", 0) for each in arrays)])


def is_parameter(node: Node) -> bool:
    """True for a constant with a name: other calls of the same program may have another number."""
    return node.operation == "constant" and node.dtype == "float" and " " in node.static


@dataclass(frozen=True)
class Result:
    """An array that a program returns.

    Attributes:
      role: Full, PerRow, PerBlock, Row (the sum over the rows), Table (the sum over the dimensions
        along which the table was repeated), Halves or Pairs.
      nodes: its node, two for Halves and Pairs.
      like: the position of the operand whose dtype it has; -1: Full, Halves and Pairs have the
        promoted dtype of all floating operands, the others the arithmetic type.
      name: used in errors and in print.
      dtype: its dtype, if it does not follow from `like` and the role; else "".
    """

    role: type[roles.Annotation]
    nodes: tuple[int, ...]
    like: int = -1
    name: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Program:
    """Operations in the order in which they were traced, each once.

    Attributes:
      name: the name of the declaration, or "vjp of …" and the like for a derivative.
      operands, nodes, results: see the classes.
      named: local variables of the declaration and their nodes, from which `keep=` selects.
    """

    name: str
    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    results: tuple[Result, ...]
    named: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    def phase(self) -> list[int]:
        """Returns, for each node, the number of row reductions that must be done before it."""
        phases: list[int] = []
        for node in self.nodes:
            phases.append(
                max(
                    (phases[i] + (self.nodes[i].operation in REDUCTIONS) for i in node.inputs),
                    default=0,
                )
            )
        return phases

    def __str__(self) -> str:
        # Only derivatives read the further inputs of logsumexp; the text shows the first one.
        nodes = [
            replace(node, inputs=node.inputs[:1]) if node.operation == "logsumexp" else node
            for node in self.nodes
        ]
        return "\n".join(_lines(pruned(self.name, self.operands, nodes, self.results)))


def pruned(
    name: str,
    operands: Sequence[Operand],
    nodes: Sequence[Node],
    results: Sequence[Result],
    named: Sequence[tuple[str, int]] = (),
) -> Program:
    """Makes a program without the nodes that no result needs."""
    used = {number for result in results for number in result.nodes}
    for number in range(len(nodes) - 1, -1, -1):
        if number in used:
            used.update(nodes[number].inputs)
    new = {old: place for place, old in enumerate(sorted(used))}
    return Program(
        name,
        tuple(operands),
        tuple(
            Node(n.operation, tuple(new[i] for i in n.inputs), n.static, n.axes, n.dtype)
            for n in (nodes[old] for old in sorted(used))
        ),
        tuple(replace(r, nodes=tuple(new[i] for i in r.nodes)) for r in results),
        tuple((name, new[number]) for name, number in named if number in new),
    )


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
}
_VARIES = {0: "", ROWS: "per row", COLUMNS: "per column", FULL: "full"}


def _letters(taken: set[str]) -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            if (name := "".join(letters)) not in taken:
                yield name


def _lines(program: Program) -> Iterator[str]:
    operands = program.operands
    yield f"{program.name}({', '.join(f'{o.name}: {o.role.__name__}' for o in operands)})"
    letters = _letters({o.name for o in operands})
    names: list[str] = []
    phases = program.phase()
    by_phase: dict[int, list[str]] = {}
    for node, phase in zip(program.nodes, phases, strict=True):
        if node.operation == "operand":
            position, half = node.static
            is_half = operands[position].role in roles.DOUBLE
            names.append(operands[position].name + (".first", ".second")[half] * is_half)
            continue
        if node.operation == "constant":
            names.append(repr(constant_of(node)))
            continue
        names.append(next(letters))
        read = [names[i] for i in node.inputs]
        if node.operation in _INFIX:
            text = f" {_INFIX[node.operation]} ".join(read)
        else:
            static = "" if node.static is None else f"[{node.static}]"
            text = f"{node.operation}{static}({', '.join(read)})"
        by_phase.setdefault(phase, []).append(f"{names[-1]:>6} = {text:<40} {_VARIES[node.axes]}")
    for phase, lines in sorted(by_phase.items()):
        yield f"  phase {phase}"
        yield from (line.rstrip() for line in lines)
    for result in program.results:
        values = ", ".join(names[i] for i in result.nodes)
        how = {roles.Row: "column sum of ", roles.Table: "table sum of "}.get(result.role, "")
        label = f"{result.name}: " if result.name else ""
        dtype = f" of {result.dtype}" * bool(result.dtype)
        yield f"  -> {label}{how}{values} ({result.role.__name__}{dtype})"
