"""The instruction set of the interpreter: scalar operations, and the instructions around them.

cmake/write_operations.py writes the same numbers for C++.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from bridge.lang.operations import SCALARS
from bridge.lang.scalar import MEMORY, RANDOM, ROOT, SHORT, Cost, Scalar


class Place(Enum):
    """The sections of a program that have an instruction, and its effect."""

    ANY = "Integers. Comparisons give a truth value, and kFloat a floating number."
    ROW = "Row sections."
    TILE = "Tile sections."
    STORE = "Tile sections, where an instruction has an effect."
    BLOCK = (
        "Tile sections. Reductions of tile register a in each block of `extra` columns, 16, 32, 64 "
        "or 128; each column of the block gets the result."
    )
    REDUCTION = (
        "Reductions of tile register a into row register `to`; `extra` is the index of the "
        "reduction."
    )


@dataclass(frozen=True)
class Other:
    """An instruction that is no scalar operation; its attributes are those of `Scalar`."""

    name: str
    place: Place
    cost: Cost = MEMORY
    symbol: str = ""
    inline: str = ""
    note: str = ""
    halves: None = None


def _integer(name: str, symbol: str, inline: str, note: str = "") -> Other:
    return Other(f"integer_{name}", Place.ANY, SHORT, f"Integer{symbol}", inline, note)


def _wrapped(text: str) -> str:
    """Computes in unsigned integers, so that an overflow wraps around."""
    unsigned = re.sub("[abc]", r"static_cast<uint64_t>(\g<0>)", text)
    return f"static_cast<int64_t>({unsigned})"


OTHERS: tuple[Other, ...] = (
    _integer("neg", "Negative", _wrapped("0 - a")),
    _integer("add", "Add", _wrapped("a + b")),
    _integer("sub", "Subtract", _wrapped("a - b")),
    _integer("mul", "Multiply", _wrapped("a * b")),
    _integer("where", "Where", "a ? b : c", note="a is a truth value"),
    _integer("lt", "Less", "a < b"),
    _integer("le", "LessEqual", "a <= b"),
    _integer("eq", "Equal", "a == b"),
    _integer("ne", "NotEqual", "a != b"),
    Other("float", Place.ANY, SHORT, inline="static_cast<Real>(a)"),
    Other("load_row", Place.ROW, note="to = per_row operand a"),
    Other("load_label", Place.ROW, note="to = label or integer operand a"),
    Other("columns", Place.ROW, note="to = the number of columns"),
    Other("integer_columns", Place.ROW, note="the same, an integer"),
    Other("spread", Place.ROW, note="tile register to = row register a"),
    Other("integer_spread", Place.ROW, note="the same for integers"),
    Other("store_row", Place.ROW, note="per_row result a = row register b"),
    Other("load", Place.TILE, note="to = operand a, its half b"),
    Other("load_mask", Place.TILE, note="to = mask a"),
    Other("column", Place.TILE, SHORT, note="to = the index of the column, an integer"),
    Other(
        *("keep", Place.TILE, RANDOM),
        note="to = the random word is at least floating constant `extra`, an integer from 1 to "
        "2^32; integer row registers: a is the seed, b the offset, c the index of the batch's "
        "first element (-1: it is 0)",
    ),
    Other("store", Place.STORE, note="full or halves result a = tile register b, its half c"),
    Other("add_columns", Place.STORE, note="row result a += tile register b"),
    Other("sum", Place.REDUCTION),
    Other("max", Place.REDUCTION),
    Other("argmax", Place.REDUCTION, note="into an integer row register"),
    Other("block_sum", Place.BLOCK, ROOT),
    Other("block_max", Place.BLOCK, ROOT),
    Other("block_argmax", Place.BLOCK, ROOT, note="into an integer tile register"),
)
INSTRUCTIONS: tuple[Scalar | Other, ...] = (*SCALARS, *OTHERS)
BY_NAME = {each.name: each for each in INSTRUCTIONS}
FIRST_OTHER = 256  # more scalar operations than there will be: they have the numbers below
NUMBERS = {each.name: number for number, each in enumerate(SCALARS)}
NUMBERS |= {each.name: number for number, each in enumerate(OTHERS, FIRST_OTHER)}
INTEGER = frozenset(
    each.name.removeprefix("integer_") for each in OTHERS if each.place is Place.ANY
) - {"float"}
REDUCTIONS = frozenset(each.name for each in OTHERS if each.place is Place.REDUCTION)
BLOCK_REDUCTIONS = frozenset(each.name for each in OTHERS if each.place is Place.BLOCK)


def cost_of(instruction: str) -> Cost:
    return BY_NAME[instruction].cost


def symbol_of(instruction: str) -> str:
    """Returns the name of an instruction in the interpreter's C++."""
    parts = "".join(part.capitalize() for part in instruction.split("_"))
    return f"k{BY_NAME[instruction].symbol or parts}"
