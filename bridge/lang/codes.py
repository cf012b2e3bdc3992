"""Programs as text that names them for good: a declaration's, or how a derivative follows from one.

A traced program is written out; a derivative is written as what it is the derivative of, and
derived again where it is needed. So a program can stand in a compiled graph or an exported file,
and its own derivatives are known there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.lang import derivatives, narrowing, pinned, roles, stages
from bridge.lang.program import (
    COLUMNS,
    REDUCTIONS,
    Node,
    Operand,
    Program,
    Result,
    constant_of,
)

_ROLES = {role.__name__: role for role in roles.ANNOTATIONS}

# Where an operand of a derivative comes from: ("operand", i), ("kept", i), ("tangent", i) or
# ("cotangent", i), with the position of an operand, a kept value or a result of what is derived.
Tag = tuple[str, int]


@dataclass(frozen=True)
class Coded:
    """What a text says.

    Attributes:
      program: with those operands alone that are needed; the first one has the shape.
      tags: where they come from.
      of: the text of what is derived; None of a declaration.
      keeps: values that are kept for derivatives, nodes of the program.
      kept: whether it reads the kept values of what is derived.
      rule: the reverse rule that it states itself.
      columns: of the rows of which it runs on a part; 0: it runs on whole rows.
      accuracy: the 16-bit type of all floating arrays; "": there are others.
      rounds_sums: whether column sums are of that type too, as cotangents of row vectors are.
      has_shape_alone: whether the first operand is there for its shape, and nothing else.
    """

    program: Program
    tags: tuple[Tag, ...]
    of: str | None = None
    keeps: tuple[int, ...] = ()
    kept: bool = False
    rule: Program | None = None
    columns: int = 0
    accuracy: str = ""
    rounds_sums: bool = False
    has_shape_alone: bool = False

    def place(self, tag: Tag) -> int:
        return self.tags.index(tag)


def code_of(program: Program, keeps: Sequence[int] = (), rule: Program | None = None) -> str:
    """The text of a traced program.

    Args:
      keeps: nodes whose values are kept for derivatives.
      rule: its reverse rule, of `pinned.traced_rule`, where that is not the derived one.
    """
    fields = {**_fields(program), "keeps": list(keeps)}
    return _text(fields if rule is None else {**fields, "rule": _fields(rule)})


def texts_of(code: str) -> dict[str, str]:
    """The texts of a traced program on floating arrays that are all of one 16-bit type, and "" of
    all others.

    With such a type its functions, and those of its derivatives, need be no more accurate: see
    narrowing.py. What is kept for derivatives must be what they would compute again.
    """
    coded = parse(code)
    if narrowing.depends_on_functions(coded.program, coded.keeps):
        return {"": code}
    narrow = {d: _text({**json.loads(code), "accuracy": d}) for d in narrowing.DTYPES}
    return {"": code, **narrow}


def _fields(program: Program) -> dict[str, Any]:
    return {
        "name": program.name,
        "operands": [[operand.name, operand.role.__name__] for operand in program.operands],
        "nodes": [[n.operation, n.inputs, n.static, n.axes, n.dtype] for n in program.nodes],
        "results": [[r.role.__name__, r.nodes, r.like, r.name] for r in program.results],
    }


def jvp(code: str, moved: Sequence[bool], kept: bool) -> str:
    """The text of the tangents of all results, from those of the operands that are moved."""
    return _derived(code, {"jvp": [int(is_moved) for is_moved in moved], "kept": int(kept)})


def vjp(code: str, given: Sequence[bool], wanted: Sequence[bool], kept: bool) -> str:
    """The text of the cotangents of the wanted operands, from those of the given results."""
    masks = [[int(is_set) for is_set in mask] for mask in (given, wanted)]
    return _derived(code, {"vjp": masks, "kept": int(kept)})


def without_kept(code: str) -> str:
    """The text of the same derivative, which computes again what was kept."""
    fields = json.loads(code)
    return _derived(_text(fields["of"]), {**fields, "kept": 0})


def _derived(code: str, fields: dict[str, Any]) -> str:
    return _text({**fields, "of": json.loads(code)})


def _text(fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def parse(code: str) -> Coded:
    """What a text says.

    Raises:
      ValueError: if it is none.
    """
    try:
        fields = json.loads(code)
        if "of" not in fields:
            program = _program(fields)
            tags = tuple(("operand", i) for i in range(len(program.operands)))
            rule = _program(fields["rule"]) if "rule" in fields else None
            keeps, accuracy = tuple(fields["keeps"]), fields.get("accuracy", "")
            if accuracy:
                program = narrowing.with_short_log_sums(program, accuracy)
                rule = rule and narrowing.with_short_log_sums(rule, accuracy)
            return Coded(program, tags, keeps=keeps, rule=rule, accuracy=accuracy)
        of = _text(fields["of"])
        if "summands" in fields:
            return _summands(of, fields["summands"])
        if "stage" in fields:
            return _stage(of, fields)
        accuracy = parse(of).accuracy
        if "jvp" in fields:
            coded = _jvp(of, [bool(i) for i in fields["jvp"]], bool(fields["kept"]))
            return replace(coded, accuracy=accuracy, rounds_sums=parse(of).rounds_sums)
        given, wanted = ([bool(i) for i in mask] for mask in fields["vjp"])
        coded = _vjp(of, given, wanted, bool(fields["kept"]))
        return replace(coded, accuracy=accuracy, rounds_sums=True)
    except (KeyError, IndexError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"no text of a program: {code[:100]}") from error


def _program(fields: Any) -> Program:
    def fixed(static: Any) -> Any:
        return tuple(static) if isinstance(static, list) else static

    return Program(
        fields["name"],
        tuple(Operand(name, _ROLES[role]) for name, role in fields["operands"]),
        tuple(
            Node(operation, tuple(inputs), fixed(static), axes, dtype)
            for operation, inputs, static, axes, dtype in fields["nodes"]
        ),
        tuple(
            Result(_ROLES[role], tuple(nodes), like, name)
            for role, nodes, like, name in fields["results"]
        ),
    )


def saving(coded: Coded) -> Program:
    """The program with the values that are kept as further results."""
    nodes = coded.program.nodes
    kept = [
        Result(roles.Full if nodes[n].axes & COLUMNS else roles.PerRow, (n,), name="kept")
        for n in coded.keeps
    ]
    return replace(coded.program, results=(*coded.program.results, *kept))


def kept_results(coded: Coded, dtypes: Sequence[str | None], arithmetic: str) -> list[int | None]:
    """For each value that is kept the result, of these dtypes, that holds it; None if none does."""
    found: list[int | None] = []
    for kept in coded.keeps:
        node = coded.program.nodes[kept]
        exact = (arithmetic, node.static if node.operation == "rounded" else arithmetic)
        pairs = zip(coded.program.results, dtypes, strict=False)
        holds = [r.role is roles.Full and r.nodes == (kept,) and d in exact for r, d in pairs]
        found.append(holds.index(True) if any(holds) else None)
    return found


def computed(coded: Coded) -> Program:
    """The program, with what is kept as further results, at the accuracy that its arrays need."""
    program = saving(coded)
    if not coded.accuracy:
        return program
    plain = len(coded.program.results)
    is_exact = [
        i >= plain or r.role is roles.PerRow or (r.role is roles.Row and not coded.rounds_sums)
        for i, r in enumerate(program.results)
    ]
    return narrowing.narrowed(program, coded.accuracy, is_exact)


def wanted(coded: Coded, are_wanted: Sequence[bool]) -> Program:
    """That program with those of its results, and of the values that are kept, that are wanted."""
    program = computed(coded)
    results = zip(program.results, are_wanted, strict=False)
    return replace(program, results=tuple(result for result, is_wanted in results if is_wanted))


def _jvp(of: str, moved: list[bool], kept: bool) -> Coded:
    base = parse(of)
    keeps = base.keeps if kept else ()
    program = derivatives.jvp(base.program, moved, keeps)
    tags: list[Tag] = [("operand", i) for i in range(len(base.program.operands))]
    tags += [("kept", i) for i in range(len(keeps))]
    tags += [("tangent", i) for i, is_moved in enumerate(moved) if is_moved]
    needed = {tags[i] for i in _read(program)}
    if kept:
        needed.update(parse(jvp(of, moved, False)).tags)
    # Its transpose is the reverse mode of what it is the forward mode of.
    given = [True] * len(base.program.results)
    needed.update(t for t in parse(vjp(of, given, moved, kept)).tags if t[0] != "cotangent")
    return _trimmed(program, tags, needed, of, kept)


def _vjp(of: str, given: list[bool], wanted: list[bool], kept: bool) -> Coded:
    base = parse(of)
    keeps = base.keeps if kept else ()
    if base.rule is None:
        program = derivatives.vjp(base.program, given, wanted, keeps)
    else:
        program = pinned.specialised(base.rule, base.program, given, wanted, keeps)
    tags: list[Tag] = [("operand", i) for i in range(len(base.program.operands))]
    tags += [("kept", i) for i in range(len(keeps))]
    tags += [("cotangent", i) for i, is_given in enumerate(given) if is_given]
    # The cotangent of a table is summed by who knows its shape.
    results = tuple(
        replace(result, role=roles.Full) if result.role is roles.Table else result
        for result in program.results
    )
    program = replace(program, results=results)
    needed = {tags[i] for i in _read(program)}
    if kept:
        needed.update(parse(vjp(of, given, wanted, False)).tags)
    return _trimmed(program, tags, needed, of, kept)


def _summands(of: str, wanted: Sequence[int]) -> Coded:
    base = parse(of)
    program = computed(base)
    chosen = zip(program.results, wanted, strict=False)
    sums = [result for result, is_wanted in chosen if is_wanted and result.role is roles.Row]
    results = tuple(replace(result, role=roles.Full) for result in sums)
    program = replace(program, results=results)
    return replace(base, program=program, of=of, keeps=(), accuracy="")


def _stage(of: str, fields: dict[str, Any]) -> Coded:
    whole = stages.prepared(wanted(parse(of), fields["wanted"]))
    columns = fields["columns"]
    program = stages.stage(whole, fields["stage"], columns, bool(fields["summed"]))
    tags: list[Tag] = [("operand", i) for i in range(len(program.operands))]
    return Coded(program, tuple(tags), of, columns=columns)


def _read(program: Program) -> set[int]:
    """Positions of the operands whose values a program reads."""
    return {node.static[0] for node in program.nodes if node.operation == "operand"}


def _trimmed(program: Program, tags: Sequence[Tag], needed: set[Tag], of: str, kept: bool) -> Coded:
    """The program with the needed operands alone, one that has the shape in front."""
    places = [i for i, tag in enumerate(tags) if tag in needed]
    spacious = [i for i, each in enumerate(program.operands) if each.role in roles.SPACIOUS]
    # Where no value is needed, that of a derivative is there in any case.
    derived = [i for i in spacious if tags[i][0] in ("tangent", "cotangent")]
    first = next(iter([i for i in spacious if i in places] or derived), 0)
    order = [first, *(i for i in places if i != first)]
    position_of = {old: new for new, old in enumerate(order)}

    def placed(node: Node) -> Node:
        if node.operation != "operand":
            return node
        position, half = node.static
        return replace(node, static=(position_of[position], half))

    trimmed = replace(
        program,
        operands=tuple(program.operands[i] for i in order),
        nodes=tuple(map(placed, program.nodes)),
        results=tuple(
            replace(result, like=position_of.get(result.like, -1)) for result in program.results
        ),
    )
    own = tuple(tags[i] for i in order)
    return Coded(trimmed, own, of, (), kept, has_shape_alone=first not in places)


def draws(program: Program) -> bool:
    """Whether it draws random words, which are numbered by element."""
    return any(node.operation == "keep" for node in program.nodes)


def tells_columns_apart(program: Program) -> bool:
    """Whether a row's elements cannot be computed by themselves."""
    whole = {*REDUCTIONS, "column", "columns"}
    return any(node.operation in whole for node in program.nodes)


