"""Custom VJPs: derivative rules that a declaration states instead of the derived rule."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.lang import functions, roles
from bridge.lang.active import while_active
from bridge.lang.derivatives.modes import kept_operands, replayed, vjp
from bridge.lang.errors import DeclarationError
from bridge.lang.program import AXES, COLUMNS, Operand, Program, Result, pruned
from bridge.lang.reference import evaluate
from bridge.lang.returned import HalvesValue
from bridge.lang.rewriting import result_of, rewritten
from bridge.lang.values import Builder, Value

Rule = Callable[..., Any]


def traced_rule(
    rule: Rule, program: Program, present: Sequence[bool], static: Mapping[str, Any]
) -> Program:
    """Traces a custom VJP to a program that returns the cotangents of all floating operands.

    Its operands are those of the program and the cotangents of all results. Its first nodes are the
    nodes of the program, in order, so that residuals can be identified by their numbers.

    Args:
      rule: rule(*operands, *results, *cotangents, **static) returns one value for each floating
        operand that is given; an operand that is not given is None.

    Raises:
      DeclarationError: if it returns something else, or a result is a column sum.
    """
    where = f"vjp={getattr(rule, '__name__', repr(rule))} of {program.name}"
    if any(result.role is roles.Row for result in program.results):
        raise DeclarationError(f"{where}: a column sum among the results allows no vjp")
    builder = Builder()
    operands = list(program.operands)

    def of(role: type[roles.Annotation], position: int, dtype: str) -> Value | HalvesValue:
        count = 2 if role in roles.DOUBLE else 1
        made = [builder.operand(position, half, AXES[role], dtype) for half in range(count)]
        return HalvesValue(*made) if count == 2 else made[0]

    def write() -> list[Result]:
        values = replayed(program, builder, ())
        own = iter(range(len(program.operands)))
        arguments: list[Any] = [
            of(program.operands[i].role, i, program.operands[i].dtype)
            if is_present and (i := next(own)) >= 0
            else None
            for is_present in present
        ]
        for result in program.results:
            parts = [values[number] for number in result.nodes]
            arguments.append(HalvesValue(*parts) if len(parts) == 2 else parts[0])
        for result in program.results:
            operands.append(Operand(f"cotangent of {result.name}", result.role))
            arguments.append(of(result.role, len(operands) - 1, "float"))
        try:
            inspect.signature(rule).bind(*arguments, **static)
        except TypeError as error:
            keywords = f"the keywords {', '.join(static)}" if static else "no keywords"
            raise DeclarationError(
                f"{where}: {error}; it is called with {len(arguments)} values, the operands, the "
                f"results and their cotangents, and with {keywords}"
            ) from error
        returned = rule(*arguments, **static)
        several = list(returned) if isinstance(returned, tuple | list) else [returned]
        floating = [i for i, o in enumerate(program.operands) if o.dtype == "float"]
        if len(several) != len(floating):
            raise DeclarationError(
                f"{where}: {len(several)} values, expected {len(floating)}, one for each floating "
                "operand"
            )
        return [
            _result(where, program.operands[i], i, value, builder)
            for i, value in zip(floating, several, strict=True)
        ]

    results = while_active(builder, write)
    # No pruning here: the numbers of the program's nodes must not change.
    return Program(f"vjp of {program.name}", tuple(operands), tuple(builder.nodes), tuple(results))


def _result(where: str, operand: Operand, position: int, value: Any, builder: Builder) -> Result:
    parts = list(value) if isinstance(value, HalvesValue) else [value]
    expected = 2 if operand.role in roles.DOUBLE else 1
    if len(parts) != expected or not all(isinstance(part, (Value, int, float)) for part in parts):
        raise DeclarationError(
            f"{where}: the cotangent of {operand.name} is {type(value).__name__}, expected "
            f"{'two halves' if expected == 2 else 'a value'}"
        )
    values = [builder.floating(builder.value(part)) for part in parts]
    if operand.role is roles.PerRow and values[0].axes & COLUMNS:
        values = [functions.sum(values[0])]
    numbers = tuple(v.number for v in values)
    return Result(operand.role, numbers, position, f"cotangent of {operand.name}")


def specialised(
    rule: Program,
    program: Program,
    given: Sequence[bool],
    wanted: Sequence[bool],
    kept: Sequence[int],
) -> Program:
    """Returns the rule for the given cotangents, reading residuals, as `derivatives.vjp` does."""
    builder = Builder()
    base = len(program.operands)
    operands = [*program.operands, *kept_operands(program, kept)]
    place = {i: i for i in range(base)}
    for i, is_given in enumerate(given):
        if is_given:
            place[base + i] = len(operands)
            operands.append(rule.operands[base + i])

    def read(number: int, inputs: tuple[int, ...]) -> Value | None:
        node = rule.nodes[number]
        if number < len(program.nodes) and number in kept:
            return builder.operand(base + kept.index(number), 0, node.axes, "float")
        if node.operation != "operand":
            return None
        position, half = node.static
        if position not in place:
            return builder.constant(0.0)
        return builder.operand(place[position], half, node.axes, node.dtype)

    values = rewritten(rule, builder, read)
    results = [result_of(values, result) for result in rule.results if wanted[result.like]]
    return pruned(rule.name, operands, builder.nodes, results)


def check_rule(rule: Program, program: Program) -> None:
    """Compares a rule with the derived rule, in float64 on random operands of the domain.

    Outside the domain the results are NaN. A rule that reads them is NaN there too, while the
    derived rule may give a number, such as 1/x for the logarithm of a negative x.

    Raises:
      DeclarationError: with the operand whose cotangent differs.
    """
    wanted = [operand.dtype == "float" for operand in program.operands]
    given = [True] * len(program.results)
    derived = vjp(program, given, wanted)
    numbers = np.random.default_rng(0)
    for draws in _draws_of(numbers, len(program.operands)):
        drawn = zip(
            rule.operands, itertools.chain(draws, itertools.repeat(_DRAWS[0])), strict=False
        )
        operands = [_drawn(numbers, operand, (3, 5), draw) for operand, draw in drawn]
        results = evaluate(program, operands[: len(program.operands)])
        expected = evaluate(derived, operands)
        is_inside = not any(np.isnan(each).any() for each in results)
        if is_inside and all(np.isfinite(each).all() for each in expected):
            break
    found = evaluate(specialised(rule, program, given, wanted, ()), operands)
    for result, a, b in zip(rule.results, found, expected, strict=True):
        # A rule may give a number where the derived rule gives none.
        compared = np.isfinite(b) if is_inside else np.isfinite(a) & np.isfinite(b)
        if not compared.any():
            warnings.warn(
                f"{rule.name}: its {result.name} was not compared with the derived one, which is "
                "finite for none of the random operands: bridge.check(op, *example) compares "
                "gradients on your own operands",
                stacklevel=2,
            )
        a, b = (np.where(compared, each, 0.0) for each in (a, b))
        if not np.allclose(a, b, rtol=1e-9, atol=1e-9):
            raise DeclarationError(
                f"{rule.name}: its {result.name} differs from the derived one by "
                f"{np.max(np.abs(a - b)):.2g} on random operands in float64"
            )


Draw = Callable[[Any], Any]

# Distributions for the domains of different functions: any number; positive numbers; (-1, 1);
# (0, 1); above 1, of both signs; numbers beyond ±1000; large numbers.
_DRAWS: tuple[Draw, ...] = (
    lambda normal: normal,
    lambda normal: 0.25 + np.abs(normal),
    lambda normal: 0.9 * np.tanh(normal),
    lambda normal: 0.05 + 0.9 * np.abs(np.tanh(normal)),
    lambda normal: 1.5 + np.abs(normal),
    lambda normal: -0.25 - np.abs(normal),
    lambda normal: 1e3 + np.abs(normal),
    lambda normal: -1e3 - np.abs(normal),
    lambda normal: 20.0 + np.abs(normal),
)
_MOST_DRAWS = 64


def _draws_of(numbers: np.random.Generator, operands: int) -> Iterator[list[Draw]]:
    """Yields one distribution for each operand: first the same for all operands, then any mix."""
    for draw in _DRAWS:
        yield [draw] * operands
    for _ in range(_MOST_DRAWS if operands > 1 else 0):
        yield [_DRAWS[i] for i in numbers.integers(0, len(_DRAWS), operands)]


def _drawn(
    numbers: np.random.Generator,
    operand: Operand,
    space: tuple[int, int],
    draw: Draw,
) -> Any:
    shapes = {roles.Row: space[1:], roles.PerRow: space[:1], roles.PerRowOfIntegers: space[:1]}
    shape: tuple[int, ...] = shapes.get(operand.role, space)
    if operand.role in roles.DOUBLE:
        shape = (space[0], 2 * space[1])
    if operand.role is roles.Integer:
        return np.int64(7)
    if operand.dtype == "int":
        return numbers.integers(0, space[1], shape)
    if operand.dtype == "bool":
        return numbers.random(shape) < 0.3
    return draw(numbers.normal(size=shape))
