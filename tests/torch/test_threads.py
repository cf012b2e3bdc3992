"""Kernels on torch's own threads: the same bits, from any thread, and in a child of fork."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import bridge.torch
from bridge import _native
from bridge.catalogue.bias_gelu import bias_gelu as declared
from bridge.ops import PROGRAM
from bridge.torch._adapter import threads
from bridge.torch._adapter.autograd import frontend, plan_of


@pytest.fixture
def own_threads():
    _native.use_openmp(0, 0)
    yield
    threads.lend()


def _calls():
    x = torch.randn(300, 1031)
    bias = torch.randn(1031)
    return (
        lambda: bridge.torch.bias_gelu(x, bias),
        lambda: bridge.torch.scaled_softmax(x, 0.7),
        lambda: bridge.torch.bias_dropout_add(x, bias, p=0.3, seed=5),
    )


def test_the_runtime_plays_no_part_in_the_bits(own_threads):
    for call in _calls():
        expected = call()
        threads.lend()
        assert torch.equal(call(), expected)
        _native.use_openmp(0, 0)


def test_many_threads_at_once():
    with ThreadPoolExecutor(6) as threads:
        for call in _calls():
            expected = call()
            for found in threads.map(lambda _, call=call: call(), range(30)):
                assert torch.equal(found, expected)


def test_a_kernel_learns_of_other_dtypes_during_a_call():
    """Other threads run while torch allocates; their new kinds do not affect the call."""
    x, bias = torch.randn(3, 5), torch.randn(5)
    plan = plan_of(PROGRAM, declared.entry("torch").prepare(x, bias), ("float32", "float32"))
    others = ((2, 0), plan._attributes, (-1,), None, *plan._code)

    def empty_like(tensor):
        for _ in range(200):
            kernel.add(*others)
        return torch.empty_like(tensor)

    fields = [empty_like if f is torch.empty_like else f for f in frontend()]
    kernel = _native.Kernel("program", tuple(fields))
    plan.add_to(kernel)
    assert torch.equal(kernel(x, bias)[0], bridge.torch.bias_gelu(x, bias))


def test_a_child_of_fork_computes():
    # In a forked child, GNU's OpenMP waits forever for workers of the parent; so would torch.
    program = """
import os, signal, torch, bridge.torch
torch.set_num_threads(2)
x = torch.randn(300, 1031)
expected = bridge.torch.bias_gelu(x)
child = os.fork()
if child == 0:
    signal.alarm(20)
    same = bridge.torch.bias_gelu(x).numpy().tobytes() == expected.numpy().tobytes()
    os._exit(0 if same else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
