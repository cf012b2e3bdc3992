"""make_viewless_tensor under torch.compile(fullgraph=True)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from bridge.torch import make_viewless_tensor

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"]),
    pytest.mark.parametrize("keep_graph", [True, False]),
]


@pytest.mark.parametrize("requires_grad", [True, False])
def test_returned(draw: Any, backend: str, keep_graph: bool, requires_grad: bool) -> None:
    x, g = draw(3, 4, grad=requires_grad), draw(4, 3)
    y = torch.compile(
        lambda x: make_viewless_tensor(x.mT, requires_grad, keep_graph),
        fullgraph=True,
        backend=backend,
    )(x)
    assert y._base is None
    assert y.data_ptr() == x.data_ptr()
    assert y.stride() == (1, 4)
    assert y.requires_grad == requires_grad
    if requires_grad:
        y.retain_grad()
        y.backward(g)
        assert torch.equal(y.grad, g)
        if keep_graph:
            assert torch.equal(x.grad, g.mT)
        else:
            assert x.grad is None


def test_inside(draw: Any, backend: str, keep_graph: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        return make_viewless_tensor(y.mT, True, keep_graph).sin() * y.mT

    x, g = draw(3, 4, grad=True), draw(4, 3)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    one, other = compiled(x), function(x)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(grad(one, x, g), grad(other, x, g))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(draw: Any, backend: str, keep_graph: bool, guard: Any) -> None:
    x = draw(3, 4, grad=True)
    compiled = torch.compile(
        lambda x: make_viewless_tensor(x.mT, False, keep_graph),
        fullgraph=True,
        backend=backend,
    )
    with guard():
        y = compiled(x)
    assert y._base is None
    assert not y.requires_grad
    assert torch.equal(y, x.detach().mT)


def test_transforms(draw: Any, backend: str, keep_graph: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return (make_viewless_tensor(x.mT, True, keep_graph).sin() * x.mT).sum()

    def transforms(x: Tensor, t: Tensor) -> Any:
        func = torch.func
        return (
            func.grad(function)(x),
            func.jvp(function, (x,), (t,))[1],
            func.vmap(func.grad(function))(torch.stack([x, t])),
        )

    x, t = draw(3, 4), draw(3, 4)
    compiled = torch.compile(transforms, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, t), transforms(x, t))
