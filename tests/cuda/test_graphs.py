"""Ops that torch.cuda.graph captures and replays on other numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch as bt
from tests.cuda.calls import CALLS, DEVICE, DTYPES, SEED, agree, everything, placed
from tests.cuda.devices import needs_gpu
from tests.jax.subprocess_run import run

pytestmark = needs_gpu


def captured(step: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Returns a function that repeats the work of `step`, and the results that it writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph.replay, results


def overwrite(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    call = CALLS[name]
    function, static = call.on(DEVICE), placed(call.draw(rng, dtype), DEVICE)
    replay, results = captured(lambda: everything(function, *static))
    for _ in range(3):
        drawn = call.draw(rng, dtype)
        overwrite(static, drawn)
        replay()
        agree(results, call.expected(drawn))


def test_seeds_in_a_graph_are_read_when_it_runs(rng: np.random.Generator) -> None:
    drawn = torch.from_numpy(rng.standard_normal((40, 72))).float()
    x, seed = drawn.to(DEVICE), torch.tensor(1, device=DEVICE)
    replay, result = captured(lambda: bt.bias_dropout_add(x, p=0.4, seed=seed))
    for value in (1, 7, -(2**40)):
        overwrite([seed], [torch.tensor(value)])
        replay()
        agree([result], [bt.bias_dropout_add(drawn, p=0.4, seed=value)])


def test_an_integer_as_seed_in_a_graph(rng: np.random.Generator) -> None:
    drawn = torch.from_numpy(rng.standard_normal((40, 72))).float()
    x = drawn.to(DEVICE)
    replay, result = captured(lambda: bt.bias_dropout_add(x, p=0.4, seed=SEED, offset=2))
    replay()
    agree([result], [bt.bias_dropout_add(drawn, p=0.4, seed=SEED, offset=2)])


def test_without_a_seed_every_replay_draws_another_mask() -> None:
    x = torch.ones(100, 100, device=DEVICE)
    replay, result = captured(lambda: bt.bias_dropout_add(x, p=0.5))
    masks = []
    for _ in range(3):
        replay()
        masks.append(result.cpu() > 0)
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
    assert all(0.4 < mask.float().mean() < 0.6 for mask in masks)


def test_in_place_and_into_memory_that_is_there(rng: np.random.Generator) -> None:
    drawn = torch.from_numpy(rng.standard_normal((40, 72))).float()
    x, out = drawn.to(DEVICE, copy=True), torch.empty(40, 72, device=DEVICE)

    def step() -> None:
        bt.scaled_softmax(x, 0.5, out=out)
        bt.bias_gelu_(x)

    replay, _ = captured(step)
    overwrite([x], [drawn])
    replay()
    agree([out, x], [bt.scaled_softmax(drawn, 0.5), bt.bias_gelu(drawn)])


FIRST_CALL = """
    import torch
    {imports}
    x = torch.randn(700, 72, device="cuda")
    bias = torch.randn(72, device="cuda")
    g = torch.randn(700, 72, device="cuda")
    {imports_later}
    torch.cuda.synchronize()
    x.requires_grad_(), bias.requires_grad_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="{mode}"):
        y = bridge.torch.bias_gelu(x, bias)
        found = (y, *torch.autograd.grad(y, (x, bias), g))
    graph.replay()
    torch.cuda.synchronize()
    cx, cb = x.detach().cpu().requires_grad_(), bias.detach().cpu().requires_grad_()
    cy = bridge.torch.bias_gelu(cx, cb)
    expected = (cy, *torch.autograd.grad(cy, (cx, cb), g.cpu()))
    for a, b in zip(found, expected):
        assert torch.equal(a.detach().cpu(), b.detach())
"""


@pytest.mark.parametrize("early", [True, False], ids=["imported early", "imported late"])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_the_first_call_of_a_process_is_captured(mode: str, early: bool) -> None:
    """It works in every capture mode, although captures forbid the loading of kernels."""
    importing = "import bridge.torch"
    code = FIRST_CALL.format(
        mode=mode, imports=importing if early else "", imports_later="" if early else importing
    )
    run(textwrap.dedent(code))
