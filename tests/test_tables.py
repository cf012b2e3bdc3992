"""Tables that Python and C++ both have are equal: dtypes, roles, instructions, limits, trees."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from bridge.lang import bytecode, limits, roles, trees
from bridge.lang.dtypes import DTYPES, FLOATING, INTEGERS, NUMBERS, OF_8_BITS
from bridge.lang.instructions import FIRST_OTHER, symbol_of
from bridge.lang.instructions import NUMBERS as INSTRUCTIONS
from bridge.lang.operations import SCALARS
from bridge.ops import Role, column_sums
from bridge.torch._adapter import kernels

CPP = Path(__file__).parents[1] / "cpp"


def source(file: str) -> str:
    return (CPP / file).read_text()


def constant(file: str, name: str) -> int:
    """Returns an integer constant, from the constants of the same file in its expression."""
    text = re.sub(r"int64_t\{(\d+)\}", r"\1", source(file))
    expression, *_ = re.findall(rf"\b{name} = ([^;,}}]+)", text)
    expression = re.sub(r"[A-Z_a-z]\w*", lambda own: str(constant(file, own[0])), expression)
    assert re.fullmatch(r"[\d\s()*/<]+", expression)
    return int(eval(expression.replace("/", "//")))


def listed(file: str, pattern: str) -> list[str]:
    """Returns the parts of the list in braces behind a pattern, without comments."""
    found = re.search(pattern + r"[^{]*{(.*?)}", source(file), re.DOTALL)
    assert found is not None
    parts = re.sub(r"//.*|/\*.*?\*/", "", found[1]).split(",")
    return [part.strip() for part in parts if part.strip()]


def members(file: str, enumeration: str) -> dict[str, int]:
    """Returns the names of an enumeration, with their numbers."""
    found: dict[str, int] = {}
    number = -1
    for member in listed(file, rf"enum (?:class )?{enumeration}\b"):
        name, _, given = member.partition(" = ")
        number = found.get(given, -1) if given in found else int(given or number + 1)
        found[name] = number
    return found


def test_numbers_of_dtypes() -> None:
    numbers = {f"BRIDGE_{name.upper()}": number for name, number in NUMBERS.items()}
    assert members("include/bridge/bridge.h", "bridge_dtype") == numbers
    names = listed("bindings/calls/operand.cpp", r"names\[\]")
    assert names == [f'"{name}"' for name in DTYPES]
    short = {"byte": "uint8", "char": "int8"}
    in_torch = [each.removeprefix("at::k").lower() for each in listed(_FUNCTIONS, r"kTypes\[\]")]
    assert [getattr(torch, short.get(name, name)) for name in in_torch] == [*kernels.NAMES]
    assert {*INTEGERS} | {*OF_8_BITS} == {"uint8", *list(DTYPES)[NUMBERS["int64"] :]}


_FUNCTIONS = "bindings/torch/functions.h"


@pytest.mark.parametrize("name", DTYPES)
def test_properties_of_dtypes(name: str) -> None:
    own, text = DTYPES[name], source("drivers/dtypes.h")
    assert own.bytes == kernels.DTYPES[name].itemsize
    log2 = re.search(rf"bytes_log2_of\(BRIDGE_{name.upper()}, (\d)\)", text)
    assert own.bytes == 1 << int(log2[1] if log2 else 0)
    assert (f"1u << BRIDGE_{name.upper()}" in text) == name.startswith("int")
    assert (name in FLOATING) == (NUMBERS[name] <= NUMBERS["float64"])
    assert "dtype >= BRIDGE_FLOAT16 && dtype <= BRIDGE_FLOAT64" in text
    if name in FLOATING:
        numpy = ml_dtypes.finfo(np.dtype(name))
        assert own.epsilon == float(numpy.eps)
        assert own.smallest == float(numpy.smallest_subnormal)
        assert own.largest == float(numpy.max)


def test_roles() -> None:
    found = members("program/program.h", "Role")
    first = found.pop("per_block")  # the next roles have the larger blocks
    blocks = {f"per_block_{size}": first + i for i, size in enumerate(roles.BLOCKS)}
    assert found | blocks == roles.NUMBERS
    assert constant("program/program.h", "kRoles") == len(roles.NUMBERS)
    assert {role.value for role in Role} == {*roles.NUMBERS}
    annotations = {each for each in vars(roles).values() if isinstance(each, type)}
    assert {*roles.NAMES} == {
        each for each in annotations if issubclass(each, roles.Annotation)
    } - {roles.Annotation, roles.PerBlock, *roles.OF_TOKENS}


def test_instructions() -> None:
    found = members("program/operations.h", "Operation")
    numbers = {symbol_of(name): number for name, number in INSTRUCTIONS.items()}
    assert {name: found.get(name) for name in numbers} == numbers
    assert {*found} - {*numbers} == {"kElementwise"}
    assert found["kElementwise"] == len(SCALARS) <= FIRST_OTHER


_PROGRAM, _C_API = "program/program.h", "include/bridge/bridge.h"
_COLUMNS, _ROWS = "drivers/columns/column_sum_tree.h", "drivers/rows/row_sum_tree.h"
_SIMT = "cuda/simt_cuda.h"


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        (_PROGRAM, "kAgain", bytecode._AGAIN),
        (_PROGRAM, "kMostRegisters", limits.MOST_REGISTERS),
        (_PROGRAM, "kMostPhases", limits.MOST_PHASES),
        (_PROGRAM, "kMostInstructions", limits.MOST_INSTRUCTIONS),
        (_ROWS, "kSumChunk", trees.CHUNK_COLUMNS),
        (_ROWS, "kSumQuarter", trees.QUARTER_COLUMNS),
        (_COLUMNS, "kChunkRows", trees.CHUNK_ROWS),
        (_COLUMNS, "kLeafRows", trees.LEAF_ROWS),
        ("drivers/columns/column_sums.cuh", "kTreeWidth", column_sums.TREE_WIDTH),
        (_SIMT, "kManyLeaves", column_sums.MANY_LEAVES),
        (_SIMT, "kManyElements", column_sums.MANY_ELEMENTS),
    ],
)
def test_constants(file: str, name: str, value: int) -> None:
    assert constant(file, name) == value


def test_limits_leave_room() -> None:
    """A call may have the number of the first element besides the operands."""
    assert constant(_C_API, "BRIDGE_MAX_PROGRAM_OPERANDS") >= limits.MOST_OPERANDS + 1
    assert constant(_C_API, "BRIDGE_MAX_PROGRAM_RESULTS") >= limits.MOST_RESULTS
