"""The device of a call, and the state of the calling thread afterwards."""

from __future__ import annotations

import ctypes
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import bridge
import bridge.torch as bt
from bridge import _native
from bridge.catalogue.softmax_programs import softmax_program
from bridge.ops import PROGRAM
from bridge.torch._adapter.kernels import allocate
from tests.cuda.calls import CALLS, agree, everything, placed
from tests.cuda.devices import jax_device, needs_gpu, needs_two
from tests.jax.subprocess_run import run

pytestmark = needs_gpu
each_device = pytest.mark.parametrize("index", [0, pytest.param(1, marks=needs_two)])


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Returns the result or the error of the function in a thread that has not called CUDA yet."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def current_context() -> int | None:
    """Returns the address of this thread's current context; None if there is none."""
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@each_device
@pytest.mark.parametrize("name", CALLS)
def test_a_thread_without_a_context(name: str, index: int, rng: np.random.Generator) -> None:
    call = CALLS[name]
    drawn = call.draw(rng, torch.float32)
    function, static = call.on(f"cuda:{index}"), placed(drawn, f"cuda:{index}")
    torch.cuda.synchronize(index)

    def body() -> Any:
        assert current_context() is None
        results = everything(function, *static)
        torch.cuda.synchronize(index)
        assert torch.cuda.current_device() == 0
        return results

    agree(in_a_thread(body), call.expected(drawn))


@each_device
def test_a_call_leaves_a_thread_without_a_context(index: int, rng: np.random.Generator) -> None:
    """Only the library is called: torch, which allocates, gives the thread a context for good."""
    drawn = torch.from_numpy(rng.standard_normal((40, 88))).float()
    x = drawn.to(f"cuda:{index}")
    y = torch.empty_like(x)
    torch.cuda.synchronize(index)

    def body() -> None:
        params = softmax_program(0.7, "float32", (False, False))
        attributes = tuple(params.attributes().values())
        code = PROGRAM.code(params, ("float32",))
        assert current_context() is None
        assert _native.run("program", (x,), (y,), attributes, 1, allocate, code) == -1
        assert current_context() is None

    in_a_thread(body)
    torch.cuda.synchronize(index)
    agree([y], [bt.scaled_softmax(drawn, 0.7)])


@needs_two
@pytest.mark.parametrize("name", CALLS)
def test_another_device_than_the_current_one(name: str, rng: np.random.Generator) -> None:
    call = CALLS[name]
    for index in (0, 1, 0):
        drawn = call.draw(rng, torch.float32)
        with torch.cuda.device(1 - index):
            static = placed(drawn, f"cuda:{index}")
            found = everything(call.on(f"cuda:{index}"), *static)
            assert torch.cuda.current_device() == 1 - index
        assert all(t.device == torch.device("cuda", index) for t in found)
        agree(found, call.expected(drawn))


@needs_two
def test_a_device_that_nobody_uses_gets_no_context() -> None:
    code = """
        import torch
        import bridge.torch as bt
        x = torch.ones(300, 8, device="cuda:1", requires_grad=True)
        bias = torch.ones(8, device="cuda:1", requires_grad=True)
        torch.cuda.synchronize(1)
        before = torch._C._cuda_hasPrimaryContext(0)
        bt.bias_gelu(x, bias).sum().backward()
        torch.cuda.synchronize(1)
        assert torch._C._cuda_hasPrimaryContext(0) == before
    """
    run(textwrap.dedent(code))


@needs_two
def test_a_device_that_is_used_later_has_what_was_compiled() -> None:
    code = """
        import torch
        import bridge
        import bridge.torch as bt
        from bridge import _native

        for index in (0, 1):
            x = torch.ones(300, 64, device=f"cuda:{index}")
            with torch.cuda.device(index):
                bt.layer_norm(x)
                assert bridge.wait(300)
                before = _native.generated_calls()
                bt.layer_norm(x)
            assert _native.generated_calls() == before + 1
    """
    run(textwrap.dedent(code))


@needs_two
def test_operands_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="bias is on cuda:1, expected cuda:0, where x is"):
        bt.bias_gelu(torch.ones(3, 4, device="cuda:0"), torch.ones(4, device="cuda:1"))


@each_device
def test_tensors_cross_on_their_own_device(index: int) -> None:
    device = jax_device(index)
    tensor = torch.arange(64.0, device=f"cuda:{index}")
    array = bridge.to_jax(tensor)
    assert next(iter(array.devices())) == device
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    home = bridge.to_torch(array + 1)
    assert home.device == tensor.device
    agree([home], [torch.arange(64.0) + 1])


@each_device
def test_ops_of_jax_on_each_device(index: int, rng: np.random.Generator) -> None:
    import jax

    import bridge.jax as bj

    device, x = jax_device(index), np.asarray(rng.standard_normal((40, 88)), np.float32)
    result = jax.jit(lambda x: bj.scaled_softmax(x, 0.7))(jax.device_put(x, device))
    assert next(iter(result.devices())) == device
    np.testing.assert_array_equal(result, bt.scaled_softmax(torch.from_numpy(x), 0.7))
