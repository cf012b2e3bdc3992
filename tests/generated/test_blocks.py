"""Programs with reductions of blocks: compiled for the CPU, and emulated for CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge import lang as bl
from bridge.generated.requests import Request
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests
from tests.generated.emulated import needs_compiler, run

DTYPES = ("float32", "bfloat16", "float64")
BLOCKS = (16, 32, 64, 128)


def op_of(n: int) -> Any:
    @bridge.op
    def blocks(x: bridge.Full, w: bridge.Row, s: bridge.PerBlock[n], r: bridge.PerRow):
        total = bl.block_sum(x * w, n)
        most = bl.block_max(bl.abs(x), n)
        y = x * bl.rsqrt(bl.mean(x * x) + 1.0) * r / (most + 1.0)
        return y * s, total * r * s, bl.sum(total * x), bl.stored(bl.block_max(y, n), "int8")

    return blocks


@bridge.op
def nested(x: bridge.Halves, s: bridge.PerBlock[32], shown: bridge.Mask):
    first, second = x
    inner = bl.block_max(bl.where(shown, first, 0.0), 32)
    outer = bl.block_sum(inner + second, 128)
    return outer * inner * first, bl.where(inner > 1.5, bl.exp(inner), s), bl.max(inner * s)


def requests_of(op: Any, dtype: str) -> list[Request]:
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    return [*usual_requests(traced(declaration, present, *declaration.static.values()), dtype)]


CASES = {
    **{f"{n} {dtype}": (op_of(n), dtype) for n in BLOCKS for dtype in DTYPES},
    **{f"nested {dtype}": (nested, dtype) for dtype in DTYPES},
}


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    """The library compares a program with the interpreter when it loads it."""
    for request in requests_of(*CASES[name]):
        request.compile()


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.processes
@needs_compiler
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, place: int, tmp_path: Path) -> None:
    """The emulator takes half a minute for a call: threads of a block wait for each other."""
    run([requests_of(*CASES[name])[place]], tmp_path, calls=1, seed=len(name))
