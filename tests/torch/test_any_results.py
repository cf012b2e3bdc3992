"""An op whose results, and what is saved for its derivatives, depend on its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from bridge.torch._adapter.autograd import call
from tests.any_results import ANY_RESULTS, AnyParams, computed
from tests.torch.any_results import installed

SQUARES = AnyParams("squares", "float64")


@pytest.fixture(autouse=True)
def ran() -> Iterator[list[AnyParams]]:
    """The parameters of the calls that ran."""
    with installed() as params:
        yield params


def squares(x: Tensor, w: Tensor) -> Tensor:
    return call(ANY_RESULTS, (x, w), SQUARES)[0]  # type: ignore[return-value]


def plain(x: Tensor, w: Tensor) -> Tensor:
    return w * (x * x).sum(-1)


def loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, w: function(x, w).sin().sum()


def test_what_is_saved_is_no_result(ran: list[AnyParams], draw: Any) -> None:
    x, w = draw(2, 3), draw(2)
    assert len(call(ANY_RESULTS, (x, w), SQUARES)) == 1
    assert ran == [SQUARES]
    ran.clear()
    results = call(ANY_RESULTS, (x.requires_grad_(), w), SQUARES)
    assert len(results) == 1
    assert ran == [ANY_RESULTS.saving(SQUARES)]


def test_derivatives(draw: Any) -> None:
    x, w = draw(2, 3, grad=True), draw(2, grad=True)
    torch.autograd.gradcheck(squares, (x, w), check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(squares, (x, w))


@pytest.mark.parametrize("compiled", [False, True])
def test_transforms(draw: Any, compiled: bool, fresh_compiler: None) -> None:
    x, w = draw(4, 2, 3), draw(4, 2)
    transforms: list[Callable[..., Any]] = [
        lambda f: f,
        lambda f: torch.func.vmap(f, (2, 0), 1),
        lambda f: torch.func.grad(loss(f), (0, 1)),
        lambda f: torch.func.jacfwd(torch.func.grad(loss(f), (0, 1)), (0, 1)),
        lambda f: torch.func.grad(lambda x, w: torch.func.grad(loss(f))(x, w).sin().sum(), (0, 1)),
        lambda f: torch.func.vmap(torch.func.grad(loss(f), (0, 1))),
    ]
    for i, transform in enumerate(transforms):
        arguments = (x.movedim(0, 2), w) if i == 1 else (x, w)
        function = transform(squares)
        if compiled:
            function = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(function(*arguments), transform(plain)(*arguments))


def test_compiled_backward_pass(ran: list[AnyParams], draw: Any, fresh_compiler: None) -> None:
    x, w = draw(2, 3, grad=True), draw(2, grad=True)
    function = torch.compile(squares, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(function(x, w).sin().sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(loss(plain)(x, w), (x, w)))
    assert ANY_RESULTS.saving(SQUARES) in ran
    ran.clear()
    with torch.no_grad():
        function(x, w)
    assert ran == [SQUARES]


def parts(dtypes: str) -> Callable[..., Any]:
    def run(x: Tensor, label: Tensor, table: Tensor) -> list[Tensor]:
        results = call(ANY_RESULTS, (x, label, table), AnyParams("parts", dtypes))
        return [result for result in results if result is not None]

    return run


@pytest.mark.parametrize("dtypes", ["float64,float64,float64,float64", ",,float64,", ",float64,,"])
def test_all_roles(dtypes: str, draw: Any, fresh_compiler: None) -> None:
    x, table = draw(5, 4, 6), draw(4, 3)
    label = torch.tensor([0, 1, 1, 2]).expand(5, 4)
    params = AnyParams("parts", dtypes)
    expected = [r for r in computed((x, label, table), params) if r is not None]
    for function in (parts(dtypes), torch.compile(parts(dtypes), backend="aot_eager")):
        torch.testing.assert_close(function(x, label, table), expected)
    shapes = [tuple(r.shape) for r in parts(dtypes)(x.to("meta"), label.to("meta"), table)]
    assert shapes == [tuple(r.shape) for r in expected]
    every = [parts(dtypes)(x[i], label[i], table) for i in range(5)]
    stacked = [torch.stack(results) for results in zip(*every, strict=True)]
    batched = torch.func.vmap(parts(dtypes), (0, 0, None))
    torch.testing.assert_close(batched(x, label, table), stacked)
    tables = torch.stack([table + i for i in range(5)])
    every = [parts(dtypes)(x[0], label[0], tables[i]) for i in range(5)]
    stacked = [torch.stack(results) for results in zip(*every, strict=True)]
    batched = torch.func.vmap(parts(dtypes), (None, None, 0))
    torch.testing.assert_close(batched(x[0], label[0], tables), stacked)
