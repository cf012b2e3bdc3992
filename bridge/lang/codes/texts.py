"""Serialized programs: text that identifies a traced program, or a derivative by its source.

The text of a traced program contains all of it. The text of a derivative contains the text of the
program it is the derivative of; `parse` derives it again. So a program can stand in a traced graph
or an exported file and still be differentiated there. It has the version of the instruction set,
and names operations and roles, not their numbers. docs/architecture.md says which versions run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.lang import roles, stages
from bridge.lang.codes import narrowing
from bridge.lang.derivatives import custom, modes
from bridge.lang.dtypes import OF_16_BITS
from bridge.lang.operations import VERSION
from bridge.lang.program import (
    COLUMNS,
    Node,
    Operand,
    Program,
    Result,
)

_ROLES = {role.__name__: role for role in roles.ANNOTATIONS}

# The source of an operand of a derivative: ("operand", i), ("kept", i), ("tangent", i) or
# ("cotangent", i), with the position of an operand, residual or result of the source program.
Tag = tuple[str, int]


@dataclass(frozen=True)
class Coded:
    """A parsed serialized program.

    Attributes:
      program: with only the operands that it needs; the first one gives the shape.
      tags: the sources of the operands.
      of: the text of the source program of a derivative; None for a traced program.
      keeps: the residuals, nodes of the program.
      kept: True if it reads the residuals of its source program.
      rule: the custom VJP, or None.
      family: name and parameters of a family of programs with derivative rules of their own
        (bridge/ops/families.py); () for others.
      columns: the columns of a whole row for a program on a part of it; 0 for whole rows.
      accuracy: the 16-bit type of all floating arrays; "" if there are others.
      rounds_sums: True if column sums have that type too, as cotangents of row vectors do.
      has_shape_alone: True if the first operand only gives the shape.
    """

    program: Program
    tags: tuple[Tag, ...]
    of: str | None = None
    keeps: tuple[int, ...] = ()
    kept: bool = False
    rule: Program | None = None
    family: tuple[Any, ...] = ()
    columns: int = 0
    accuracy: str = ""
    rounds_sums: bool = False
    has_shape_alone: bool = False

    def place(self, tag: Tag) -> int:
        return self.tags.index(tag)


def code_of(
    program: Program,
    keeps: Sequence[int] = (),
    rule: Program | None = None,
    family: Sequence[Any] = (),
) -> str:
    """Serializes a traced program.

    Args:
      keeps: nodes whose values are residuals.
      rule: its custom VJP, made by `custom.traced_rule`, or None.
      family: as in `Coded`; numbers, booleans and text.
    """
    fields = {"version": VERSION, **_fields(program), "keeps": list(keeps)}
    if rule is not None:
        fields["rule"] = _fields(rule)
    if family:
        fields["family"] = list(family)
    return _text(fields)


def texts_of(code: str) -> dict[str, str]:
    """Serializes a program once for each 16-bit type of all arrays, and as "" for other arrays.

    With a 16-bit type, the functions of the program and its derivatives may be less accurate: see
    narrowing.py. If that would change a residual there is only "": a derivative may compute the
    residual again and must get the same value.
    """
    coded = parse(code)
    if narrowing.depends_on_functions(coded.program, coded.keeps):
        return {"": code}
    narrow = {d: _text({**json.loads(code), "accuracy": d}) for d in OF_16_BITS}
    return {"": code, **narrow}


def _fields(program: Program) -> dict[str, Any]:
    return {
        "name": program.name,
        "operands": [[operand.name, operand.role.__name__] for operand in program.operands],
        "nodes": [[n.operation, n.inputs, n.static, n.axes, n.dtype] for n in program.nodes],
        "results": [
            [r.role.__name__, r.nodes, r.like, r.name, *([r.dtype] if r.dtype else [])]
            for r in program.results
        ],
    }


def jvp(code: str, moved: Sequence[bool], kept: bool) -> str:
    """Serializes the jvp: the tangents of all results, for operands that are `moved`."""
    return _derived(code, {"jvp": [int(is_moved) for is_moved in moved], "kept": int(kept)})


def vjp(code: str, given: Sequence[bool], wanted: Sequence[bool], kept: bool) -> str:
    """Serializes the vjp: the cotangents of the wanted operands, for the given results."""
    masks = [[int(is_set) for is_set in mask] for mask in (given, wanted)]
    return _derived(code, {"vjp": masks, "kept": int(kept)})


def summands(code: str, wanted: Sequence[bool]) -> str:
    """Serializes the program of the terms that the wanted column sums add up."""
    return _derived(code, {"summands": [int(is_wanted) for is_wanted in wanted]})


@functools.lru_cache(maxsize=4096)
def stage(
    code: str, are_wanted: tuple[bool, ...], number: int, columns: int, is_summed: bool
) -> str:
    """Serializes a stage of the wanted results: see bridge/lang/stages.py."""
    masks = {"wanted": [int(is_wanted) for is_wanted in are_wanted]}
    fields = {"stage": number, "columns": columns, "summed": int(is_summed)}
    return _derived(code, {**fields, **masks})


def without_kept(code: str) -> str:
    """Serializes the same derivative without residuals; it computes their values again."""
    fields = json.loads(code)
    return _derived(_text(fields["of"]), {**fields, "kept": 0})


def _derived(code: str, fields: dict[str, Any]) -> str:
    return _text({**fields, "of": json.loads(code)})


def _text(fields: Any) -> str:
    return json.dumps(fields, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def parse(code: str) -> Coded:
    """Parses a serialized program.

    Raises:
      ValueError: if the text is not a serialized program, or of a later version.
    """
    try:
        fields = json.loads(code)
        if "of" not in fields:
            _check_version(fields)
            program = _program(fields)
            tags = tuple(("operand", i) for i in range(len(program.operands)))
            rule = _program(fields["rule"]) if "rule" in fields else None
            keeps, accuracy = tuple(fields["keeps"]), fields.get("accuracy", "")
            if accuracy:
                program = narrowing.with_short_log_sums(program, accuracy)
                rule = rule and narrowing.with_short_log_sums(rule, accuracy)
            family = tuple(fields.get("family", ()))
            return Coded(program, tags, None, keeps, rule=rule, family=family, accuracy=accuracy)
        of = _text(fields["of"])
        base = parse(of)
        if "summands" in fields:
            return _summands(of, fields["summands"])
        if "stage" in fields:
            return _stage(of, fields)
        if "jvp" in fields:
            coded = _jvp(of, [bool(i) for i in fields["jvp"]], bool(fields["kept"]))
            return replace(coded, accuracy=base.accuracy, rounds_sums=base.rounds_sums)
        given, wanted = ([bool(i) for i in mask] for mask in fields["vjp"])
        coded = _vjp(of, given, wanted, bool(fields["kept"]))
        return replace(coded, accuracy=base.accuracy, rounds_sums=True)
    except (KeyError, IndexError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"no text of a program: {code[:100]}") from error


def _check_version(fields: Any) -> None:
    version = fields.get("version", 1)  # texts had no version at first
    if version > VERSION:
        raise ValueError(
            f"the program {fields['name']!r} has version {version}, but this bridge reads versions "
            f"1 to {VERSION}: install a bridge as new as the one that exported it"
        )


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
            Result(_ROLES[role], tuple(nodes), like, name, *dtype)
            for role, nodes, like, name, *dtype in fields["results"]
        ),
    )


def saving(coded: Coded) -> Program:
    """Returns the program with its residuals as further results."""
    nodes = coded.program.nodes
    kept = [
        Result(roles.Full if nodes[n].axes & COLUMNS else roles.PerRow, (n,), name="kept")
        for n in coded.keeps
    ]
    return replace(coded.program, results=(*coded.program.results, *kept))


def computed(coded: Coded) -> Program:
    """Returns the program with residuals as further results, lowered to its arrays' precision."""
    program = saving(coded)
    if not coded.accuracy:
        return program
    plain = len(coded.program.results)
    is_exact = [
        i >= plain
        or r.role is roles.PerRow
        or issubclass(r.role, roles.PerBlock)
        or r.dtype != ""
        or (r.role is roles.Row and not coded.rounds_sums)
        for i, r in enumerate(program.results)
    ]
    return narrowing.narrowed(program, coded.accuracy, is_exact)


