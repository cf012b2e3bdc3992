"""`op.compile` compiles the programs of training; `bridge.wait` and the log report them."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import bridge
import bridge.jax as bj
import bridge.torch as bt
from bridge import _native
from bridge import lang as bl
from bridge.generated import requests
from bridge.generated.requests import Request
from bridge.lang import roles
from bridge.ops import run_program
from bridge.ops.traced import Traced, traced
from bridge.ops.usual_programs import requests_towards, trained_sets


@bridge.op(keep=("r",))
def scaled_norm(x: bridge.Full, weight: bridge.Row, bias: bridge.Row):
    r = bl.rsqrt(bl.mean(x * x) + 0.0371)
    return x * r * weight + bias


@bridge.op
def rotated(x: bridge.Full, cos: bridge.Table):
    return x * cos * 0.0372


@bridge.op
def gated(gate: bridge.Full, up: bridge.Full, bias: bridge.Row, scale: bridge.PerRow):
    return bl.silu(gate + bias) * up * scale * 0.0373


SHAPES = {
    roles.Full: (3, 5),
    roles.Row: (5,),
    roles.Table: (3, 5),
    roles.PerRow: (3,),
}


def found_of(op: Any) -> Traced:
    return traced(op.declaration, (True,) * len(op.declaration.parameters))


def shapes_of(op: Any) -> list[tuple[int, ...]]:
    return [SHAPES[operand.role] for operand in found_of(op).program.operands]


def trained_in_torch(op: Any, towards: tuple[int, ...]) -> None:
    operands = [
        torch.ones(shape, requires_grad=i in towards) for i, shape in enumerate(shapes_of(op))
    ]
    (op(*operands) ** 2).sum().backward()


def trained_in_jax(op: Any, towards: tuple[int, ...]) -> None:
    arrays = [jnp.ones(shape) for shape in shapes_of(op)]
    loss = jax.value_and_grad(lambda *operands: (op(*operands) ** 2).sum(), towards)
    jax.jit(loss).lower(*arrays)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Returns the requests of calls, without compiling any."""
    found: list[Request] = []

    def note(
        program: Any, arithmetic: str, dtypes: Any, has_start: bool, platform: str, function: str
    ) -> None:
        found.append(Request(program, arithmetic, tuple(dtypes), has_start, "", function))

    monkeypatch.setattr(run_program, "asked_for", note)
    return found


