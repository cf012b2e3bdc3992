"""Kernels written by hand have the bits of the interpreter, for the programs that name them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.jax.subprocess_run import run

# In a process of its own, because all compiled programs are removed for the second run.
PROGRAM = """
import itertools
import numpy as np
import torch
from bridge import _native
from bridge.catalogue.softmax_programs import jacobian_program, softmax_program
from bridge.ops import PROGRAM
from bridge.torch._adapter.autograd import call

SHAPES = [(3, 5, 1), (2, 4, 31), (1, 7, 64), (1, 7, 257), (2, 3, 1100), (1, 2, 20000)]
SHAPES.append((1, 2, 270001))
SCALES = (1.0, 0.7, -1.0, 3e5, -1e-30, 0.0, 1e300, 2.0**-1060)
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 6e4, 3e38, 1e-40)


def drawn(rng, shape, dtype):
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 5, (*shape[:-1], 1))
    places = rng.random(shape) < rng.choice([0.0, 0.0, 0.01, 0.3], (*shape[:-1], 1))
    x[places] = rng.choice(SPECIAL, places.sum())
    with np.errstate(over="ignore"):
        x = torch.tensor(x).to(getattr(torch, dtype))
    kind = int(rng.integers(0, 5))
    if kind == 4:  # one element for all columns
        return x[..., :1].expand(shape)
    if kind == 1:  # columns that are not adjacent
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if kind == 2:  # a slice of longer rows
        return torch.cat((x, x), -1)[..., : shape[-1]]
    return x.transpose(0, 1).contiguous().transpose(0, 1) if kind == 3 else x


def masks(rng, shape):
    full = torch.tensor(rng.random(shape) < 0.3)
    full[..., :1, :] = True
    return [full, full[:, :1], full[..., :1].to(torch.uint8) * 7, full[0, 0],
            full.transpose(-1, -2).contiguous().transpose(-1, -2)]


def calls():
    for dtype, shape in itertools.product(("float16", "bfloat16", "float32", "float64"), SHAPES):
        rng = np.random.default_rng(shape[-1])
        for scale in SCALES if shape[-1] < 3000 else (0.7, -1e-30):
            x, g = drawn(rng, shape, dtype), drawn(rng, shape, dtype)
            last = torch.tensor(rng.integers(-2, shape[-1] + 2, shape[:-1]))
            last = [last, last.to(torch.int32), last[:1].expand(shape[:-1])][rng.integers(0, 3)]
            for given, mask in itertools.product((None, last), (None, *masks(rng, shape))):
                params = softmax_program(scale, dtype, (mask is not None, given is not None))
                yield [each for each in (x, mask, given) if each is not None], params
            for given in (None, last):
                params = jacobian_program(scale, dtype, given is not None)
                y = torch.softmax(x.double(), -1).to(x.dtype)
                yield [each for each in (y, g, given) if each is not None], params


def run():
    return [call(PROGRAM, tuple(operands), params)[0] for operands, params in calls()]


def bits(x):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return torch.where(torch.isnan(x), torch.nan, x).contiguous().view(kind)


by_hand = run()
assert _native.generated_calls() == len(by_hand), (_native.generated_calls(), len(by_hand))
_native.forget_generated()
for number, (ours, (operands, params)) in enumerate(zip(by_hand, calls(), strict=True)):
    expected = call(PROGRAM, tuple(operands), params)[0]
    assert torch.equal(bits(ours), bits(expected)), (number, params, [o.shape for o in operands])
print(len(by_hand))
"""


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("isa", ["", "x86-64-v3", "x86-64"])
def test_bits_of_the_interpreter(isa: str) -> None:
    environment = {"BRIDGE_COMPILE": "0"} | ({"BRIDGE_CPU_ISA": isa} if isa else {})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if isa and "BRIDGE_CPU_ISA" in done.stderr:
        pytest.skip(f"this processor does not run {isa}")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


# In a process of its own, in which no other test has removed the kernels.
OTHERS = """
from dataclasses import replace
import torch
from bridge import _native
from bridge.catalogue.softmax_programs import jacobian_program
from bridge.ops import PROGRAM
from bridge.torch._adapter.autograd import call

y, g = torch.softmax(torch.randn(9, 70), -1), torch.randn(9, 70)
y[:, ::2] = 0
params = jacobian_program(0.5, "float32", False)
before = _native.generated_calls()
own = call(PROGRAM, (y, g), params)[0]
assert _native.generated_calls() == before + 1
# Half of the columns, where y is 0, add 1 to the inner product.
other = replace(params, code=params.code.replace("-0x0.0p+0", "0x1.0p+0"))
torch.testing.assert_close(call(PROGRAM, (y, g), other)[0], own - 0.5 * 35 * y)
narrow = g.bfloat16()
mixed = call(PROGRAM, (y, narrow), params)[0]
assert _native.generated_calls() == before + 1
assert torch.equal(mixed, call(PROGRAM, (y, narrow.float()), params)[0])
"""


@pytest.mark.processes
def test_other_programs_are_not_taken() -> None:
    """Another constant, or another dtype, is another program."""
    run(OTHERS, BRIDGE_COMPILE="0")
