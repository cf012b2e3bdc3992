"""The bytecode of programs, and the interpreter's errors for wrong bytecode and arrays."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from bridge import lang as bl
from bridge.lang import bytecode, roles
from bridge.lang.bytecode import words_of
from bridge.lang.derivatives.modes import jvp, vjp
from bridge.lang.instructions import BY_NAME, NUMBERS
from bridge.lang.program import Program
from bridge.lang.reference import evaluate
from bridge.lang.tracing import declared, trace
from bridge.ops import PROGRAM
from bridge.torch._adapter.autograd import native_kernel
from tests.lang import declarations as ops
from tests.lang.random_programs import random_program, steps_of

ROOT = Path(__file__).parents[2]
OPERATIONS = {number: name for name, number in NUMBERS.items()}
ROLES = tuple(roles.NUMBERS)
HEADER_WORDS, INSTRUCTION_WORDS = 11, 6
DECLARED = (
    *(ops.rms_norm, ops.layer_norm, ops.soft_capped_gate, ops.log_softmax, ops.row_dot),
    *(
        ops.weighted_squared_relu,
        ops.swish_gate,
        ops.cross_entropy,
        ops.rotary,
        ops.turned_pairs,
        ops.masked_mean,
    ),
    *(ops.dropped, ops.functions),
)


def program_of(op: Callable[..., Any]) -> Program:
    declaration = declared(op)
    return trace(declaration, [True] * len(declaration.parameters), dict(declaration.static))


def with_derivatives(program: Program) -> list[Program]:
    smooth = [operand.dtype == "float" for operand in program.operands]
    wanted = [s and o.role is not bl.Table for s, o in zip(smooth, program.operands, strict=True)]
    back = vjp(program, [True] * len(program.results), wanted)
    return [program, jvp(program, smooth), back]


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    found = [program_of(op) for op in DECLARED]
    found += [random_program(number, steps_of(number)) for number in range(100)]
    return [each for program in found for each in with_derivatives(program)]


_DIGEST = """
import hashlib
from bridge.lang.bytecode import words_of
from bridge.lang.tracing import declared, trace
from bridge.lang.derivatives.modes import vjp
from tests.lang import declarations

hashed = hashlib.sha256()
for name, op in sorted(vars(declarations).items()):
    if getattr(op, "__module__", "") != declarations.__name__:
        continue
    declaration = declared(op)
    program = trace(declaration, [True] * len(declaration.parameters), dict(declaration.static))
    smooth = [operand.dtype == "float" for operand in program.operands]
    for each in (program, vjp(program, [True] * len(program.results), smooth)):
        hashed.update(words_of(each))
print(hashed.hexdigest())
"""


def test_words_are_the_same_in_every_process() -> None:
    """Sets are ordered differently in each process, and compiled graphs contain the bytecode."""
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _DIGEST]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


# ---- The content of sections ----


@dataclass(frozen=True)
class Instruction:
    operation: str
    again: bool
    to: int
    a: int
    b: int
    c: int
    extra: int


class Sections:
    """A program's bytecode, decoded into sections."""

    def __init__(self, words: bytes) -> None:
        numbers = struct.unpack(f"={len(words) // 4}i", words)
        _, operands, results, *registers, constants, integers, _, phases = numbers[:HEADER_WORDS]
        self.registers = dict(zip(("tile", "tile int", "row", "row int"), registers, strict=True))
        self.constants = {"": constants, " int": integers}
        at = HEADER_WORDS + 2 * (constants + integers) + operands
        self.result_roles = [ROLES[role] for role in numbers[at : at + results]]
        at += results
        lengths = numbers[at : at + 2 * phases + 1]
        at += len(lengths)
        self.of: list[list[Instruction]] = []
        for length in lengths:
            section = []
            for _ in range(length):
                code, *rest = numbers[at : at + INSTRUCTION_WORDS]
                again, operation = divmod(code, bytecode._AGAIN)
                section.append(Instruction(OPERATIONS[operation], bool(again), *rest))
                at += INSTRUCTION_WORDS
            self.of.append(section)
        assert at == len(numbers)


