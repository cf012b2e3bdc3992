"""The instructions that a row kernel executes: paths through its machine code.

Such a kernel takes a row from memory to memory in a straight line, without a main loop. Rare work
(a mask, a partial row, a NaN) is in branches beside the line. The script considers every path from
the entry to the exit that repeats nothing:

- The plain path does all the work (loads, stores, arithmetic, shuffles) except work that the code
  marks as rare (simt::rarely), and is the shortest such path: nothing is hidden, and rows are
  numbered by one dimension.
- The longest path takes every branch it can: a mask or the causal rule hides something in every
  vector, and rows are numbered by two dimensions or more (each further one adds some instructions).

Calls count as one instruction: they are divisions of more than 32 bits and of denormals.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import networkx

_WORK = "LDG.E.128|STG.E.128|SHFL|FFMA|FMUL|FADD|FMNMX|DFMA|DMUL|DADD|DMNMX"  # in every vector


def _successors(instruction: str, at: int, labels: dict[str, int]) -> tuple[list[int], bool]:
    """Returns the addresses at which control continues, and True if the kernel may end here."""
    predicated = instruction.startswith("@")
    name = instruction.split()[1 if predicated else 0]
    if name == "EXIT":
        return ([at + 1] if predicated else []), True
    if name.startswith("RET"):
        return [], False
    # BRA.DIV branches only for warps with diverged threads, which the path excludes.
    if not name.startswith("BRA") or ".DIV" in name:
        return [at + 1], False
    target = re.search(r"`\((\.L_\S+)\)", instruction)
    to = labels.get(target[1]) if target else None
    conditional = predicated or re.search(r"BRA\S* !?U?P\d", instruction)
    following = [at + 1] if conditional else []
    return following + ([to] if to is not None else []), False


def _way(
    instructions: list[str], labels: dict[str, int], weights: list[tuple[int, int]]
) -> list[int]:
    """Returns the path with the largest sum of weights; the first weight of a pair counts first."""
    best: list[tuple[int, int] | None] = [None] * (len(instructions) + 1)
    following = [-1] * len(instructions)
    for at in range(len(instructions) - 1, -1, -1):
        after, may_end = _successors(instructions[at], at, labels)
        choices = [(value, to) for to in after if to > at and (value := best[to]) is not None]
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
    """Returns the shortest path that does all the work, as indices of instructions."""
    rare = -len(instructions)
    weights = [
        (rare if "PMTRIG" in text else int(re.search(_WORK, text) is not None), -1)
        for text in instructions
    ]
    return _way(instructions, labels, weights)


def plain_way(instructions: list[str], labels: dict[str, int]) -> list[str]:
    """Returns the shortest path that does all the work."""
    return [instructions[at] for at in plain_places(instructions, labels)]


def loops(
    instructions: list[str], labels: dict[str, int], within: Collection[int] | None = None
) -> list[set[int]]:
    """Returns the indices of each outermost loop: instructions that can all reach one another.

    Parts of a loop may be behind the rest of the code.

    Args:
      within: indices of the instructions to consider; None for all.
    """
    graph = networkx.DiGraph()
    for at, text in enumerate(instructions):
        after, _ = _successors(text, at, labels)
        graph.add_edges_from((at, to) for to in after)
    if within is not None:
        graph = graph.subgraph(within)
    return [
        places
        for places in networkx.strongly_connected_components(graph)
        if len(places) > 1 or any(graph.has_edge(at, at) for at in places)
    ]


def inner_loops(instructions: list[str], labels: dict[str, int], outer: set[int]) -> set[int]:
    """Returns the indices of the loops in a loop, which begins at its entry from earlier code."""
    entries = {
        to
        for at in range(min(outer))
        for to in _successors(instructions[at], at, labels)[0]
        if to in outer
    }
    return set().union(*loops(instructions, labels, outer - entries))


def longest_way(instructions: list[str], labels: dict[str, int]) -> list[str]:
    """Returns the path with the most instructions."""
    return [instructions[at] for at in _way(instructions, labels, [(1, 0)] * len(instructions))]
