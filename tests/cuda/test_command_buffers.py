"""Ops that XLA captures into command buffers, its CUDA graphs."""

from __future__ import annotations

import textwrap

import pytest

from tests.cuda.devices import jax_device, needs_gpu
from tests.jax.subprocess_run import run

jax = pytest.importorskip("jax")
pytestmark = needs_gpu

# Every chain of one command becomes a buffer, custom calls included.
FLAGS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"

# Five calls and their derivatives, with nothing between them whose bits the device decides.
PROGRAM = """
    import jax, jax.numpy as jnp, numpy as np
    import bridge.jax as bj

    def five(x, b, c, d, residual, seed):
        y = bj.bias_gelu(x, b)
        y = bj.bias_dropout_add(y, c, residual, p=0.3, seed=seed)
        y = bj.scaled_causal_softmax(y, 0.8)
        y = bj.bias_gelu(y, d, approximate="none")
        return bj.scaled_softmax(y, 1.5)

    @jax.jit
    def program(g, seed, *arrays):
        y, pullback = jax.vjp(lambda *arrays: five(*arrays, seed), *arrays)
        return (y, *pullback(g))

    def check(turns, columns):
        random = np.random.default_rng(turns)
        gpu, cpu = jax.devices("cuda")[0], jax.devices("cpu")[0]
        for turn in range(turns):
            matrix, row = (700, columns), (columns,)
            shapes = (matrix, matrix, row, row, row, matrix)
            g, *arrays = (np.asarray(random.standard_normal(s), np.float32) for s in shapes)
            arrays = [g, np.int32(turn), *arrays]
            found, expected = (program(*jax.device_put(arrays, d)) for d in (gpu, cpu))
            assert next(iter(found[0].devices())) == gpu
            for a, b in zip(found, expected):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
"""


def test_five_calls_in_one_program() -> None:
    """They work from the first call of a process on, and again with other numbers and memory."""
    jax_device()
    run(textwrap.dedent(PROGRAM) + "check(6, 72)\n", XLA_FLAGS=FLAGS)


def test_without_command_buffers() -> None:
    jax_device()
    run(textwrap.dedent(PROGRAM) + "check(2, 72)\n", XLA_FLAGS="--xla_gpu_enable_command_buffer=")


def test_as_xla_sees_fit() -> None:
    jax_device()
    run(textwrap.dedent(PROGRAM) + "check(3, 72)\n", XLA_FLAGS="")