def reverse(
    code: str, given: Sequence[bool], wanted: Sequence[bool], kept: bool
) -> tuple[str, tuple[Tag, ...], list[int]]:
    """The text of the wanted cotangents, where its operands come from, and whose its results are.

    Of forward mode towards tangents alone it is the reverse mode of what was differentiated: so a
    framework whose reverse mode transposes forward mode has the bits of one that does not.
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
        # One that is there for its shape, which forward mode has of another.
        return plain()
    tags: list[Tag] = []
    for tag in parse(text).tags:
        # An operand of what was differentiated is one of its forward mode, at a place of its own.
        tags.append(tag if tag[0] == "cotangent" else ("operand", coded.place(tag)))
    # Its results are in the order of what was differentiated, where a tangent may stand in front.
    places = [coded.place(("tangent", i)) for i, is_wanted in enumerate(inner) if is_wanted]
    return text, tuple(tags), places


def passed_on(
    code: str, sources: Sequence[Tag], wanted: Sequence[type[roles.Annotation]]
) -> list[Tag | None]:
    """For each result of a derivative the tangent or cotangent that it is, unchanged; or None.

    Args:
      sources: where the operands come from.
      wanted: the roles of what the results are derivatives of: that of a table is yet to be summed.
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
    """For each result the number of the first one that is the same."""
    results = parse(code).program.results
    same = [(result.nodes, result.role) for result in results]
    return [same.index(each) for each in same]


