"""Properties of serialized programs that adapters ask for, and the cotangents of one."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

from bridge.lang import roles, stages
from bridge.lang.codes.texts import Coded, Tag, parse, vjp, wanted
from bridge.lang.program import REDUCTIONS, Node, Program, constant_of, largest_block


def kept_results(coded: Coded, dtypes: Sequence[str | None], arithmetic: str) -> list[int | None]:
    """Finds for each residual a result that holds the same values, by its dtype; else None."""
    found: list[int | None] = []
    for kept in coded.keeps:
        node = coded.program.nodes[kept]
        exact = (arithmetic, node.static if node.operation == "rounded" else arithmetic)
        pairs = zip(coded.program.results, dtypes, strict=False)
        holds = [r.role is roles.Full and r.nodes == (kept,) and d in exact for r, d in pairs]
        found.append(holds.index(True) if any(holds) else None)
    return found


def draws(program: Program) -> bool:
    """True if a program draws random words, which are numbered by element."""
    return any(node.operation == "keep" for node in program.nodes)


def tells_columns_apart(program: Program) -> bool:
    """True if an element's result depends on its column or on the rest of its row."""
    whole = {*REDUCTIONS, "column", "columns"}
    return any(node.operation in whole for node in program.nodes) or largest_block(program) > 0


def reverse(
    code: str, given: Sequence[bool], wanted: Sequence[bool], kept: bool
) -> tuple[str, tuple[Tag, ...], list[int]]:
    """Serializes the wanted cotangents.

    Returns:
      The text, the sources of its operands, and the positions of the wanted operands in the order
      of its results.

    The vjp of a jvp towards tangents alone is the vjp of the source program. So a framework that
    transposes forward mode gets the same bits as one that does not.
    """
    coded = parse(code)
    places = [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def plain() -> tuple[str, tuple[Tag, ...], list[int]]:
        text = vjp(code, given, wanted, kept)
        return text, parse(text).tags, places

    chosen = [coded.tags[i] for i in places]
    fields = json.loads(code)
    if "jvp" not in fields or any(name != "tangent" for name, _ in chosen):
        return plain()
    assert coded.of is not None
    inner = [("tangent", i) in chosen for i in range(len(fields["jvp"]))]
    text = vjp(coded.of, given, inner, coded.kept)
    if not {tag for tag in parse(text).tags if tag[0] != "cotangent"} <= {*coded.tags}:
        # It needs an operand for its shape that the jvp does not have.
        return plain()
    tags: list[Tag] = []
    for tag in parse(text).tags:
        # The operands of the source program have other positions in the jvp.
        tags.append(tag if tag[0] == "cotangent" else ("operand", coded.place(tag)))
    # The results are in the order of the source program; in the jvp a tangent may come first.
    places = [coded.place(("tangent", i)) for i, is_wanted in enumerate(inner) if is_wanted]
    return text, tuple(tags), places


def passed_on(
    code: str, sources: Sequence[Tag], wanted: Sequence[type[roles.Annotation]]
) -> list[Tag | None]:
    """Finds for each result of a derivative the tangent or cotangent that it equals, or None.

    Args:
      sources: the sources of the operands.
      wanted: the roles of the operands towards which it differentiates; the cotangent of a table
        still has to be summed.
    """
    program = parse(code).program
    found: list[Tag | None] = []
    for result, role in zip(program.results, wanted, strict=True):
        node = program.nodes[result.nodes[0]]
        is_it = (
            node.operation == "operand"
            and role in (roles.Full, roles.PerRow)
            and program.operands[node.static[0]].role is role
            and sources[node.static[0]][0] in ("tangent", "cotangent")
        )
        found.append(sources[node.static[0]] if is_it else None)
    return found


def twins(code: str) -> list[int]:
    """Returns, for each result, the number of the first result that equals it."""
    results = parse(code).program.results
    same = [(result.nodes, result.role) for result in results]
    return [same.index(each) for each in same]


def zeros(code: str) -> list[bool]:
    """True for each result of a derivative that is 0 for all operands."""
    program = parse(code).program

    def is_zero(node: Node) -> bool:
        return node.operation == "constant" and constant_of(node) == 0.0

    return [all(is_zero(program.nodes[n]) for n in result.nodes) for result in program.results]


@functools.lru_cache(maxsize=4096)
def is_linear_in(code: str, position: int, unknown: frozenset[int]) -> bool:
    """True if the results are linear in an operand, as they are in tangents and cotangents.

    A traced program is linear in an operand if its derivative towards it reads no operand among
    the unknown ones.
    """
    coded = parse(code)
    if coded.tags[position][0] in ("tangent", "cotangent"):
        return True
    if coded.of is not None:
        return False
    given = [True] * len(coded.program.results)
    asked = [i == position for i in range(len(coded.tags))]
    derivative, sources, _ = reverse(code, given, asked, False)
    read = sources[1:] if parse(derivative).has_shape_alone else sources
    return not any(name != "cotangent" and place in unknown for name, place in read)


@functools.lru_cache(maxsize=4096)
def reductions(code: str, are_wanted: tuple[bool, ...]) -> tuple[tuple[str, ...], ...]:
    """Lists the row reductions of the wanted results, "sum", "max" or "argmax", by stage."""
    program = stages.prepared(wanted(parse(code), are_wanted))
    return tuple(
        tuple(program.nodes[number].operation for number in numbers)
        for numbers in stages.reductions(program)
    )
