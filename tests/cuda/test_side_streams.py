"""Ops on torch's side streams, and the memory that they use in the meantime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.cuda.calls import CALLS, DEVICE, DTYPES, agree, everything, placed
from tests.cuda.devices import needs_gpu

pytestmark = needs_gpu

# Ops that add up columns, in a workspace that is freed as soon as the call is queued.
WITH_WORKSPACE = ("bias_gelu", "bias_dropout_add")


def keep_busy() -> None:
    """Some milliseconds of work on the current stream, so that the host is far ahead of it."""
    torch.cuda._sleep(5_000_000)


def overwrite_free_memory() -> None:
    """Takes blocks of many sizes from the current stream's pool, and fills them with NaN."""
    blocks = [torch.full((2**k,), torch.nan, device=DEVICE) for k in range(6, 18)]
    del blocks


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    call = CALLS[name]
    drawn = call.draw(rng, dtype)
    function, static = call.on(DEVICE), placed(drawn, DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        keep_busy()
        found = everything(function, *static)
    stream.synchronize()
    agree(found, call.expected(drawn))


@pytest.mark.parametrize("name", WITH_WORKSPACE)
def test_a_workspace_that_is_freed_is_not_written_by_others(
    name: str, rng: np.random.Generator
) -> None:
    call = CALLS[name]
    drawn = call.draw(rng, torch.float32)
    expected = call.expected(drawn)
    function, static = call.on(DEVICE), placed(drawn, DEVICE)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for turn in range(30):
        with torch.cuda.stream(streams[turn % 3]):
            keep_busy()
            found.append(everything(function, *static))
            overwrite_free_memory()  # on the same stream: after the call
        with torch.cuda.stream(streams[(turn + 1) % 3]):
            overwrite_free_memory()  # on another stream: while the call may still use memory
    torch.cuda.synchronize()
    for results in found:
        agree(results, expected)


@pytest.mark.parametrize("name", WITH_WORKSPACE)
def test_backward_is_called_on_another_stream(name: str, rng: np.random.Generator) -> None:
    """Autograd still runs it on the stream of the forward pass."""
    call = CALLS[name]
    drawn = call.draw(rng, torch.float32)
    cotangent, *operands = placed(drawn, DEVICE)
    function, forward = call.on(DEVICE), torch.cuda.Stream()
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        result = function(*operands)
        keep_busy()
    gradients = torch.autograd.grad(result, operands, cotangent)
    overwrite_free_memory()
    torch.cuda.synchronize()
    agree((result, *gradients), call.expected(drawn))
