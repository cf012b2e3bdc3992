"""The table of scalar operations is complete, and everything else follows from it."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bridge import lang as bl
from bridge.lang import functions, operations, roles
from bridge.lang.derivatives.modes import jvp, vjp
from bridge.lang.instructions import INSTRUCTIONS, NUMBERS, OTHERS
from bridge.lang.operations import BY_NODE, PUBLIC, SCALARS
from bridge.lang.program import FULL, Operand, Program, Result
from bridge.lang.reference import evaluate
from bridge.lang.scalar import Scalar
from bridge.lang.suggestions import instead_of_attribute
from bridge.lang.values import Builder

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "cmake" / "write_operations.py"

# Steps of softmax and of log Σ eˣ: programs contain them after derivatives are taken.
STEPS = re.compile("exp_coarse|reciprocal_16|exp2_lifted|exp2_below_.*|log_sum.*")
# Operations with a rule of their own in derivatives.py, by the place of a condition or a sum.
BY_THEMSELVES = {"neg", "add", "sub", "div", "minimum", "maximum", "where", "rounded"}
# The number of scalar operations and of other instructions in each version that is still read, and
# a digest of their numbers, names and nodes.
# Version 12 has a new field of the text, the family.
VERSIONS = dict.fromkeys((11, 12), (74, 26, "7a18b15a5bad6957"))
VERSIONS[13] = (79, 26, "cc6ea201be8e9937")
VERSIONS[14] = (79, 29, "93423a1acb66305c")
VERSIONS[15] = (81, 29, "5ebc675841ea2e4c")


def is_truth(scalar: Scalar) -> bool:
    return scalar.cpp.startswith("truth<Real>")


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.name)
def test_every_operation_has_all_its_parts(scalar: Scalar) -> None:
    letters = "abc"[: scalar.arity]
    texts = [scalar.cpp, *([scalar.inline] if scalar.inline else [])]
    if scalar.halves:
        texts += [scalar.halves.start, scalar.halves.finish.replace("started", "")]
        assert scalar.halves.first in NUMBERS
    for text in texts:
        assert set(re.findall(r"\b[abc]\b", text)) == set(letters)
    assert scalar.cost.cpu
    assert scalar.cost.cuda
    if STEPS.fullmatch(scalar.name):
        assert scalar.formula is scalar.rule is scalar.expansion is None
        return
    assert scalar.formula is not None
    values = [np.array([[0.5, 1.5]])] * scalar.arity
    assert scalar.formula(*values).shape == (1, 2)
    of = {operation for operation, _ in scalar.nodes}
    has_own = bool(of & BY_THEMSELVES) or is_truth(scalar) or of == {"silu_slope"}
    rules = (scalar.rule is not None) + (scalar.expansion is not None)
    assert rules == (0 if has_own else 1)


def test_names_and_nodes_are_unique() -> None:
    assert len(NUMBERS) == len(INSTRUCTIONS)
    assert len(BY_NODE) == sum(len(scalar.nodes) for scalar in SCALARS)


@pytest.mark.parametrize("version", VERSIONS)
def test_instructions_keep_their_numbers_and_names(version: int) -> None:
    """Programs that JAX has exported or cached contain the numbers, those of torch the nodes."""
    scalars, others, expected = VERSIONS[version]
    kept = [(NUMBERS[each.name], each.name, each.nodes) for each in SCALARS[:scalars]]
    kept += [(NUMBERS[each.name], each.name, ()) for each in OTHERS[:others]]
    assert hashlib.sha256(repr(kept).encode()).hexdigest()[:16] == expected


def test_a_new_instruction_is_a_new_version() -> None:
    assert list(VERSIONS) == list(range(operations.OLDEST_BYTECODE, operations.VERSION + 1))
    assert VERSIONS[operations.VERSION][:2] == (len(SCALARS), len(OTHERS))


SMOOTH = [
    node
    for node, scalar in BY_NODE.items()
    if scalar.formula and not is_truth(scalar) and node[0] not in ("silu_slope", "rounded")
]


@pytest.mark.parametrize("node", SMOOTH, ids=str)
def test_derivatives_are_those_of_the_formula(node: tuple[str, Any]) -> None:
    """Forward and reverse mode, against differences of the formula in float64."""
    scalar = BY_NODE[node]
    builder = Builder()
    x = [builder.operand(i, 0, FULL, "float") for i in range(scalar.arity)]
    inputs = x if node[0] != "where" else [x[0] > 1.0, *x[1:]]
    value = builder.apply(node[0], *inputs, static=node[1])
    operands = tuple(Operand(f"x{i}", roles.Full) for i in range(scalar.arity))
    program = Program(
        node[0], operands, tuple(builder.nodes), (Result(roles.Full, (value.number,)),)
    )
    rng = np.random.default_rng(0)
    at = [rng.uniform(0.3, 2.3, (3, 5)) for _ in range(scalar.arity)]
    for moved in range(scalar.arity):
        is_moved = [i == moved for i in range(scalar.arity)]
        step = 1e-5
        above, below = (
            evaluate(program, [a + sign * m * step for a, m in zip(at, is_moved, strict=True)])[0]
            for sign in (1, -1)
        )
        right = (above - below) / (2 * step)
        ones = np.ones((3, 5))
        (forward,) = evaluate(jvp(program, is_moved), [*at, ones])
        (reverse,) = evaluate(vjp(program, [True], is_moved), [*at, ones])
        np.testing.assert_allclose(forward, right, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(reverse, right, rtol=1e-7, atol=1e-8)


# ---- What follows from it ----


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_operations", WRITER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_headers_are_those_of_the_table() -> None:
    for name, text in writer().files().items():
        assert (ROOT / "cpp" / "program" / name).read_text() == text, f"run {WRITER}"


def test_the_writer_finds_an_old_header() -> None:
    found = {}
    for path in (ROOT, Path("/nowhere")):
        command = "import sys, pathlib, runpy; sys.argv = ['', '--check']\n"
        command += f"m = runpy.run_path({str(WRITER)!r})\n"
        command += f"m['main'].__globals__['ROOT'] = pathlib.Path({str(path)!r})\n"
        command += "sys.exit(m['main']())"
        run = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
        found[path] = run.returncode
        assert ("is out of date" in run.stderr) == (path != ROOT)
    assert list(found.values()) == [0, 1]


def test_every_public_operation_is_a_function_with_a_docstring() -> None:
    for name in PUBLIC:
        assert name in functions.__all__
        assert name in bl.__all__
        assert inspect.getdoc(getattr(bl, name))
    for name in functions.__all__:
        assert getattr(bl, name) is getattr(functions, name)
    assert len(set(functions.__all__)) == len(functions.__all__)


def test_every_public_operation_of_one_value_is_suggested() -> None:
    for name in (name for name, arity in PUBLIC.items() if arity == 1):
        assert f"write bl.{name}(x)" in instead_of_attribute(name)


@pytest.mark.parametrize("name", ["softplus", "erf", "expm1"])
def test_a_function_stands_in_the_table_in_functions_and_in_the_mathematics(name: str) -> None:
    """So a new one touches three files; elementwise.h and operations.h are written from them."""
    named = re.compile(rf"""["']{name}["']|bl\.{name}\b|math::{name}\(|\bk{name.title()}\b""")
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("bridge/lang", "cpp/interpreter", "cpp/cpu", "cpp/cuda", "bridge/ops")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cuh", ".cpp", ".cu") and named.search(path.read_text())
    }
    written = {f"cpp/program/{file}" for file in writer().files()}
    others = {"bridge/lang/suggestions.py"}  # in the advice for other names
    expected = {"bridge/lang/operations.py", "bridge/lang/functions.py"}
    assert expected <= found <= expected | written | others
