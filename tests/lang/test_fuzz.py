"""Random programs: the same bits everywhere, and within bounds of the float64 reference.

The marker says how many parts of the search run, different ones for each commit; `make exhaustive`
runs all. A failure is shrunk, and its part can run alone, by the name of the test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from bridge import _native
from bridge.lang import codes, roles
from bridge.lang.program import ROWS, Program
from bridge.lang.reference import evaluate
from bridge.ops import PROGRAM, ProgramParams, Spec
from bridge.ops.form import Form, check_operands
from bridge.ops.program_params import split
from tests.frameworks import FRAMEWORKS, bits
from tests.isas import ISAS
from tests.lang.error_bounds import bounds_of, misses
from tests.lang.random_programs import (
    Array,
    Draws,
    RandomCall,
    drawn,
    laid_out,
    random_call,
    steps_of,
)

TORCH, JAX = FRAMEWORKS
PARTS, PROGRAMS = 400, 50


class Run:
    """A call of a program or of a derivative, on drawn arrays.

    Attributes:
      program: the program; params: the parameters of the call.
      arrays, layouts: the operands and their memory layouts.
    """

    def __init__(self, code: str, params: ProgramParams, arrays: list[Any], layouts: list[str]):
        self.program: Program = codes.computed(codes.parse(code))
        self.params, self.arrays, self.layouts = params, arrays, layouts

    @property
    def dtypes(self) -> list[str]:
        return self.params.dtypes.split(",")

    def tensors(self, rng: Generator) -> list[Any]:
        return [
            laid_out(rng, TORCH.array(array), layout)
            for array, layout in zip(self.arrays, self.layouts, strict=True)
        ]

    def for_jax(self) -> list[Any]:
        """Returns the arrays with integers as two words."""
        return [
            np.array([int(array) & 0xFFFFFFFF, int(array) >> 32 & 0xFFFFFFFF], np.uint32)
            if operand.role is roles.Integer
            else array
            for operand, array in zip(self.program.operands, self.arrays, strict=True)
        ]

    def flipped(self) -> Run:
        """Returns the same call on other numbers."""
        arrays = [
            np.int64(int(array) ^ 1) if operand.role is roles.Integer else np.flip(array).copy()
            for operand, array in zip(self.program.operands, self.arrays, strict=True)
        ]
        return Run(self.params.code, self.params, arrays, self.layouts)

    def batched_with(self, other: Run) -> Run:
        """Returns one batched call for both."""
        ndim = len(space_of(self.program, self.arrays))
        arrays = []
        for operand, *pair in zip(self.program.operands, self.arrays, other.arrays, strict=True):
            both = np.stack(pair)
            if operand.role in (
                roles.Table,
                roles.Mask,
            ):  # they align with the space from the right
                both = both.reshape(2, *[1] * (ndim + 1 - both.ndim), *both.shape[1:])
            arrays.append(both)
        return Run(self.params.code, self.params.with_batch(), arrays, self.layouts)

    def row_alone(self, row: int) -> Run | None:
        """Returns the call for one row, without sums over rows; None if nothing is left."""
        dtypes = [
            "" if result.role is roles.Row else dtype
            for result, dtype in zip(self.program.results, self.dtypes, strict=True)
        ]
        if not any(dtypes):
            return None
        shape = space_of(self.program, self.arrays)
        rows, columns = math.prod(shape[:-1]), shape[-1]
        arrays = []
        for operand, array in zip(self.program.operands, self.arrays, strict=True):
            role = operand.role
            if role in (roles.Table, roles.Mask):
                array = np.broadcast_to(array, shape)
            if role in (*roles.SPACIOUS, roles.Table, roles.Mask):
                wide = columns * (2 if role in roles.DOUBLE else 1)
                array = array.reshape(rows, wide)[row : row + 1].copy()
            elif role in (roles.PerRow, roles.PerRowOfIntegers):
                array = array.reshape(rows)[row : row + 1].copy()
            arrays.append(array)
        params = PROGRAM.with_dtypes(self.params, [dtype or None for dtype in dtypes])
        if PROGRAM.counts_from(params) is not None:
            arrays.append(np.int64(row * columns))
        return Run(self.params.code, params, arrays, ["contiguous"] * len(arrays))


def space_of(program: Program, arrays: list[Any]) -> tuple[int, ...]:
    shape = arrays[0].shape
    is_halves = program.operands[0].role in roles.DOUBLE
    return (*shape[:-1], shape[-1] // 2) if is_halves else shape


def runs_of(call: RandomCall, rng: Generator) -> tuple[list[Run], dict[Any, Any]]:
    """Returns the program, its forward and its reverse mode, and their arrays by tag."""
    program = call.program
    arrays = [drawn(rng, array) for array in call.operands]
    layouts = [array.layout for array in call.operands]
    specs = [Spec(array.shape, array.dtype) for array in call.operands]
    texts = codes.texts_of(codes.code_of(program))
    params = check_operands(program.name, Form.of(program), specs, texts)
    runs = [Run(params.code, params, arrays, layouts)]
    dtypes = params.dtypes.split(",")
    space = space_of(program, arrays)
    found: dict[Any, Any] = {("operand", i): array for i, array in enumerate(arrays)}

    def derivative(code: str, dtypes: list[str]) -> Run:
        derived = ProgramParams(code, params.arithmetic, ",".join(dtypes))
        own = [found[tag] for tag in codes.parse(code).tags]
        return Run(code, derived, own, [str(rng.choice(layouts)) for _ in own])

    def another(array: Array) -> Any:
        kind = str(rng.choice(["normal", "normal", "few", "special"]))
        return drawn(rng, Array(array.shape, array.dtype, kind, "contiguous"))

    if any(call.moved):
        for i, is_moved in enumerate(call.moved):
            if is_moved:
                found["tangent", i] = another(call.operands[i])
        runs.append(derivative(codes.jvp(params.code, call.moved, False), dtypes))
    if any(call.wanted):
        for i, result in enumerate(program.results):
            shape = {
                roles.Row: space[-1:],
                roles.PerRow: space[:-1],
                **dict.fromkeys(roles.DOUBLE, (*space[:-1], 2 * space[-1])),
            }.get(result.role, space)
            found["cotangent", i] = another(Array(shape, dtypes[i], "normal", "contiguous"))
        # The cotangent of a table is unsummed, in the type of the arithmetic.
        own = [
            params.arithmetic if operand.role is roles.Table else array.dtype
            for operand, array, is_wanted in zip(
                program.operands, call.operands, call.wanted, strict=True
            )
            if is_wanted
        ]
        runs.append(derivative(codes.vjp(params.code, call.given, call.wanted, False), own))
    return runs, found


def by_torch(run: Run, tensors: list[Any], params: ProgramParams | None = None) -> list[Any]:
    from bridge.torch._adapter.autograd import call

    results = call(PROGRAM, tuple(tensors), params or run.params)
    return [None if result is None else TORCH.numpy(result) for result in results]


def by_jax(runs: list[Run]) -> list[list[Any]]:
    import jax

    from bridge.jax._adapter.primitive import call

    def all_runs(operands: list[list[Any]]) -> list[Any]:
        return [call(PROGRAM, own, run.params) for own, run in zip(operands, runs, strict=True)]

    with jax.enable_x64(True):
        operands = jax.tree.map(JAX.array, [run.for_jax() for run in runs])
        return jax.tree.map(np.asarray, jax.jit(all_runs)(operands))


def assert_same(found: Any, expected: Any, what: str) -> None:
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None:
            continue
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(bits(one), bits(other), f"{what}, result {place}")


@pytest.fixture(autouse=True)
def ordinary_settings() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    _native.set_cpu_isa(None)


def check(call: RandomCall) -> list[float]:
    """Returns for each result the fraction of its elements with finite bounds."""
    import torch

    rng = np.random.default_rng(call.seed)
    runs, found = runs_of(call, rng)
    names = ["program", "derivative", "derivative"]
    results, known = [], []
    for name, run in zip(names, runs, strict=False):
        torch.set_num_threads(1)
        _native.set_cpu_isa(None)
        tensors = run.tensors(rng)
        expected = by_torch(run, tensors)
        results.append(expected)
        for isa in ISAS:
            _native.set_cpu_isa(isa)
            for threads in (1, 3):
                torch.set_num_threads(threads)
                again = by_torch(run, tensors)
                assert_same(again, expected, f"{name} on {isa}, {threads} threads\n{run.program}")
        _native.set_cpu_isa(None)
        check_row(run, expected, rng, name)
        check_batch(run, expected, rng, name)
        known += check_numbers(run, expected, name)
    for name, run, by_it, expected in zip(names, runs, by_jax(runs), results, strict=False):
        assert_same(by_it, expected, f"{name} by JAX\n{run.program}")
    check_kept(call, runs, found, results)
    return known


def check_row(run: Run, results: list[Any], rng: Generator, name: str) -> None:
    space = space_of(run.program, run.arrays)
    rows = math.prod(space[:-1])
    row = int(rng.integers(max(rows, 1)))
    alone = run.row_alone(row) if rows else None
    if alone is None:
        return
    found = by_torch(alone, alone.tensors(rng))
    expected = [
        None if one is None else whole[np.unravel_index(row, space[:-1])].reshape(one.shape)
        for one, whole in zip(found, results, strict=True)
    ]
    assert_same(found, expected, f"{name}, row {row} alone\n{run.program}")


def check_batch(run: Run, results: list[Any], rng: Generator, name: str) -> None:
    other = run.flipped()
    batch = run.batched_with(other)
    found = by_torch(batch, batch.tensors(rng))
    for place, own in enumerate((results, by_torch(other, other.tensors(rng)))):
        assert_same([both[place] for both in found], own, f"{name} in a batch\n{run.program}")


def check_kept(
    call: RandomCall, runs: list[Run], found: dict[Any, Any], results: list[list[Any]]
) -> None:
    """Derivatives from saved values have the bits of derivatives that compute them again."""
    nodes, draws = call.program.nodes, Draws(f"{call.seed} kept")
    possible = [n for n, node in enumerate(nodes) if node.dtype == "float" and node.axes & ROWS]
    if not possible:
        return
    keeps = sorted({draws.choice(possible) for _ in range(2)})
    base = runs[0]
    code = codes.texts_of(codes.code_of(call.program, keeps)).get(
        codes.parse(base.params.code).accuracy
    )
    if code is None:
        return  # with saved values its functions have float32 accuracy
    saving = PROGRAM.saving(replace(base.params, code=code))
    own = by_torch(base, base.tensors(np.random.default_rng(0)), saving)
    count = len(call.program.results)
    assert_same(own[:count], results[0], f"program that saves {keeps}\n{call.program}")
    # A value that a result holds is not saved a second time.
    held = codes.kept_results(codes.parse(code), split(saving.dtypes)[:count], saving.arithmetic)
    kept = [a if i is None else own[i] for a, i in zip(own[count:], held, strict=True)]
    found = {**found, **{("kept", i): array for i, array in enumerate(kept)}}
    for run, expected in zip(runs[1:], results[1:], strict=True):
        is_forward = "jvp" in json.loads(run.params.code)
        if is_forward:
            derived = codes.jvp(code, call.moved, True)
        else:
            derived = codes.vjp(code, call.given, call.wanted, True)
        arrays = [found[tag] for tag in codes.parse(derived).tags]
        params = replace(run.params, code=derived)
        again = Run(derived, params, arrays, ["contiguous"] * len(arrays))
        again_results = by_torch(again, again.tensors(np.random.default_rng(0)))
        assert_same(again_results, expected, f"derivative that reads {keeps}\n{again.program}")


def check_numbers(run: Run, results: list[Any], name: str) -> list[float]:
    bounds = bounds_of(run.program, run.arrays, run.params.arithmetic, run.dtypes)
    reference = evaluate(run.program, run.arrays)
    known = []
    for place, (bounded, found) in enumerate(zip(bounds, results, strict=True)):
        np.testing.assert_array_equal(bounded.value, reference[place])
        assert found.shape == bounded.value.shape
        missed = misses(bounded, found)
        if found.size:
            known.append(1 - float(np.mean(bounded.unknown)))
        where = tuple(np.argwhere(missed)[0]) if missed.any() else ()
        assert not missed.any(), (
            f"{name}, result {place} is {found[where]} at {where}, expected "
            f"{bounded.value[where]} ± {bounded.error[where]}\n{run.program}"
        )
    return known


def failure(number: int, steps: int) -> Exception | None:
    try:
        check(random_call(number, steps))
    except Exception as error:
        return error
    return None


@pytest.mark.long
@pytest.mark.sampled(6)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part: int) -> None:
    known = []
    for number in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        try:
            known += check(random_call(number, steps_of(number)))
        except Exception as error:
            attempts = ((steps, failure(number, steps)) for steps in range(1, steps_of(number)))
            steps, smaller = next(((s, e) for s, e in attempts if e), (steps_of(number), error))
            call = random_call(number, steps)
            raise AssertionError(f"check(random_call({number}, {steps})) of\n{call}") from smaller
    assert np.mean(known) > 0.6, "the bounds say too little"