_STORES = ("store", "store_row", "add_columns")
_REDUCTIONS = ("sum", "max", "argmax")


def inputs_of(instruction: Instruction, where: str) -> list[tuple[str, int]]:
    """Returns the registers that an instruction of a row or tile section reads: (pool, number)."""
    name, a, b, c = instruction.operation, instruction.a, instruction.b, instruction.c
    if name.startswith("load") or name.removeprefix("integer_") in ("column", "columns"):
        return []
    if name == "spread":
        return [("row", a)]
    if name == "integer_spread":
        return [("row int", a)]
    if name in _STORES:
        return [(where, b)]
    if name == "keep":
        return [("row int", i) for i in (a, b, c) if i >= 0]
    if name == "float":
        return [(f"{where} int", a)]
    if name == "integer_where":
        return [(where, a), (f"{where} int", b), (f"{where} int", c)]
    if name.startswith("integer_"):
        one = name == "integer_neg"
        return [(f"{where} int", i) for i in ((a,) if one else (a, b))]
    count = 1 if name in _REDUCTIONS else BY_NAME[name].arity
    return [(where, i) for i in (a, b, c)[:count]]


def output_of(instruction: Instruction, where: str) -> tuple[str, int]:
    name = instruction.operation
    if name in _REDUCTIONS:
        return ("row int" if name == "argmax" else "row"), instruction.to
    if name in ("spread", "integer_spread"):
        where = "tile"
    whole = name in ("integer_neg", "integer_add", "integer_sub", "integer_mul", "integer_where")
    is_integer = whole or name in ("column", "integer_columns", "load_label", "integer_spread")
    return f"{where}{' int' if is_integer else ''}", instruction.to


def executed(sections: Sections, pieces: int) -> list[Any]:
    """Returns stored and reduced values as terms, for rows of `pieces` pieces.

    A missing value is an error. In a single piece, values of an earlier phase are not computed
    again.
    """
    registers: dict[tuple[str, int], Any] = {}
    for where in ("tile", "row"):
        for kind, count in sections.constants.items():
            for i in range(count):
                registers[where + kind, i] = ("constant", kind, i)
    done: list[Any] = []

    def run(instruction: Instruction, where: str) -> tuple[Any, Any]:
        name = instruction.operation
        read = tuple(registers[register] for register in inputs_of(instruction, where))
        static: tuple[Any, ...] = ()
        if name.startswith("load"):
            static = (instruction.a, instruction.b if name == "load" else 0)
        elif name in _STORES:
            static = (instruction.a, instruction.c if name == "store" else 0)
        elif name == "keep":
            static = (instruction.extra,)
        return output_of(instruction, where), (name, static, read)

    for number, section in enumerate(sections.of):
        if number % 2 == 0:
            for instruction in section:
                register, term = run(instruction, "row")
                if instruction.operation in _STORES:
                    done.append(term)
                else:
                    registers[register] = term
            continue
        first: list[Any] = []
        for piece in range(pieces):
            found = []
            reduced = {}
            for instruction in section:
                if instruction.again and pieces == 1 and number > 1:
                    continue
                register, term = run(instruction, "tile")
                if instruction.operation in (*_STORES, *_REDUCTIONS):
                    found.append(term)
                if instruction.operation in _REDUCTIONS:
                    reduced[register] = term
                    if pieces == 1:
                        registers[register] = term
                elif instruction.operation not in _STORES:
                    registers[register] = term
            assert piece == 0 or found == first, "a piece has what the one before it left"
            first = found
        registers.update(reduced)
        done += first
    return done


def test_registers_hold_what_is_read_of_them(programs: list[Program]) -> None:
    """Rows have one piece or several; no register is read before it is written."""
    for program in programs:
        sections = Sections(words_of(program))
        once = executed(sections, 1)
        assert executed(sections, 3) == once, program
        stored = [term for term in once if term[0] in _STORES]
        wanted = [
            (number, half)
            for number, result in enumerate(program.results)
            for half in range(len(result.nodes))
        ]
        assert sorted(static for _, static, _ in stored) == wanted