@pytest.mark.parametrize("train", [trained_in_torch, trained_in_jax], ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", [scaled_norm, rotated, gated], ids=lambda op: op.__name__)
def test_training_asks_for_nothing_that_compile_left_out(
    op: Any, train: Any, asked: list[Request]
) -> None:
    """It covers all of up to three operands, and the sets of four that the docstring names."""
    found = found_of(op)
    compiled = {r.key for r in requests_towards(trained_sets(found), found, "float32")}
    smooth = range(len(found.program.operands))
    every = [s for n in smooth for s in itertools.combinations(smooth, n + 1)]
    chosen = every if len(smooth) <= 3 else trained_sets(found)
    assert {*chosen} >= {tuple(smooth), *((i,) for i in smooth)}
    for towards in chosen:
        train(op, towards)
    # Sums over the dimensions along which a table is repeated are programs of their own.
    own = [request for request in asked if op.__name__ in request.program.name]
    assert any(request.program.name.startswith("vjp of") for request in own)
    assert {request.key for request in own} <= compiled


def test_the_sets_of_operands_are_bounded() -> None:
    @bridge.op
    def many(
        a: bridge.Full,
        b: bridge.Full,
        c: bridge.Row,
        d: bridge.Table,
        e: bridge.PerRow,
        f: bridge.Full,
        labels: bridge.PerRow[int],
    ):
        return (a + b + f) * c * d * e

    assert trained_sets(found_of(many)) == [(0, 1, 2, 3, 4, 5), (0, 1, 4, 5), (2, 3)]
    three = [(0, 1, 2, 3), (0, 1, 3), (2,)]  # all, all without the shared row, and that alone
    each_alone, all_but_each = [(0,), (1,), (3,)], [(1, 2, 3), (0, 2, 3), (0, 1, 2)]
    assert trained_sets(found_of(gated)) == [*three, *each_alone, *all_but_each]

    @bridge.op
    def alone(x: bridge.Full):
        return x * 0.0374

    assert trained_sets(found_of(alone)) == [(0,)]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Returns the requests of `compile`, without compiling any."""
    found: list[Request] = []
    monkeypatch.setattr(Request, "compile", lambda request: found.append(request))
    return found


def results_of(compiled: list[Request]) -> list[tuple[str, int]]:
    return sorted((r.program.name, len(r.program.results)) for r in compiled)


def test_operands_that_are_named(compiled: list[Request]) -> None:
    forward = [("gated", 1)]
    gated.compile(dtypes=["float32"], wrt=[])
    assert results_of(compiled) == forward
    compiled.clear()
    gated.compile(dtypes=["float32"], wrt=["gate", ("up", "bias")])
    assert results_of(compiled) == [
        *forward,
        ("jvp of gated", 1),
        ("vjp of gated", 1),
        ("vjp of gated", 2),
    ]
    compiled.clear()
    gated.compile(dtypes=["float32", "bfloat16"])
    assert len({request.key for request in compiled}) == 2 * (1 + 9 + 1)


def test_names_that_are_refused(compiled: list[Request]) -> None:
    with pytest.raises(TypeError, match=r"gated\.compile: wrt is 'gate', expected a list of names"):
        gated.compile(wrt="gate")
    with pytest.raises(ValueError, match="wrt has 'weight', expected operands that have a gradi"):
        gated.compile(wrt=[("gate", "weight")])

    @bridge.op
    def labelled(x: bridge.Full, label: bridge.PerRow[int]):
        return bl.sum(bl.where(bl.column() == label, x, 0.0))

    with pytest.raises(ValueError, match="'label', expected operands that have a gradient: x"):
        labelled.compile(wrt=["label"])
    assert not compiled
    with pytest.raises(bl.DeclarationError, match="wrt"):

        @bridge.op
        def taken(x: bridge.Full, *, wrt: float = 1.0):
            return x * wrt


def test_an_error_of_a_compiler_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "nowhere++")
    with pytest.raises(bridge.generated.CompileError, match="nowhere"):
        scaled_norm.compile()


def test_the_function_that_was_called_is_told(asked: list[Request]) -> None:
    """The log names it in torch and in JAX, although the shared op has another name."""
    x = torch.ones(3, 6, dtype=torch.float16, requires_grad=True)
    bt.swiglu(x, x, limit=0.0375).sum().backward()
    jax.jit(jax.grad(lambda x: bj.swiglu(x, x, limit=0.0376).sum())).lower(jnp.ones((3, 6)))
    assert {request.function for request in asked} >= {"swiglu"}
    assert all(request.program.name.endswith("glu") for request in asked)
    names = [request.name for request in asked]
    assert names[0] == "swiglu"
    assert names[-1] == "vjp of swiglu"


class Job:
    """A job that runs until the test releases it."""

    platform = "cpu"

    def __init__(self) -> None:
        self.key, self.may_end = object(), threading.Event()

    def compile(self) -> None:
        assert self.may_end.wait(60)

    def lost(self, error: Exception, is_alone: bool) -> None:
        raise AssertionError from error


def test_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for programs, and for nodes of torch's graph."""
    for name in ("_worker", "_other"):
        monkeypatch.setattr(requests, name, requests._Worker())
    assert bridge.wait()
    for worker in (requests._worker, requests._other):
        job = Job()
        worker.ask(job)
        assert not bridge.wait(0.01)
        threading.Timer(0.05, job.may_end.set).start()
        assert bridge.wait()


def test_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the compiled programs, their times and their origins."""
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("BRIDGE_COMPILE", "background")
    handlers = logging.getLogger("bridge").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
    caplog.set_level(logging.DEBUG, "bridge")

    @bridge.op
    def logged(x: bridge.Full):
        return x * 0.0377

    x = torch.ones(3, 5, dtype=torch.float64)
    logged(x)
    assert bridge.wait(1200)
    [path] = tmp_path.glob("*.so")
    what = f"logged (float64 to float64) for {_native.cpu_isa()}"
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    first, (level, compiled), last = told
    assert first == ("DEBUG", f"{what} runs in the interpreter until it is compiled")
    assert level == "INFO"
    assert compiled.startswith(f"compiled {what} in ")
    assert compiled.endswith(f" s: {path}")
    assert last == ("DEBUG", f"loaded {what} from {path}")
    caplog.clear()
    logged.compile(dtypes=["float64"], wrt=[])  # already compiled
    assert not caplog.records
    _native.forget_generated()
    logged.compile(dtypes=["float64"], wrt=[])
    assert [record.getMessage() for record in caplog.records] == [f"loaded {what} from {path}"]
