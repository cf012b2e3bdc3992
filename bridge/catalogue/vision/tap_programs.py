"""Programs that go through the taps of windows: a chain of additions, or the largest number.

A program takes some taps at a time, each an array of one number for each output, and the result of
the taps before them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from bridge import lang as bl
from bridge.catalogue import declaration
from bridge.catalogue.vision.windows import ABSENT
from bridge.lang.tracing import Declaration, declared
from bridge.ops.compositions import Functions
from bridge.ops.definition import Call
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.traced import traced

# Taps of one program; each is two operands of at most 56.
TAPS = 16


def _weighted(x: Sequence[Any], weights: Sequence[Any], before: Sequence[Any]) -> Any:
    """A chain of fma; an output without taps is 0."""
    rest = list(zip(x, weights, strict=True))
    if before:
        (total,) = before
    else:
        (one, weight), *rest = rest
        total = bl.where(weight == ABSENT, 0.0, one * weight)
    for one, weight in rest:
        total = bl.where(weight == ABSENT, total, bl.fma(one, weight, total))
    return total


def _divided(x: Sequence[Any], weights: Sequence[Any], before: Sequence[Any]) -> Any:
    """A chain of additions of x / weight; an output without taps is 0."""
    total = before[0] if before else None
    for one, weight in zip(x, weights, strict=True):
        term = one / weight
        is_absent = weight == ABSENT
        total = bl.where(
            is_absent, 0.0 if total is None else total, term if total is None else (total + term)
        )
    return total


def _added(x: Sequence[Any], are_there: Sequence[Any], before: Sequence[Any]) -> Any:
    """A chain of additions; an output without taps is 0."""
    total = before[0] if before else None
    for one, is_there in zip(x, are_there, strict=True):
        if total is None:
            total = bl.where(is_there, one, 0.0)
        else:
            total = bl.where(is_there, total + one, total)
    return total


@declaration.declared()
def mean_of_places(x: bl.Full, own: bl.PerRow):
    return bl.like(bl.mean(x), own)  # type: ignore[arg-type]


def quotient(x: bl.Full, divisor: bl.Table) -> Any:
    return x / divisor


def _sum(x: Sequence[Any], before: Sequence[Any]) -> Any:
    total = before[0] if before else 0.0
    for one in x:
        total = total + one
    return total


def _largest(x: Sequence[Any], are_there: Sequence[Any], before: Sequence[Any]) -> Any:
    """The largest number and its tap, the first among equal ones, or the last NaN."""
    rest = list(zip(x, are_there, strict=True))
    if before:
        largest, tap, first = before
    else:
        (largest, _), *rest = rest
        tap, first = 0.0 * largest, 1.0
        tap = bl.where(tap == 0.0, tap, 0.0)
    for number, (one, is_there) in enumerate(rest):
        is_new = ((one > largest) | (one != one)) & is_there
        largest, tap = bl.where(is_new, one, largest), bl.where(is_new, first + number, tap)
    return largest, tap


_ROLES = {"x": "bl.Full", "weight": "bl.Table", "is_there": "bl.Mask"}
_FORMS = {
    "weighted": (_weighted, ("x", "weight"), 1),
    "shares": (_divided, ("x", "weight"), 1),
    "added": (_added, ("x", "is_there"), 1),
    "sum": (_sum, ("x",), 1),
    "largest": (_largest, ("x", "is_there"), 2),
}


@functools.cache
def _declaration(form: str, taps: int, goes_on: bool, first: int) -> Declaration:
    """Returns the declaration for a number of taps: a function with a parameter for each."""
    function, kinds, results = _FORMS[form]
    named = [[f"{kind}{tap}" for tap in range(taps)] for kind in kinds]
    before = [f"before{i}" for i in range(results)] if goes_on else []
    parameters = [f"{n}: {_ROLES[k]}" for k, own in zip(kinds, named, strict=True) for n in own]
    parameters += [f"{name}: bl.Full" for name in before]
    lists = [f"[{', '.join(own)}]" for own in named]
    extra = [f"{float(first)}"] if form == "largest" and goes_on else []
    text = f"def {form}_taps({', '.join(parameters)}):\n    return run("
    text += f"{', '.join(lists)}, [{', '.join([*before, *extra])}])\n"
    scope: dict[str, Any] = {"bl": bl, "run": function}
    exec(compile(text, f"<taps of {form}>", "exec"), scope)
    return declared(scope[f"{form}_taps"])


def run(
    functions: Functions,
    form: str,
    operands: Sequence[Sequence[Any]],
    wide: str,
    dtypes: Sequence[str],
) -> tuple[Any, ...]:
    """Runs a form over all taps.

    Args:
      form: "weighted", "shares", "added", "sum" or "largest".
      operands: for each kind of operand of the form, the arrays of all taps, at least one.
      dtypes: of the results.
    """
    count, found = len(operands[0]), ()
    for start in range(0, count, TAPS):
        part = [own[start : start + TAPS] for own in operands]
        declaration = _declaration(form, len(part[0]), start > 0, start)
        given = (*[each for own in part for each in own], *found)
        code = traced(declaration, (True,) * len(given)).code
        own = dtypes if start + TAPS >= count else [wide] * len(dtypes)
        params = ProgramParams(code, wide, ",".join(own))
        found = functions.results(Call(PROGRAM, given, params))
    return found


def divided(functions: Functions, x: Any, divisor: Any, wide: str, dtype: str) -> Any:
    """Returns x / divisor, rounded to a dtype."""
    code = traced(_quotient(), (True, True)).code
    return functions.run(Call(PROGRAM, (x, divisor), ProgramParams(code, wide, dtype)))


@functools.cache
def _quotient() -> Declaration:
    return declared(quotient)