def test_stores_stand_in_the_last_section(programs: list[Program]) -> None:
    """Nothing is read after a store, so that the first result may use an operand's memory."""
    for program in programs:
        sections = Sections(words_of(program))
        for number, section in enumerate(sections.of):
            names = [instruction.operation for instruction in section]
            where = [place for place, name in enumerate(names) if name in _STORES]
            if not where:
                continue
            assert number >= len(sections.of) - 2
            if number % 2:
                assert where == list(range(where[0], len(names)))
            else:  # a per-row float is stored after the tiles, and nothing reads it
                assert not [name for name in names if name == "load"]


def test_a_reduction_can_be_stored_at_every_place() -> None:
    def op(x: bl.Full):
        return x, bl.column_sum(bl.sum(x))

    program = program_of(op)
    x = np.arange(12.0).reshape(3, 4)
    found = run(
        program, [torch.from_numpy(x)], [torch.empty(3, 4).double(), torch.empty(4).double()]
    )
    for array, expected in zip(found, evaluate(program, [x]), strict=True):
        np.testing.assert_array_equal(array.numpy(), expected)
    words_of(vjp(program, [False, True], [True]))


def test_a_batch_draws_the_words_of_each_alone() -> None:
    """This holds for a seed that is a constant too, where nothing else distinguishes batches."""

    def op(x: bl.Full):
        return bl.where(bl.dropout_keep(0.5, 7), x, 0.0)

    program = program_of(op)
    x = torch.ones(2, 9, 5)
    (alone,) = run(program, [x[0]], [torch.empty(9, 5)])
    (both,) = run(program, [x], [torch.empty(2, 9, 5)], attributes=(1.0, 0.0))
    assert torch.equal(both, alone.expand(2, 9, 5))
    (rows,) = run(program, [x], [torch.empty(2, 9, 5)])
    assert not torch.equal(rows, both)


# ---- Malformed bytecode, and arrays that do not fit ----


def run(
    program: Program,
    operands: Sequence[Any],
    results: Sequence[Any],
    words: bytes | None = None,
    attributes: tuple[float, ...] = (0.0, 0.0),
) -> Sequence[Any]:
    code = words_of(program) if words is None else words
    _native.run("program", tuple(operands), tuple(results), attributes, 1, None, code)
    return results


def arrays_of(program: Program) -> tuple[list[Any], list[Any]]:
    """Returns tensors for a program without tables, masks and integers of the whole call."""
    shapes = {
        bl.Full: (3, 7),
        bl.Row: (7,),
        bl.PerRow: (3,),
        bl.PerRow[int]: (3,),
        bl.Halves: (3, 14),
        bl.Pairs: (3, 14),
    }
    operands = [
        torch.ones(shapes[o.role], dtype=torch.int64 if o.dtype == "int" else torch.float32)
        for o in program.operands
    ]
    results = [torch.full(shapes[result.role], 5.0) for result in program.results]
    return operands, results


