"""`bridge.torch.invariant` as a context and a decorator: threads, nesting and other modes."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch as bt
from tests.torch.invariant_forms import (
    numbers,
)


def test_the_context_ends_and_holds_for_its_thread() -> None:
    x = numbers(1000, 33)
    plain, by_bridge = torch.softmax(x, -1), bt.scaled_softmax(x)
    assert not torch.equal(plain, by_bridge)
    elsewhere: list[Tensor] = []
    with bt.invariant():
        thread = threading.Thread(target=lambda: elsewhere.append(torch.softmax(x, -1)))
        thread.start()
        thread.join()
        assert torch.equal(torch.softmax(x, -1), by_bridge)
    assert torch.equal(elsewhere[0], plain)
    assert torch.equal(torch.softmax(x, -1), plain)
    with pytest.raises(ZeroDivisionError), bt.invariant():
        raise ZeroDivisionError
    assert torch.equal(torch.softmax(x, -1), plain)


def test_nested_contexts_and_other_modes() -> None:
    x = numbers(1000, 33)
    by_bridge = bt.scaled_softmax(x)
    outer, inner = bt.invariant(report=True), bt.invariant(report=True)
    with outer, torch.device("cpu"), bt.invariant(), inner:
        assert torch.equal(torch.softmax(x, -1), by_bridge)
        assert torch.equal(
            F.cross_entropy(x, torch.arange(1000) % 33),
            bt.cross_entropy(x, torch.arange(1000) % 33),
        )
        F.gelu(x.to("meta"))
        assert torch.zeros(2).device.type == "cpu"
        with outer:  # once more
            assert torch.equal(torch.softmax(x, -1), by_bridge)
    assert inner.caught == {"softmax": 2, "cross_entropy": 1}
    assert outer.caught == {"softmax": 2, "cross_entropy": 1}
    assert (
        inner.passed == outer.passed == {("gelu", "the device is neither a CPU nor a CUDA GPU"): 1}
    )


def test_decorator() -> None:
    x = numbers(1000, 33)
    context = bt.invariant(report=True)

    @context
    def function(x: Tensor, *, scale: float) -> Tensor:
        """The words."""
        return torch.softmax(x * scale, -1)

    assert function.__name__ == "function"
    assert function.__doc__ == "The words."
    assert torch.equal(function(x, scale=2.0), bt.scaled_softmax(x * 2.0))
    assert torch.equal(function(x, scale=2.0), bt.scaled_softmax(x * 2.0))
    assert context.caught == {"softmax": 2}
    with pytest.raises(TypeError, match="is a generator or a coroutine"):

        @bt.invariant()
        def generated() -> Any:
            yield 1

    with pytest.raises(TypeError, match="is a generator or a coroutine"):
        bt.invariant()(functools.partial(lambda: (yield)))
    with pytest.raises(TypeError, match="got int, expected a function"):
        bt.invariant()(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="report is 'yes', expected True or False"):
        bt.invariant(report="yes")  # type: ignore[arg-type]


def test_functions_of_torch_that_a_library_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.MultiheadAttention(6, 2, batch_first=True), numbers(1, 4, 6)

    def attend() -> Tensor:
        y: Tensor = layer(x, x, x, need_weights=False)[0]
        return y

    plain = attend()
    compiled = torch.compile(attend, backend="eager")
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda q, *_, **__: torch.ones_like(q))
        exchanged = attend()
        assert not torch.allclose(exchanged, plain)
        with bt.invariant():
            torch.testing.assert_close(attend(), exchanged)
            torch.testing.assert_close(compiled(), exchanged)
    with bt.invariant():
        torch.testing.assert_close(attend(), plain)
        torch.testing.assert_close(compiled(), plain)
