"""The share of multiply-adds among the instructions of a kernel's innermost loop."""

from __future__ import annotations

import re

# Multiply-adds of tensor cores count too. Those of skips_zeros have a predicate and do not match.
_ADD = re.compile(r"^([FD]FMA|HMMA)\b")


def multiply_add_share(instructions: list[str], labels: dict[str, int]) -> float | None:
    """Returns the share in the innermost loop with the most multiply-adds; None without loops."""
    loops = []
    for end, text in enumerate(instructions):
        target = re.search(r"\bBRA\S*\s+.*?`\((\.L_\S+?)\)", text)
        if target and (begin := labels.get(target[1], end + 1)) <= end:
            loops.append((begin, end + 1))
    innermost = [
        (begin, end)
        for begin, end in loops
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]
    counted = [
        (sum(bool(_ADD.match(text)) for text in instructions[begin:end]), end - begin)
        for begin, end in innermost
    ]
    adds, size = max(counted, default=(0, 0))
    return adds / size if adds else None
