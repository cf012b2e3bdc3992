"""The derivative rules of one call, asked once and stored as steps that are ready to run."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch

from bridge.lang.dtypes import FLOATING, OF_8_BITS
from bridge.lang.errors import TooLarge
from bridge.ops import Spec, ZerosLike
from bridge.ops.definition import Op, Role, each_place
from bridge.ops.tables import summed
from bridge.torch._adapter.kernels import NAMES, dtypes_of

Values = tuple[Any, ...]


def _taker(positions: Sequence[int]) -> Callable[[Values], Values]:
    """Returns a function that picks the members at these positions from a tuple."""
    if len(positions) == 0:
        return lambda values: ()
    if len(positions) == 1:
        return lambda values: (values[positions[0]],)
    return itemgetter(*positions)


class Step:
    """One call that a derivative rule returned, made ready to run.

    A rule returns calls; the sums of their results, by place, are the tangents or cotangents.

    Attributes:
      plan: the plan of the call, or None if the step returns its operands as they are.
      native: the plan's native kernel.
      picked: indices of the operands in (*kept, *tangents or cotangents, None).
      pick: picks the operands from that tuple.
      zeros: pairs (index of an operand of this step, operand of the differentiated call): the
        operand is zeros of that shape.
      places: pairs (index of a result, place that it is added to).
      tables: pairs (index of a result, operand of the differentiated call that is a table): the
        result is summed to the table's shape and is then the table's cotangent.
      arranged: for each place, the index in (*results, None), if this is the only step.
      arrange: picks the places from that tuple.
    """

    __slots__ = (
        *("arrange", "arranged", "native", "pick", "picked", "places", "plan", "tables", "zeros"),
    )

    def __init__(
        self,
        call: Any,
        places: Sequence[tuple[int, int]],
        count: int,
        dtypes: Sequence[str | None],
        index_of: dict[Any, int],
        plan_of: Callable[..., Any],
        tables: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Prepares the step.

        The operands of `call` are sources: `dtypes` has their dtypes, `index_of` their positions.
        """
        self.zeros = [
            (i, source.position)
            for i, source in enumerate(call.operands)
            if isinstance(source, ZerosLike)
        ]
        sources = [None if isinstance(s, ZerosLike) else s for s in call.operands]
        self.picked = tuple([index_of[source] for source in sources])
        self.pick = _taker(self.picked)
        known = [s.position if isinstance(s, ZerosLike) else s for s in call.operands]
        self.plan: Any = None
        self.native: Any = None
        if call.op is not None:
            kinds = tuple(None if source is None else dtypes[source] for source in known)
            self.plan = plan_of(call.op, call.params, kinds)
            self.native = self.plan.native
        self.places = list(places)
        self.tables = tables
        result_of = {place: i for i, place in self.places}
        self.arranged = tuple([result_of.get(i, -1) for i in range(count)])
        self.arrange = _taker(self.arranged)

    def run(self, values: Values, likes: dict[int, Any]) -> Values:
        """Runs the step.

        `likes` has (shape, dtype, device) of tables and of operands that it needs zeros of.
        """
        operands = self.pick(values)
        if self.zeros:
            filled = list(operands)
            for i, position in self.zeros:
                filled[i] = zeros(likes[position])
            operands = tuple(filled)
        results = operands if self.plan is None else self.plan(*operands)
        if self.tables:
            results = tuple(
                _summed(result, self.plan, likes[dict(self.tables)[i]])
                if i in dict(self.tables)
                else result
                for i, result in enumerate(results)
            )
        return results

    @property
    def is_plain(self) -> bool:
        """True if running the native kernel is the whole step."""
        return self.native is not None and not self.zeros and not self.tables


def _summed(full: Any, plan: Any, like: Any) -> torch.Tensor:
    shape, dtype, _ = like

    def run(op: Op[Any], operands: Values, params: Any) -> Values:
        made: Values = plan.like(op, params, dtypes_of(operands))(*operands)
        return made

    names = dtypes_of((full,))
    return summed(full, str(names[0]), shape, NAMES[dtype], run, torch.Tensor.permute)  # type: ignore[no-any-return]


def zeros(like: Any) -> torch.Tensor:
    """Returns zeros of a shape, dtype and device."""
    shape, dtype, device = like
    return torch.zeros(shape, dtype=dtype, device=device)


def run_steps(steps: Sequence[Step], values: Values, likes: dict[int, Any], count: int) -> Values:
    """Runs the steps on `values`; returns the sum of the results at each of `count` places."""
    totals: list[Any] = [None] * count
    for step in steps:
        results = step.run(values, likes)
        for i, place in step.places:
            before = totals[place]
            totals[place] = results[i] if before is None else before + results[i]
    return tuple(totals)


