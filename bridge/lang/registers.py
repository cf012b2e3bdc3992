"""Register allocation for the values of a program: only values that are alive need registers.

A value is named by ("tile", node) or ("row", node). Its pool has the same name, or is the pool of
integers of that kind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.lang.program import REDUCTIONS


@dataclass
class Instruction:
    operation: str
    to: Any = None
    reads: Sequence[Any] = ()
    arguments: Sequence[int] = ()  # numbers of operands, results and halves
    extra: int = 0
    again: bool = False


@dataclass
class _Life:
    """The instructions that write a value first and read it last, counted over all sections."""

    begin: int
    end: int


# The instructions of each section; True if they run once for each piece of a row.
Sections = Sequence[tuple[bool, Sequence[Instruction]]]


def allocated(
    sections: Sections, pool_of: Callable[[Any], str | None], first: Mapping[str, int]
) -> tuple[dict[Any, int], dict[str, int]]:
    """Assigns registers to values; an instruction may write to the register of its last read.

    Args:
      sections: in their order.
      pool_of: the pool of a value; None for a constant, which has a register already.
      first: the first free register of each pool.

    Returns:
      Registers by value, and the size of each pool.
    """
    sizes = dict(first)
    free: dict[str, list[int]] = {pool: [] for pool in first}
    registers: dict[Any, int] = {}
    taken: list[tuple[int, int, Any]] = []  # a heap of (end, number, value)
    lives = _lives(sections, pool_of)
    for number, (value, life) in enumerate(sorted(lives.items(), key=lambda item: item[1].begin)):
        ended = []
        while taken and taken[0][0] <= life.begin:
            ended.append(heapq.heappop(taken)[1:])
        # In the order of their beginnings: the order of reuse is part of the bytecode.
        for _, other in sorted(ended):
            free[pool_of(other)].append(registers[other])  # type: ignore[index]
        pool = pool_of(value)
        assert pool is not None
        if free[pool]:
            registers[value] = free[pool].pop()
        else:
            registers[value] = sizes[pool]
            sizes[pool] += 1
        heapq.heappush(taken, (max(life.end, life.begin + 1), number, value))
    return registers, sizes


def _lives(sections: Sections, pool_of: Callable[[Any], str | None]) -> dict[Any, _Life]:
    lives: dict[Any, _Life] = {}
    position = 0
    for is_repeated, instructions in sections:
        end = position + len(instructions)
        written: set[Any] = set()
        for instruction in instructions:
            for value in instruction.reads:
                if pool_of(value) is None:
                    continue
                # The next piece reads a value from outside the section again.
                is_inner = not is_repeated or value in written
                life = lives[value]
                life.end = max(life.end, position if is_inner else end)
            if instruction.to is not None:
                written.add(instruction.to)
                life = lives.setdefault(instruction.to, _Life(position, position))
                life.end = max(life.end, position)
                if instruction.operation in REDUCTIONS:
                    life.end = max(life.end, end)  # written after the last piece
            position += 1
    return lives
