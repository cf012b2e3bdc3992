"""Declared ops on a GPU: the bits of the CPU, in both frameworks, and in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bridge
from bridge import _native
from bridge.generated.built_kernels import built_kernels
from tests.cuda.devices import jax_device, needs_gpu
from tests.jax.subprocess_run import run
from tests.lang import declarations

torch = pytest.importorskip("torch")
pytestmark = needs_gpu

OPS = {
    name: bridge.op(getattr(declarations, name))
    for name in ("rms_norm", "layer_norm", "log_softmax", "swish_gate", "functions")
}
SHAPES = [(3, 7), (5, 64), (17, 1025), (2, 3, 4096)]


def operands(name: str, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    roles = [each.role for each in OPS[name].declaration.parameters]
    random = np.random.default_rng(len(shape))
    shapes = {bridge.Row: shape[-1:], bridge.Halves: (*shape[:-1], 2 * shape[-1])}
    return [
        torch.tensor(random.normal(size=shapes.get(role, shape)), dtype=dtype) for role in roles
    ]


def derivatives(name: str, values: list[Any]) -> list[Any]:
    values = [value.detach().requires_grad_() for value in values]
    y = OPS[name](*values)
    firsts = torch.autograd.grad(y, values, torch.ones_like(y), create_graph=True)
    return [y, *firsts, *torch.autograd.grad(firsts[0].sum(), values[:1])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_bits_of_the_cpu(name: str, shape: Any, dtype: str) -> None:
    values = operands(name, shape, getattr(torch, dtype))
    found = derivatives(name, [value.cuda() for value in values])
    for a, b in zip(found, derivatives(name, values), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPS)
def test_compiled_kernels_have_the_same_bits(name: str, dtype: str) -> None:
    """Rows are chosen for each kernel: short, of one and several chunks, aligned and not."""
    torch.zeros(1, device="cuda")  # code is loaded only onto devices in use
    OPS[name].compile("cuda", dtypes=[dtype])
    shapes = [*SHAPES, (300, 1024), (2, 16384), (300, 10_000), (4, 100_000)]
    try:
        for shape in shapes:
            values = operands(name, shape, getattr(torch, dtype))
            expected = OPS[name](*values)  # also by compiled code, if the build has the program
            before = _native.generated_calls()
            found = OPS[name](*[value.cuda() for value in values])
            assert _native.generated_calls() == before + 1
            torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    finally:
        _native.forget_generated()


@pytest.mark.parametrize("name", OPS)
def test_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    device = jax_device()
    values = [value.numpy() for value in operands(name, (17, 1025), torch.float32)]
    both = jax.jit(lambda *v: jax.vjp(OPS[name], *v)[1](OPS[name](*v)))
    expected = both(*jax.device_put(values, jax.devices("cpu")[0]))
    for a, b in zip(both(*jax.device_put(values, device)), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_in_a_graph() -> None:
    x, w = (value.cuda() for value in operands("rms_norm", (64, 1000), torch.float32))
    OPS["rms_norm"](x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = OPS["rms_norm"](x, w)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y.cpu(), OPS["rms_norm"](x.cpu(), w.cpu()))


# An op with random words, one with labels, and their derivatives; the build has none of them.
IN_JAX = """
import jax
import numpy as np
import bridge.jax as bj
from bridge import _native

random = np.random.default_rng(0)
x, residual = (random.standard_normal((300, 1024)).astype(np.float32) for _ in range(2))
labels = random.integers(0, 1024, 300).astype(np.int32)

@jax.jit
def step(x, residual, labels):
    y = bj.bias_dropout_add(x, residual=residual, p=0.25, seed=7)
    return bj.cross_entropy(y, labels)

gpu, cpu = jax.devices("cuda")[0], jax.devices("cpu")[0]
found = jax.value_and_grad(step)(*jax.device_put((x, residual, labels), gpu))
jax.block_until_ready(found)
assert _native.generated_calls() >= 4
expected = jax.value_and_grad(step)(*jax.device_put((x, residual, labels), cpu))
for a, b in zip(found, expected):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
"""


def test_jax_calls_what_is_compiled() -> None:
    pytest.importorskip("jax")
    jax_device()
    run(IN_JAX, BRIDGE_COMPILE="now")


# If a graph is captured, it has the very first call.
FROM_THE_BUILD = """
import contextlib
import torch
import bridge.torch as bt
from bridge import _native

graph = {graph}
torch.manual_seed(0)
x, weight = torch.randn(64, 1024).bfloat16(), torch.randn(1024).bfloat16()
on_gpu = x.cuda(), weight.cuda()
with torch.cuda.graph(graph) if graph else contextlib.nullcontext():
    found = bt.rms_norm(*on_gpu)
assert _native.generated_calls() == 1
if graph:
    graph.replay()
assert torch.equal(found.cpu(), bt.rms_norm(x, weight))
"""


@pytest.mark.skipif(
    not built_kernels(_native.cuda_arch(0)), reason="nothing for this GPU in the build"
)
@pytest.mark.parametrize("graph", ["None", "torch.cuda.CUDAGraph()"])
def test_kernels_of_the_build_run_from_the_first_call_on(graph: str) -> None:
    run(FROM_THE_BUILD.format(graph=graph), BRIDGE_COMPILE="background", PATH="")
