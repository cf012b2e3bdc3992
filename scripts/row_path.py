"""The instructions that a kernel of rows executes: the way through its machine code.

Such a kernel takes a row from memory to memory in a straight line, without a main loop; what is
rare (a mask, a row that is not whole, a NaN) lies beside the line in branches. Every way from the
entry to the exit that repeats nothing is looked at:

- the plain way does all the work there is (loads, stores, arithmetic, shuffles) but what the code
  marks as rare (simt::rarely), and is the shortest of those that do: nothing is hidden, rows are
  numbered by one dimension;
- the longest way goes through every branch it can: a mask or the causal rule hides something in
  every vector, rows are numbered by two dimensions or more (each further one is some instructions
  more).

Calls count as one instruction: they are divisions of more than 32 bits and of denormals.
"""

from __future__ import annotations

import re

_WORK = "LDG.E.128|STG.E.128|SHFL|FFMA|FMUL|FADD|FMNMX|DFMA|DMUL|DADD|DMNMX"  # a vector skips none


def _successors(instruction: str, at: int, labels: dict[str, int]) -> tuple[list[int], bool]:
    """Where it goes on, later in the code, and whether the kernel may end here."""
    predicated = instruction.startswith("@")
    name = instruction.split()[1 if predicated else 0]
    if name == "EXIT":
        return ([at + 1] if predicated else []), True
    if name.startswith("RET"):
        return [], False
    # BRA.DIV leaves for warps whose threads have parted: they have not.
    if not name.startswith("BRA") or ".DIV" in name:
        return [at + 1], False
    target = re.search(r"`\((\.L_\S+)\)", instruction)
    to = labels.get(target[1]) if target else None
    conditional = predicated or re.search(r"BRA\S* !?U?P\d", instruction)
    following = [at + 1] if conditional else []
    return following + ([to] if to is not None and to > at else []), False


def _way(
    instructions: list[str], labels: dict[str, int], weights: list[tuple[int, int]]
) -> list[int]:
    """The places on the way whose weights add up to most, the first of each before the second."""
    best: list[tuple[int, int] | None] = [None] * (len(instructions) + 1)
    following = [-1] * len(instructions)
    for at in range(len(instructions) - 1, -1, -1):
        after, may_end = _successors(instructions[at], at, labels)
        choices = [(value, to) for to in after if (value := best[to]) is not None]
        if may_end:
            choices.append(((0, 0), -1))
        if choices:
            (first, second), following[at] = max(choices)
            best[at] = (first + weights[at][0], second + weights[at][1])
    way, at = [], 0
    while at >= 0 and best[at] is not None:
        way.append(at)
        at = following[at]
    return way


def plain_places(instructions: list[str], labels: dict[str, int]) -> list[int]:
    """The shortest way that does all the work, as places in the code."""
    rare = -len(instructions)
    weights = [
        (rare if "PMTRIG" in text else int(re.search(_WORK, text) is not None), -1)
        for text in instructions
    ]
    return _way(instructions, labels, weights)


def plain_way(instructions: list[str], labels: dict[str, int]) -> list[str]:
    """The shortest way that does all the work."""
    return [instructions[at] for at in plain_places(instructions, labels)]


def loops(instructions: list[str], labels: dict[str, int]) -> list[range]:
    """The places of each."""
    found = []
    for at, text in enumerate(instructions):
        target = re.search(r"\bBRA\S* .*`\((\.L_\S+)\)", text)
        if target and labels.get(target[1], at + 1) <= at:
            found.append(range(labels[target[1]], at + 1))
    return found


def inner_loop(instructions: list[str], labels: dict[str, int]) -> range:
    """The places of the longest loop that stands in another one; none if there is none."""
    found = loops(instructions, labels)
    nested = [a for a in found if any(b.start < a.start and a.stop < b.stop for b in found)]
    return max(nested, key=len, default=range(0))


def longest_way(instructions: list[str], labels: dict[str, int]) -> list[str]:
    """The way of most instructions."""
    return [instructions[at] for at in _way(instructions, labels, [(1, 0)] * len(instructions))]