def malformed(words: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    for length in range(0, len(words), 4):
        yield words[:length]
    yield words + bytes(4)
    numbers = np.frombuffer(words, np.int32)
    extremes = [-1, 0, 1, 2, 2**31 - 1, -(2**31), 1 << 16, 4096]
    for _ in range(400):
        changed = numbers.copy()
        for place in rng.integers(0, len(changed), rng.integers(1, 4)):
            own = int(changed[place])
            near = [own + (own < 2**31 - 1), own - (own > -(2**31)), own ^ bytecode._AGAIN]
            changed[place] = rng.choice([*extremes, *near])
        yield changed.tobytes()


@pytest.mark.parametrize("op", [ops.layer_norm, ops.cross_entropy, ops.swish_gate])
def test_malformed_words_are_an_error(op: Any, rng: np.random.Generator) -> None:
    """Changed bytecode may be another valid program, which then runs; most changes are refused."""
    program = with_derivatives(program_of(op))[2]
    operands, results = arrays_of(program)
    refused = 0
    for words in malformed(words_of(program), rng):
        for result in results:
            result.fill_(5.0)
        try:
            run(program, operands, results, words)
        except ValueError:
            refused += 1
            assert all(bool((result == 5.0).all()) for result in results)
    assert refused > 200


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_bytes_that_are_no_whole_words_are_an_error(extra: int) -> None:
    program = program_of(ops.row_dot)
    operands, results = arrays_of(program)
    words = words_of(program) + bytes(extra)
    with pytest.raises(ValueError, match=f"be read: {len(words)} bytes, expected 4 for each"):
        run(program, operands, results, words)
    with pytest.raises(ValueError, match="bytes, expected 4 for each"):
        native_kernel(PROGRAM).add((), (0.0, 0.0), (), None, words)


def is_refused(operands: Sequence[Any], results: Sequence[Any], match: str) -> None:
    program = program_of(ops.rms_norm)
    before = [result.clone() for result in results if result.device.type == "cpu"]
    with pytest.raises((ValueError, RuntimeError), match=match):
        run(program, operands, results)
    after = [result for result in results if result.device.type == "cpu"]
    for result, own in zip(after, before, strict=True):
        assert torch.equal(result, own), "written before it was checked"


def test_arrays_that_do_not_fit_are_an_error() -> None:
    x, weight, out = torch.ones(3, 7), torch.ones(7), torch.full((3, 7), 5.0)
    is_refused([x, torch.ones(6)], [out], "shape")
    is_refused([x, torch.ones(1, 7)], [out], "shape")
    is_refused([x, weight], [torch.full((3, 6), 5.0)], "shape")
    is_refused([x, weight], [torch.full((1, 3, 7), 5.0)], "shape")
    is_refused([x, weight.int()], [out], "dtype")
    is_refused([x.bool(), weight], [out], "dtype")
    is_refused([x.to(torch.complex64), weight], [out], "dtype")
    is_refused([x, weight], [out.int()], "dtype")
    is_refused([x], [out], "1 operands")
    is_refused([x, weight, weight], [out], "3 operands")
    is_refused([x, weight], [], "0 results")
    is_refused([x, weight], [out, out.clone()], "2 results")
    is_refused([x, weight.to("meta")], [out], "meta")
    is_refused([x, weight], [out.to("meta")], "meta")


def test_results_that_share_memory_are_an_error() -> None:
    x, weight = torch.ones(3, 7), torch.ones(7)
    is_refused([x, weight], [torch.full((1, 7), 5.0).expand(3, 7)], "memory")
    is_refused([x, weight], [torch.full((3, 1), 5.0).expand(3, 7)], "memory")
    rows = torch.ones(5, 7)
    is_refused([rows[:3], weight], [rows[1:4]], "overlap")
    is_refused([x, rows[0]], [rows[:3]], "overlap")
    program, (a, b) = program_of(ops.masked_mean), (torch.ones(3), torch.ones(7))
    both = torch.full((10,), 5.0)
    operands = [x, torch.zeros(3, 7, dtype=torch.bool), a]
    with pytest.raises(ValueError, match="overlap"):
        run(program, operands, [both[:3], torch.full((3, 7), 5.0), both[2:9]])
    assert bool((both == 5.0).all())
    assert b.sum() == 7


# ---- In place ----


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(5, 7), (200, 33), (3, 513), (4, 2500)], ids=str)
@pytest.mark.parametrize("op", [ops.rms_norm, ops.log_softmax], ids=lambda op: op.__name__)
def test_the_result_in_the_operand_s_memory(op: Any, shape: Any, dtype: str, rng: Any) -> None:
    function = bridge.op(op).torch
    x = torch.from_numpy(rng.normal(size=shape)).to(getattr(torch, dtype))
    expected = function(x)
    found = x.clone()
    assert function(found, out=found) is found
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    # It also works if rows are not contiguous.
    wide = torch.zeros(shape[0], shape[1] + 5, dtype=x.dtype)
    inner = wide[:, 2:-3]
    inner.copy_(x)
    function(inner, out=inner)
    assert torch.equal(inner.contiguous().view(torch.uint8), expected.view(torch.uint8))
    assert not wide[:, :2].any()
    assert not wide[:, -3:].any()
