"""A profiler shows every call and its backward pass under the function's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import profiler
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from bridge.torch import (
    bias_dropout_add,
    bias_gelu,
    bias_gelu_,
    megatron,
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from tests.torch.expected import assert_same_bits

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "bias_gelu": lambda x: bias_gelu(x, x[0].detach()),
    "scaled_softmax": lambda x: scaled_softmax(x, 0.5),
    "scaled_masked_softmax": lambda x: scaled_masked_softmax(x, x.detach() > 0, 0.5),
    "scaled_causal_softmax": lambda x: scaled_causal_softmax(x, 0.5),
    "scaled_softmax_backward": lambda x: scaled_softmax_backward(x, x.detach(), 0.5),
    "bias_dropout_add": lambda x: bias_dropout_add(x, p=0.5, seed=1),
    "bias_gelu_back": lambda x: megatron.bias_gelu_back(x, x[0].detach(), x.detach()),
    "FusedScaleMaskSoftmax": lambda x: megatron.FusedScaleMaskSoftmax(
        False, False, "padding", True, None, True, 0.5
    )(x[None, None], None)[0, 0],
}


def shown(run: Callable[[], Any]) -> Counter[str]:
    """Counts the ranges of this library, without the engine's ranges around them."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        run()
    counts = Counter({event.key: event.count for event in profiled.key_averages()})
    assert not [name for name in counts if "_EagerCall" in name or "CallBackward" in name]
    return Counter({name: n for name, n in counts.items() if name.startswith("bridge::")})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_have_the_function_s_name(draw: Any, name: str) -> None:
    """Names appear for a first call of its kind and for later ones; each call appears once."""
    x, function = draw(5, 5, grad=True), FUNCTIONS[name]
    for _ in range(2):
        with torch.no_grad():
            assert shown(lambda: function(x)) == {f"bridge::{name}": 1}
            strided = x.T.contiguous().T
            assert shown(lambda: function(strided)) == {f"bridge::{name}": 1}  # noqa: B023
        expected = {f"bridge::{name}": 1, f"bridge::{name}Backward": 1}
        assert shown(lambda: function(x).sum().backward()) == expected


def test_written_results_have_the_function_s_name(draw: Any) -> None:
    x, out = draw(5, 5), torch.empty(5, 5, dtype=torch.float64)
    for _ in range(2):
        assert shown(lambda: scaled_softmax(x, out=out)) == {"bridge::scaled_softmax": 1}
        assert shown(lambda: bias_gelu_(x.clone())) == {"bridge::bias_gelu_": 1}
    leaf = x.clone().requires_grad_()
    assert shown(lambda: bias_gelu_(leaf * 1.0).sum().backward()) == {
        "bridge::bias_gelu_": 1,
        "bridge::bias_gelu_Backward": 1,
    }


def test_dispatched_calls_have_the_op_s_name(draw: Any) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    x = draw(5, 5, grad=True)

    def run() -> None:
        with Mode():
            y = scaled_softmax(x)
        y.sum().backward()

    assert {"bridge::program", "bridge::programBackward"} <= set(shown(run))


def test_transformed_calls_have_the_function_s_name(draw: Any) -> None:
    x = draw(5, 5)
    assert "bridge::scaled_softmax" in shown(
        lambda: torch.func.grad(lambda x: scaled_softmax(x)[0, 0])(x)
    )


def test_graphs_show_the_function_s_name(draw: Any) -> None:
    y = bias_gelu(draw(5, 5, grad=True))
    assert y.grad_fn.name() == "bridge::bias_geluBackward"


def test_a_profiler_changes_no_bit(draw: Any) -> None:
    x, g = draw(5, 5, grad=True), draw(5, 5)
    for function in FUNCTIONS.values():
        expected = function(x)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True):
            y = function(x)
            gradient = torch.autograd.grad(y, x, g)[0]
        assert_same_bits(y, expected)
        assert_same_bits(gradient, torch.autograd.grad(expected, x, g)[0])


def test_nothing_is_recorded_where_no_profiler_runs(draw: Any, monkeypatch: Any) -> None:
    def record_function(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(profiler, "record_function", record_function)
    x = draw(5, 5)
    for function in FUNCTIONS.values():
        function(x)
        function(x.T.contiguous().T)


def test_nvtx_ranges(draw: Any, monkeypatch: Any) -> None:
    """`emit_nvtx` turns recorded ranges into NVTX ranges; the test leaves out its start."""
    for name in ("_enable_profiler", "_disable_profiler"):
        monkeypatch.setattr(profiler, name, lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    opened, record_function = [], profiler.record_function
    monkeypatch.setattr(
        profiler, "record_function", lambda name: opened.append(name) or record_function(name)
    )
    x = draw(5, 5)
    scaled_softmax(x)
    with profiler.emit_nvtx():
        scaled_softmax(x)
    scaled_softmax(x)
    assert opened == ["bridge::scaled_softmax"]