def zeros(code: str) -> list[bool]:
    """For each result of a derivative whether it is 0 whatever the operands are."""
    program = parse(code).program

    def is_zero(node: Node) -> bool:
        return node.operation == "constant" and constant_of(node) == 0.0

    return [all(is_zero(program.nodes[n]) for n in result.nodes) for result in program.results]


@functools.lru_cache(maxsize=4096)
def is_linear_in(code: str, position: int, unknown: frozenset[int]) -> bool:
    """Whether the results are linear in an operand, as they are in tangents and cotangents.

    Those of a declared function are where its derivative towards the operand reads nothing of the
    unknown ones.
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


def summands(code: str, wanted: Sequence[bool]) -> str:
    """The text of the arrays whose sums over the rows the wanted results of that kind are."""
    return _derived(code, {"summands": [int(is_wanted) for is_wanted in wanted]})


@functools.lru_cache(maxsize=4096)
def stage(
    code: str, are_wanted: tuple[bool, ...], number: int, columns: int, is_summed: bool
) -> str:
    """The text of a stage of the wanted results: see bridge/lang/stages.py."""
    masks = {"wanted": [int(is_wanted) for is_wanted in are_wanted]}
    fields = {"stage": number, "columns": columns, "summed": int(is_summed)}
    return _derived(code, {**fields, **masks})


@functools.lru_cache(maxsize=4096)
def reductions(code: str, are_wanted: tuple[bool, ...]) -> tuple[tuple[str, ...], ...]:
    """The row reductions of the wanted results, "sum", "max" or "argmax", by stage."""
    program = stages.prepared(wanted(parse(code), are_wanted))
    return tuple(
        tuple(program.nodes[number].operation for number in numbers)
        for numbers in stages.reductions(program)
    )