def wanted(coded: Coded, are_wanted: Sequence[bool]) -> Program:
    """Returns the program of `computed` with only the wanted results."""
    program = computed(coded)
    results = zip(program.results, are_wanted, strict=False)
    return replace(program, results=tuple(result for result, is_wanted in results if is_wanted))


def _jvp(of: str, moved: list[bool], kept: bool) -> Coded:
    base = parse(of)
    keeps = base.keeps if kept else ()
    program = modes.jvp(base.program, moved, keeps)
    tags: list[Tag] = [("operand", i) for i in range(len(base.program.operands))]
    tags += [("kept", i) for i in range(len(keeps))]
    tags += [("tangent", i) for i, is_moved in enumerate(moved) if is_moved]
    needed = {tags[i] for i in _read(program)}
    if kept:
        needed.update(parse(jvp(of, moved, False)).tags)
    # The transpose of a jvp is the vjp of its source program: it needs these operands too.
    given = [True] * len(base.program.results)
    needed.update(t for t in parse(vjp(of, given, moved, kept)).tags if t[0] != "cotangent")
    return _trimmed(program, tags, needed, of, kept)


def _vjp(of: str, given: list[bool], wanted: list[bool], kept: bool) -> Coded:
    base = parse(of)
    keeps = base.keeps if kept else ()
    if base.rule is None:
        program = modes.vjp(base.program, given, wanted, keeps)
    else:
        program = custom.specialised(base.rule, base.program, given, wanted, keeps)
    tags: list[Tag] = [("operand", i) for i in range(len(base.program.operands))]
    tags += [("kept", i) for i in range(len(keeps))]
    tags += [("cotangent", i) for i, is_given in enumerate(given) if is_given]
    # The caller, who knows the shape of the table, sums its cotangent.
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
    """Returns the positions of the operands whose values a program reads."""
    return {node.static[0] for node in program.nodes if node.operation == "operand"}


def _trimmed(program: Program, tags: Sequence[Tag], needed: set[Tag], of: str, kept: bool) -> Coded:
    """Removes operands that are not needed; one with the shape of the space comes first."""
    places = [i for i, tag in enumerate(tags) if tag in needed]
    spacious = [i for i, each in enumerate(program.operands) if each.role in roles.SPACIOUS]
    # If no value of that shape is needed, the tangent or cotangent is at hand in any case.
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
