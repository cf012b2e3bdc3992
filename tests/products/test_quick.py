"""Products of ordinary tensors: the path without Python has the results of the general one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bridge.torch as bt
from bridge import _native
from bridge.lang.dtypes import FLOATING
from bridge.torch._adapter import products

SHAPES = {
    "one element": ((1, 1), (1, 1)),
    "matrices": ((5, 300), (300, 7)),
    "rows of a batch": ((2, 3, 4, 9), (9, 5)),
    "batches": ((2, 3, 9), (2, 9, 5)),
    "one a for all": ((1, 3, 9), (4, 9, 5)),
    "one b for all": ((4, 3, 9), (1, 9, 5)),
    "no rows": ((0, 9), (9, 5)),
    "no columns": ((3, 9), (9, 0)),
    "no terms": ((3, 0), (0, 5)),
    "no batch": ((0, 3, 9), (9, 5)),
}
LAYOUTS = ("compact", "transposed", "sliced", "expanded")


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns f(...) computed by the general path."""

    def run(f: Any, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(products._native, "quick_product", lambda *_: None)
            return f(*arguments)

    return run


def laid_out(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    if layout == "transposed":
        return torch.randn(*shape[:-2], shape[-1], shape[-2]).to(dtype).mT
    if layout == "sliced":
        return torch.randn(*shape[:-1], 2 * shape[-1] + 1).to(dtype)[..., 1::2]
    if layout == "expanded":
        return torch.randn(*shape[:-2], 1, shape[-1]).to(dtype).expand(shape)
    return torch.randn(shape).to(dtype)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    alike = x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride()
    return alike and x.is_contiguous() and torch.equal(x, y)


@pytest.mark.parametrize("dtypes", [(a, b) for a in FLOATING for b in FLOATING])
@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_matmul(shapes: Any, layouts: Any, dtypes: Any, general: Any) -> None:
    given = zip(shapes, layouts, dtypes, strict=True)
    a, b = (laid_out(shape, layout, getattr(torch, dtype)) for shape, layout, dtype in given)
    assert same(bt.matmul(a, b), general(bt.matmul, a, b))


@pytest.mark.parametrize(
    "dtypes", [(a, b, c) for a in FLOATING for b in FLOATING for c in FLOATING]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear(layout: str, dtypes: Any, general: Any) -> None:
    shapes = (2, 3, 9), (5, 9), (5,)
    layouts = layout, layout, "compact"
    given = zip(shapes, layouts, dtypes, strict=True)
    x, weight, bias = (laid_out(s, each, getattr(torch, dtype)) for s, each, dtype in given)
    assert same(bt.linear(x, weight, bias), general(bt.linear, x, weight, bias))
    assert same(bt.linear(x, weight), general(bt.linear, x, weight))


def test_ordinary_calls_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: without it, the tests above would compare the general path with itself."""
    monkeypatch.setattr(products.PRIMITIVES, "product", None, raising=False)
    x, weight = torch.ones(3, 4), torch.ones(2, 4)
    assert torch.equal(bt.linear(x, weight), torch.full((3, 2), 4.0))
    assert torch.equal(bt.matmul(x, weight.T), torch.full((3, 2), 4.0))


def quick(a: Any, b: Any, bias: Any = None, flags: int = 0) -> Any:
    return _native.quick_product(products.frontend(), a, b, bias, flags, None)


def unaligned() -> torch.Tensor:
    memory = torch.zeros(65, dtype=torch.uint8)
    return torch.frombuffer(memory.numpy()[1:].data, dtype=torch.float32).view(4, 4)


X = torch.ones(4, 4)
OTHERS: dict[str, tuple[Any, ...]] = {
    "an unaligned a": (unaligned(), X),
    "negations in memory": (torch.ones(4, 4, dtype=torch.complex64).conj().imag, X),
    "integers": (X.int(), X),
    "complex numbers": (X.to(torch.complex64), X),
    "a list": ([[1.0]], X),
    "None": (None, X),
    "one dimension": (X[0], X),
    "no dimension": (X[0, 0], X),
    "shapes that do not fit": (X, X[:3]),
    "batches that do not fit": (X.expand(2, 4, 4), X.expand(3, 4, 4)),
    "a bias that does not fit": (X, X, torch.ones(3)),
    "a bias of two dimensions": (X, X, X),
    "dtypes that promote to a third": (X.half(), X.bfloat16()),
    "meta": (X.to("meta"), X.to("meta")),
    "sparse": (X.to_sparse(), X),
    "a weight of three dimensions": (X.expand(2, 4, 4), X.expand(2, 4, 4), None, 2 + 16),
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_other_calls_are_left_to_the_general_path(given: Any) -> None:
    assert quick(*given) is None


def test_observed_calls_are_left_to_the_general_path() -> None:
    seen: list[Any] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(f)
            return f(*args, **(kwargs or {}))

    with Seeing():
        assert quick(X, X) is None
        bt.matmul(X, X)
    assert torch.ops.bridge.matmul.default in seen
    assert quick(X.clone().requires_grad_(), X) is True
    with torch.no_grad():
        assert torch.is_tensor(quick(X.clone().requires_grad_(), X))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bt.matmul(X, X).dtype == bt.linear(X, X).dtype == torch.bfloat16
    torch.func.vmap(lambda x: bt.matmul(x, X))(X.expand(2, 4, 4))
    dual, g = torch.func.jvp(lambda x: bt.matmul(x, X), (X,), (X,))
    assert torch.equal(dual, g)


@pytest.mark.parametrize(
    "arguments", [(), (None,) * 6, (1, X, X, None, 0, None), ("x", X, X, None, "0", None)]
)
def test_other_arguments(arguments: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        _native.quick_product(*arguments)


def test_gradients_on_the_meta_device() -> None:
    given = [torch.empty(shape, device="meta", requires_grad=True) for shape in ((3, 4), (5, 4))]
    y = bt.linear(*given)
    assert y.is_meta
    assert [d.shape for d in torch.autograd.grad(y.sum(), given)] == [x.shape for x in given]


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_in_batches(create_graph: bool) -> None:
    """Cotangents of torch's old vmap have no memory of their own."""
    given = [torch.randn(shape, requires_grad=True) for shape in ((3, 4), (5, 4), (5,))]
    g = torch.randn(7, 3, 5)

    def gradients(f: Any) -> Any:
        y = f(*given)
        wanted = {"is_grads_batched": True, "create_graph": create_graph}
        found = torch.autograd.grad(y, given, g, **wanted)
        if not create_graph:
            return found
        return (*found, *torch.autograd.grad(found[0].sum() + found[1].square().sum(), given[:2]))

    for ours, other in zip(
        gradients(bt.linear), gradients(torch.nn.functional.linear), strict=True
    ):
        torch.testing.assert_close(ours, other)
