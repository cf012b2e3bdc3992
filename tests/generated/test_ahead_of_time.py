"""Ahead-of-time programs run from the first call on, with the interpreter's bits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bridge import _native
from tests.isas import ISAS

# The instruction sets of the build's programs that run here; the weakest of several is interpreted.
_COMPILED_IN = _native.build_info()["cpu_isas"]
HOT = [isa for isa in ISAS if isa in (_COMPILED_IN[:-1] or _COMPILED_IN)]

# In a process of its own, because other tests remove compiled programs.
PROGRAM = """
import sys
import torch
import torch.nn.functional as F
import bridge.torch as bt
from bridge import _native
from bridge.catalogue.ahead_of_time import DTYPES, requests

assert all(
    _native.has_generated(each.words(), each.dtype_numbers(), isa)
    for each in requests()
    for isa in sys.argv[1:]
)

def in_torch(x, weight):
    labels = torch.arange(len(x)) * 7 % max(x.shape[1], 1)
    with bt.invariant(report=True) as context:
        found = [F.silu(x), x.mean(-1)]
        if x.shape[1]:
            found.append(F.cross_entropy(x, labels, weight, ignore_index=0))
    assert not context.passed, context
    return [([y], (x,)) for y in found]

def run(dtype, rows, columns):
    torch.manual_seed(columns)
    draw = lambda *shape: torch.randn(shape).to(getattr(torch, dtype))
    found = []
    for layout in (lambda x: x, lambda x: x.t().contiguous().t()):
        x, residual = (layout(draw(rows, columns)).requires_grad_() for _ in range(2))
        weight, bias = (draw(columns).requires_grad_() for _ in range(2))
        eps = {"eps": 0.0625 / columns} if columns % 2 else {}
        drop = {"p": 1 / (columns + 2), "seed": rows}
        both = torch.cat((x, residual), -1)
        frozen, still = weight.detach(), bias.detach()
        for results, leaves in (
            ([bt.rms_norm(x, weight, **eps)], (x, weight)),
            (bt.rms_norm(x, weight, residual, **eps), (x, weight, residual)),
            ([bt.layer_norm(x, weight, bias, **eps)], (x, weight, bias)),
            ([bt.swiglu(x, residual)], (x, residual)),
            ([bt.bias_gelu(x, bias)], (x, bias)),
            ([bt.bias_gelu(x, bias, approximate="none")], (x, bias)),
            ([bt.bias_dropout_add(x, bias, residual, **drop)], (x, bias, residual)),
            ([bt.swiglu(both)], (x, residual)),
            ([bt.swiglu(both, bias=torch.cat((bias, weight)))], (x, residual, bias, weight)),
            ([bt.rms_norm(x, frozen, **eps)], (x,)),
            (bt.rms_norm(x, frozen, residual, **eps), (x, residual)),
            ([bt.layer_norm(x, frozen, still, **eps)], (x,)),
            ([bt.bias_gelu(x, still)], (x,)),
            ([bt.bias_gelu(x, still, approximate="none")], (x,)),
            ([bt.bias_dropout_add(x, still, residual, **drop)], (x, residual)),
            ([bt.swiglu(both, bias=torch.cat((still, frozen)))], (x, residual)),
            *in_torch(x, still.abs()),
        ):
            given = [draw(*y.shape) for y in results]
            found += [*results, *torch.autograd.grad(results, leaves, given)]
        with torch.no_grad():
            found += [bt.rms_norm(x, weight), bt.layer_norm(x, weight, bias)]
    return found

SHAPES = [(5, 3), (300, 64), (3, 1000), (40, 333), (2, 5000), (1, 1), (0, 4), (3, 0)]
ALL = [(dtype, *shape) for dtype in DTYPES for shape in SHAPES]
compiled = [run(*each) for each in ALL]
calls = _native.generated_calls()
_native.forget_generated()
for each, ours in zip(ALL, compiled):
    for a, b in zip(ours, run(*each), strict=True):
        kind = torch.int32 if a.dtype == torch.float32 else torch.int16
        assert torch.equal(a.contiguous().view(kind), b.contiguous().view(kind)), each
assert _native.generated_calls() == calls
print(calls)
"""


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("isa", ["", "x86-64-v3"])
def test_from_the_first_call_on(isa: str) -> None:
    environment = {"BRIDGE_COMPILE": "0"} | ({"BRIDGE_CPU_ISA": isa} if isa else {})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *HOT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if isa and "BRIDGE_CPU_ISA" in done.stderr:
        pytest.skip(f"this processor does not run {isa}")
    assert done.returncode == 0, done.stderr
    # Two layouts have 40 passes in two dtypes, on six shapes that have elements.
    assert int(done.stdout) >= 2 * 40 * 2 * 6