class Derivatives:
    """The derivative rules of one kind of call.

    Rules are asked with numbers in place of arrays. The numbering: the operands, then the results
    and the residuals among them, then the tangents of the operands or the cotangents of the wanted
    results.
    """

    def __init__(
        self, op: Op[Any], params: Any, dtypes: tuple[str | None, ...], plan_of: Callable[..., Any]
    ) -> None:
        self.op = op
        self.params = params
        self.dtypes = dtypes
        self.results = op.result_dtypes(params)
        self.wanted = [i for i, dtype in enumerate(self.results) if dtype is not None]
        self._saved = op.result_dtypes(op.saving(params))
        self._plan_of = plan_of
        self._first_direction = len(dtypes) + len(self._saved)

    @functools.cached_property
    def _smooth(self) -> list[bool]:
        """For each operand, True if it is present and has a gradient.

        Operands of discrete roles and of 8 bits have none.
        """
        roles = self.op.operand_roles(len(self.dtypes), self.params)
        pairs = zip(self.dtypes, roles, strict=True)
        return [d not in (None, *OF_8_BITS) and not role.is_discrete for d, role in pairs]

    @functools.cached_property
    def _answers(self) -> list[Any]:
        """All calls that the rules may return: for all derivatives at once, and for each alone."""
        answers = [call for calls in self._tangents for call in calls]
        for given in _all_and_each([True] * len(self.wanted)):
            try:
                answers += [call for call, _ in self._vjp(self._smooth, given)]
            except TooLarge:
                for wanted in itertools.islice(_all_and_each(self._smooth), 1, None):
                    with contextlib.suppress(TooLarge):
                        answers += [call for call, _ in self._vjp(wanted, given)]
        return answers

    @functools.cached_property
    def _tangents(self) -> list[list[Any]]:
        """The calls of the forward rule, a list for all tangents at once and one for each alone.

        Calls that would be too large are left out; they are an error only once asked for.
        """
        answers = []
        for given in _all_and_each(self._smooth):
            with contextlib.suppress(TooLarge):
                answers.append(self._jvp(given))
        return answers

    @functools.cached_property
    def constant(self) -> tuple[int, ...]:
        """Wanted floating results that some operand does not change: they may have no tangent."""
        moving = [{i for call in calls for i in _given(call)} for calls in self._tangents]
        return tuple(
            i
            for i in self.wanted
            if self.results[i] in FLOATING and not all(i in each for each in moving)
        )

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """Numbers of the residuals: the operands and results that the rules' calls read."""
        placed = {s for call in self._answers for s in call.operands if isinstance(s, int)}
        kept = {source for source in placed if source < self._first_direction}
        if kept == {i for i, dtype in enumerate(self.dtypes) if dtype is not None}:
            return tuple(range(len(self.dtypes)))  # all operands, the absent ones as None
        return tuple(sorted(kept))

    @functools.cached_property
    def keep(self) -> Callable[[Values], Values]:
        """A function that picks the residuals from (*operands, *results)."""
        return _taker(self.kept)

    @functools.cached_property
    def zeros(self) -> tuple[int, ...]:
        """Operands whose shape is stored: tables, and operands that the rules need zeros of."""
        placed = {s for call in self._answers for s in call.operands if isinstance(s, ZerosLike)}
        return tuple(sorted({source.position for source in placed} | self._tables))

    @functools.cached_property
    def _tables(self) -> set[int]:
        """Operands whose cotangents are summed to their shape."""
        roles = self.op.operand_roles(len(self.dtypes), self.params)
        return {i for i, role in enumerate(roles) if role is Role.TABLE}

    def vjp_steps(self, wanted: Sequence[bool], given: Sequence[bool]) -> list[Step]:
        """Returns steps from the given cotangents of the results to the wanted ones of operands."""
        return [
            self._step(
                call,
                each_place(places),
                len(wanted),
                [self.results[i] for i in self.wanted],
                [pair for pair in each_place(places) if pair[1] in self._tables],
            )
            for call, places in self._vjp(wanted, given)
        ]

    def jvp_steps(self, given: Sequence[bool]) -> list[Step]:
        """Returns steps from the given tangents of the operands to the tangents of the results."""
        count = len(self.results)
        calls = self._jvp(given)
        return [self._step(call, each_place(_given(call)), count, self.dtypes) for call in calls]

    def _step(
        self,
        call: Any,
        places: Sequence[tuple[int, int]],
        count: int,
        directions: Sequence[Any],
        tables: Any = (),
    ) -> Step:
        index_of: dict[Any, int] = {source: i for i, source in enumerate(self.kept)}
        for i in range(len(directions)):
            index_of[self._first_direction + i] = len(self.kept) + i
        index_of[None] = len(self.kept) + len(directions)
        dtypes = [*self.dtypes, *self._saved, *directions]
        return Step(call, places, count, dtypes, index_of, self._plan_of, tables)

    def _vjp(self, wanted: Sequence[bool], given: Sequence[bool]) -> Any:
        cotangents: list[int | None] = [None] * len(self.results)
        for i, (place, is_given) in enumerate(zip(self.wanted, given, strict=True)):
            cotangents[place] = self._first_direction + i if is_given else None
        operands, results, specs = self._numbers()
        return self.op.vjp(operands, results, tuple(cotangents), wanted, specs, self.params)

    def _jvp(self, given: Sequence[bool]) -> Any:
        first = self._first_direction
        tangents = tuple(first + i if is_given else None for i, is_given in enumerate(given))
        operands, results, specs = self._numbers()
        return self.op.jvp(operands, results, tangents, specs, self.params)

    def _numbers(self) -> tuple[Any, Any, Any]:
        count = len(self.dtypes)
        operands = tuple(None if dtype is None else i for i, dtype in enumerate(self.dtypes))
        results = tuple(None if dtype is None else count + i for i, dtype in enumerate(self._saved))
        specs = [None if dtype is None else Spec((), dtype) for dtype in self.dtypes]
        return operands, results, specs


def _given(call: Any) -> tuple[int | None, ...]:
    """Returns, for each result of a call, its index, or None if the result is not wanted."""
    results = call.operands if call.op is None else call.op.result_dtypes(call.params)
    return tuple([None if result is None else i for i, result in enumerate(results)])


def _all_and_each(possible: Sequence[bool]) -> Iterator[list[bool]]:
    yield list(possible)
    for i, is_possible in enumerate(possible):
        if is_possible:
            yield [i == j for j in range(len(possible))]
