"""`bridge.torch.invariant` under torch.compile: a graph belongs to the inside or to the outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import bridge.torch as bt
from bridge._private.torch import modes_of_thread

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


LABELS = torch.arange(50) % 33


def every_function(x: Tensor) -> Tensor:
    y = torch.softmax(x, -1) + x.softmax(0) + F.log_softmax(x, dim=1) + F.silu(x)
    y = y + F.gelu(x, approximate="tanh") + F.layer_norm(x, (33,), x[0], x[1]) + F.softmin(x, -1)
    y = y * F.rms_norm(x, (33,)) + x.mean(-1, keepdim=True) + x.mean((0, 1)) + x.mean()
    y = y + torch.logsumexp(x, axis=1, keepdims=True)  # type: ignore[call-overload]
    y = y + F.gelu(x.T).T + torch.nn.SiLU(inplace=True)(x * 2)
    weight = x[0].detach().abs()
    losses = F.cross_entropy(x, LABELS, weight, label_smoothing=0.1) + F.cross_entropy(x, LABELS)
    return y * (losses + F.cross_entropy(x, x.detach().softmax(-1), reduction="sum"))


def backward_too(function: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@BACKENDS
def test_a_graph_of_the_outside_is_not_used_inside(backend: str) -> None:
    x = numbers(50, 33)
    compiled = torch.compile(every_function, fullgraph=True, backend=backend)
    plain = every_function(x)
    with bt.invariant(report=True) as context:
        by_bridge = every_function(x)
    assert not context.passed
    assert not torch.equal(plain, by_bridge)
    outside = compiled(x)
    for _ in range(2):
        with bt.invariant():
            assert torch.equal(compiled(x), by_bridge)
        assert torch.equal(compiled(x), outside)
    torch.testing.assert_close(outside, plain)


@BACKENDS
def test_a_graph_of_the_inside_is_not_used_outside(backend: str) -> None:
    x = numbers(50, 33)
    compiled = torch.compile(every_function, fullgraph=True, backend=backend)
    with bt.invariant():
        inside = compiled(x)
    by_bridge = bt.invariant()(every_function)(x)
    assert torch.equal(inside, by_bridge)
    assert not torch.equal(compiled(x), inside)
    other = torch.compile(lambda x: torch.softmax(x, -1), backend="aot_eager")
    with bt.invariant():
        assert torch.equal(other(x), bt.scaled_softmax(x))
    assert torch.equal(other(x), torch.softmax(x, -1))


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients(dynamic: bool) -> None:
    x = numbers(50, 33)
    compiled = torch.compile(every_function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    with bt.invariant():
        expected, gradient = backward_too(every_function, x)
        found, found_gradient = backward_too(compiled, x)
    assert torch.equal(found, expected)
    # Compiled graphs add cotangents of x in another order.
    torch.testing.assert_close(found_gradient, gradient)


@BACKENDS
def test_a_context_inside_the_compiled_function(backend: str) -> None:
    x = numbers(50, 33)

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = x.softmax(-1)
        with bt.invariant():
            inside = x.softmax(-1)
        return before, inside, x.softmax(-1)

    before, inside, after = torch.compile(function, fullgraph=True, backend=backend)(x)
    assert torch.equal(inside, bt.scaled_softmax(x))
    assert torch.equal(before, x.softmax(-1))
    assert torch.equal(after, before)

    decorated = torch.compile(bt.invariant()(torch.softmax), fullgraph=True, backend=backend)
    assert torch.equal(decorated(x, -1), bt.scaled_softmax(x))
    assert torch.equal(torch.softmax(x, -1), before)


def test_a_broken_graph() -> None:
    x = numbers(50, 33)

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with bt.invariant():
            first = x.softmax(-1)
            torch._dynamo.graph_break()
            second = x.softmax(-1)
        return first, second, x.softmax(-1)

    first, second, after = torch.compile(function, backend="aot_eager")(x)
    assert torch.equal(first, bt.scaled_softmax(x))
    assert torch.equal(second, first)
    assert torch.equal(after, x.softmax(-1))
    assert not torch.equal(after, first)
    assert modes_of_thread() == []


def test_inductor() -> None:
    x = numbers(50, 33)
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1) + x.mean(-1, keepdim=True))
    outside = compiled(x)
    with bt.invariant():
        y = torch.softmax(x * 2, -1)
        assert torch.equal(compiled(x), y + x.mean(-1, keepdim=True))
    assert torch.equal(compiled(x), outside)


def test_calls_that_pass_by_in_a_graph() -> None:
    x, whole = numbers(50, 33), torch.arange(12.0).reshape(3, 4).to(torch.int32)

    def function(x: Tensor, whole: Tensor) -> Tensor:
        y = F.softmax(whole, -1, dtype=torch.float32).sum() + F.layer_norm(x, (33,), eps=0.0)
        return y + (x @ x.T).mean(0, dtype=torch.float64)[:33] + (x + 1j).mean().real

    expected = function(x, whole)
    with bt.invariant(report=True) as context:
        found = torch.compile(function, fullgraph=True, backend="aot_eager")(x, whole)
    torch.testing.assert_close(found, expected)
    assert context.caught == {"mean": 1}
    passed = {name for name, _ in context.passed if not name.startswith("aten::")}
    assert passed == {"softmax", "layer_norm", "mean", "matmul", "sum"}


def test_the_report_has_the_calls_of_a_graph_when_it_is_compiled() -> None:
    x = numbers(50, 33)
    compiled = torch.compile(lambda x: torch.softmax(x, -1) + F.gelu(x), backend="aot_eager")
    with bt.invariant():
        compiled(x)
    with bt.invariant(report=True) as context:  # compiles once more
        compiled(x)
    assert context.caught == {"softmax": 1, "gelu": 1}
    with bt.invariant(report=True) as again:
        compiled(x)
    assert not again.caught


def test_autocast_in_a_graph() -> None:
    x, weight = numbers(50, 33), numbers(33, seed=4)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = F.linear(x, weight[None]).expand(50, 33)
            return (
                half.softmax(-1),
                F.layer_norm(half, (33,), weight),
                F.cross_entropy(half, LABELS),
            )

    with bt.invariant(report=True) as context:
        expected = function(x)
        found = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    for plain, a, b in zip(function(x), expected, found, strict=True):
        assert a.dtype == b.dtype == plain.dtype
        assert torch.equal(a, b)
    assert not {name for name, _ in context.passed} - {"linear"}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # read by dynamo after a broken graph
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_in_a_compiled_function(use_reentrant: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return checkpoint(layer, x * 2, use_reentrant=use_reentrant) + x.mean(-1, keepdim=True)

    def layer(x: Tensor) -> Tensor:
        return F.softmax(x, -1) * F.gelu(x)

    x = numbers(50, 33)
    with bt.invariant(report=True) as context:
        expected = layer(x * 2) + x.mean(-1, keepdim=True)
        y = x.clone().requires_grad_()
        found = torch.compile(function, backend="aot_eager")(y)
        assert torch.equal(found, expected)
        found.sum().backward()
        _, gradient = backward_too(lambda x: layer(x * 2) + x.mean(-1, keepdim=True), x)
        torch.testing.assert_close(y.grad, gradient)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="compile without fullgraph"):
            torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert context.caught["softmax"] >= 2
    outside = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert not torch.equal(outside, expected)


def test_an_operator_on_functions_is_named() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 0, lambda x: x.softmax(-1), lambda x: x.sin(), (x,))

    with bt.invariant(report=True) as context:
        torch.compile(function, backend="aot_eager", fullgraph=True)(numbers(50, 33))
    assert ("cond", "functions inside such an operator are not seen") in context.passed


def test_attention_of_torch_in_one_graph() -> None:
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = numbers(4, 5, 16)

    def weights(x: Tensor) -> Tensor:
        return attention(x, x, x)[1]  # type: ignore[no-any-return]

    with bt.invariant(report=True) as context:
        found = torch.compile(weights, backend="aot_eager", fullgraph=True)(x)
        assert torch.equal(found, weights(x))
        with pytest.raises(RuntimeError, match="sizes must be non-empty"):
            x.unflatten(-1, ())
    assert context.caught == {"softmax": 2, "mean": 2}


def test_the_backward_function_of_a_user_in_a_graph() -> None:
    """Dynamo knows no layout of the tensors there, which the checks of an op ask for."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            y = torch.softmax(ctx.saved_tensors[0], -1)
            return y * (g - (g * y).mean(-1, keepdim=True) * 33)

    def function(x: Tensor) -> Tensor:
        return Own.apply(x * 1.0) ** 2  # type: ignore[no-untyped-call]

    x = numbers(50, 33)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with bt.invariant(report=True) as context:
        expected, gradient = backward_too(function, x)
        found, of_compiled = backward_too(compiled, x)
    assert torch.equal(found, expected)
    assert torch.equal(of_compiled, gradient)
    assert context.caught == {"softmax": 4, "mean": 2}
