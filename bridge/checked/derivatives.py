"""The promises of modes. Each is a function that yields the name of each comparison."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bridge.checked.arrays import Arrays
from bridge.checked.comparisons import hold_close, hold_same
from bridge.checked.example import Example
from bridge.lang.derivatives import modes
from bridge.lang.program import Program
from bridge.lang.reference import evaluate


def reverse_mode(e: Example) -> Iterator[str]:
    arrays = e.cast(["float64"])
    cotangents = e.cotangents(arrays)
    operands, weights = [a.values for a in arrays], [c.values for c in cotangents]
    exact = evaluate(e.back, [*operands, *weights])

    for framework in e.frameworks:
        found = framework.pulled(arrays, cotangents)[len(weights) :]
        _hold_slope(e, framework.name, e.program, e.reference, operands, e.smooth, weights, found)
        yield f"{framework.name} and differences of the reference"
        for i, g, right in zip(e.smooth, found, exact, strict=True):
            what = f"{framework.name}, gradient of {e.program.operands[i].name}"
            hold_close(what, g.values, right, 1e-10 * _size(right))
            yield f"{what} and the derivative program"


def _is_rounded(program: Program) -> bool:
    """True if the program rounds values, and so their tangents and cotangents."""
    return any(node.operation == "rounded" for node in program.nodes)


def _hold_slope(
    e: Example,
    what: str,
    program: Program,
    reference: Callable[..., Any] | None,
    operands: Sequence[Any],
    smooth: Sequence[int],
    weights: Sequence[Any],
    gradients: Arrays,
) -> None:
    """Compares gradients of Σ ⟨weight, result⟩ with its slope in float64, in a random direction."""
    held: dict[int, Any] = {}
    evaluate(program, operands, held)

    def function(moved: Sequence[Any]) -> Sequence[Any]:
        has_own = held or reference is None
        return evaluate(program, moved, held) if has_own else reference(*moved)  # type: ignore[misc]

    # Each operand moves in proportion to its own size.
    along = [
        e.rng.normal(size=np.shape(operands[i])) * np.sqrt(np.mean(operands[i] ** 2))
        for i in smooth
    ]

    def difference(step: float) -> tuple[float, float]:
        """Returns the slope by central differences, and the sum of the sizes of its terms."""
        ends = []
        for sign in (step, -step):
            moved = list(operands)
            for i, t in zip(smooth, along, strict=True):
                moved[i] = moved[i] + sign * t
            ends.append([g * y for g, y in zip(weights, function(moved), strict=True)])
        slope = sum(float(np.sum(up - down)) for up, down in zip(*ends, strict=True)) / (2 * step)
        return slope, sum(float(np.sum(np.abs(up))) for up in ends[0])

    coarse, size = difference(2.0**-16)
    fine, size = difference(2.0**-17)
    terms = [g.values * t for g, t in zip(gradients, along, strict=True)]
    # The truncation error of the finer difference is less than the change between both.
    unit = 2.0**-7 if _is_rounded(program) else 1e-6
    bound = unit * sum(float(np.sum(np.abs(t))) for t in terms) + 1e-8 * size
    slope = sum(float(np.sum(t)) for t in terms)
    hold_close(f"{what} along a direction", slope, fine, bound + abs(fine - coarse))


def _size(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def transpose(e: Example) -> Iterator[str]:
    """⟨cotangent, J·tangent⟩ = ⟨Jᵀ·cotangent, tangent⟩."""
    arrays = e.cast(["float64"])
    cotangents, tangents = e.cotangents(arrays), e.tangents(arrays)
    for framework in e.frameworks:
        pushed = framework.pushed(arrays, tangents)[len(cotangents) :]
        pulled = framework.pulled(arrays, cotangents)[len(cotangents) :]
        forward, back = (
            [a.values * b.values for a, b in zip(these, those, strict=True)]
            for these, those in ((pushed, cotangents), (pulled, tangents))
        )
        unit = 2.0**-7 if _is_rounded(e.program) else 1e-11
        bound = unit * sum(float(np.sum(np.abs(part))) for part in (*forward, *back))
        one, other = (sum(float(np.sum(part)) for part in parts) for parts in (forward, back))
        hold_close(f"{framework.name}, forward and reverse mode", one, other, bound)
        yield framework.name


def forward_mode(e: Example) -> Iterator[str]:
    tangents = e.tangents(e.arrays)
    pushed = e.same("forward mode", lambda framework: framework.pushed(e.arrays, tangents))
    yield "tangents"
    pulled = e.pulled("value", e.arrays, e.cotangents(e.arrays))
    count = len(e.program.results)
    hold_same("value of forward and reverse mode", pushed[:count], pulled[:count])
    yield "values"


def higher_order(order: int, e: Example) -> Iterator[str]:
    """Compares gradients of gradients: their bits, and in float64 their numbers."""
    for arrays in (e.arrays, e.cast(["float64"])):
        levels = e.levels(arrays, order)
        found = e.same(f"order {order}", lambda f: f.nested(arrays, *levels))  # noqa: B023
        yield "gradients of gradients"
    programs = [e.back]
    for _ in range(order - 1):
        last = programs[-1]
        programs.append(modes.vjp(last, [True] * len(last.results), e.moved(last)))
    *_, before, program = programs
    *given, weights = [[a.values for a in part] for part in (arrays, *levels)]
    operands = [*itertools.chain(*given)]
    for place, (one, right) in enumerate(
        zip(found, evaluate(program, [*operands, *weights]), strict=True)
    ):
        hold_close(f"order {order}, array {place}", one.values, right, 1e-9 * _size(right))
        yield "a gradient and the derivative program"
    smooth = [i for i, is_moved in enumerate(e.moved(before)) if is_moved]
    _hold_slope(e, f"order {order}", before, None, operands, smooth, weights, found)
    yield "differences of the reference"
