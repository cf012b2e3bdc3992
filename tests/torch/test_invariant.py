"""`bridge.torch.invariant`: torch's own functions run on bridge's kernels, in all their forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bridge.torch as bt
from tests.torch.invariant_forms import (
    COLUMNS,
    DTYPES,
    FORMS,
    LOSSES,
    differentiated,
    numbers,
    same,
    silu_of_rows,
    strides_of,
)

by_form = pytest.mark.parametrize("form", FORMS)


@by_form
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_form_has_the_bits_of_bridges_op(form: str, dtype: torch.dtype) -> None:
    of_torch, of_bridge = FORMS[form]
    x = numbers(3, 5, COLUMNS, dtype=dtype)
    plain, _plain_gradient = differentiated(of_torch, x)
    with bt.invariant(report=True) as context:
        found, gradient = differentiated(of_torch, x)
    assert context.caught
    assert not context.passed
    expected, expected_gradient = differentiated(of_bridge, x)
    same(found, expected)
    same(gradient, expected_gradient)
    # Torch's shapes, dtypes and layouts, and its numbers.
    assert (found.dtype, found.shape, found.stride()) == (plain.dtype, plain.shape, plain.stride())
    exact, exact_gradient = differentiated(of_torch, x.double())
    eps = torch.finfo(found.dtype).eps
    largest = max(eps, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.double(), exact.double(), rtol=4 * eps, atol=8 * eps)
    torch.testing.assert_close(
        gradient.double(), exact_gradient, rtol=8 * largest, atol=64 * largest
    )


@by_form
@pytest.mark.parametrize(
    "layout", ["transposed", "sliced", "expanded", "channels last", "empty", "one row"]
)
def test_layouts_are_those_of_torch(form: str, layout: str) -> None:
    x = {
        "transposed": lambda: numbers(5, 3, COLUMNS).transpose(0, 1),
        "sliced": lambda: numbers(3, 10, 2 * COLUMNS)[:, ::2, 1::2],
        "expanded": lambda: numbers(3, 1, COLUMNS).expand(3, 5, COLUMNS),
        "channels last": lambda: numbers(3, COLUMNS, 5).transpose(1, 2),
        "empty": lambda: numbers(0, 5, COLUMNS),
        "one row": lambda: numbers(1, 1, COLUMNS),
    }[layout]()
    of_torch, _ = FORMS[form]
    expected = of_torch(x)
    with bt.invariant(report=True) as context:
        found = of_torch(x)
    assert context.caught
    assert not context.passed
    assert strides_of(found) == strides_of(expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@by_form
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch(form: str) -> None:
    if any(word in form for word in ("first", "two", "all", "()", "RMSNorm", "F.log_softmax")):
        pytest.skip("its rows are another dimension")
    of_torch, _ = FORMS[form]
    x = numbers(64, 3, COLUMNS)
    with bt.invariant():
        whole = of_torch(x)
        for part in (slice(5, 6), slice(7, 20), slice(1, 64)):
            assert torch.equal(of_torch(x[part]), whole[part])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 7, 4), (2, 7, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross_entropy(loss: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    options = dict(LOSSES[loss])
    x = numbers(*shape, dtype=dtype)
    dim = 0 if len(shape) == 1 else 1
    if options.pop("target", "labels") == "labels":
        generator = torch.Generator().manual_seed(1)
        rows = [size for place, size in enumerate(shape) if place != dim]
        target = torch.randint(0, 7, rows, generator=generator)
        if target.numel() > 1:
            target.view(-1)[1] = options.get("ignore_index", -100)
    else:
        target = numbers(*shape, seed=9).softmax(dim).to(dtype)
    if options.get("weight"):
        options["weight"] = numbers(7, seed=3).abs().to(dtype)

    def of(x: Tensor) -> Tensor:
        weight, goal = options.get("weight"), target
        if x.dtype != dtype:  # the reference in float64
            weight = None if weight is None else weight.double()
            goal = goal.double() if goal.is_floating_point() else goal
        return F.cross_entropy(x, goal, **{**options, "weight": weight})

    plain, _ = differentiated(of, x)
    with bt.invariant(report=True) as context:
        found, gradient = differentiated(of, x)
    assert context.caught == {"cross_entropy": 1}
    assert not context.passed
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    exact, exact_gradient = differentiated(of, x.double())
    eps = torch.finfo(dtype).eps
    # The cotangent is rounded to the dtype of the loss.
    torch.testing.assert_close(found.double(), exact, rtol=8 * eps, atol=32 * eps)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=8 * eps, atol=32 * eps)


def test_cross_entropy_has_the_bits_of_bridges_and_the_nan_of_torch() -> None:
    x, labels = numbers(9, 31), torch.arange(9)
    with bt.invariant():
        for options in LOSSES["plain"], LOSSES["sum"], LOSSES["none"], LOSSES["smooth"]:
            same(F.cross_entropy(x, labels, **options), bt.cross_entropy(x, labels, **options))
        same(nn.CrossEntropyLoss()(x, labels), bt.cross_entropy(x, labels))
        assert F.cross_entropy(x, torch.full((9,), -100)).isnan()


def test_out_and_in_place() -> None:
    x = numbers(4, 6)
    with bt.invariant(report=True) as context:
        out = torch.empty(6, 4).T
        assert torch.softmax(x, -1, out=out) is out
        assert out.stride() == (1, 4)
        same(out.contiguous(), bt.scaled_softmax(x))
        itself = x.clone()
        same(torch.log_softmax(itself, -1, out=itself), bt.log_softmax(x))
        y = x.clone()
        assert F.silu(y, inplace=True) is y
        same(y, silu_of_rows(x))
        same(F.gelu(torch.tensor(2.0)), bt.bias_gelu(torch.tensor([2.0]), approximate="none")[0])
    assert not context.passed


def test_derivatives_and_transforms() -> None:
    x, t = numbers(3, 9, dtype=torch.float64), numbers(3, 9, dtype=torch.float64, seed=1)
    labels = torch.tensor([0, 8, 2])

    def whole(x: Tensor) -> Tensor:
        y = F.softmax(x, -1) * F.silu(x) + F.gelu(x) + F.layer_norm(x, (9,))
        y = y + F.rms_norm(x, (9,)) * x.mean(-1, keepdim=True) + x.log_softmax(0)
        return y * F.cross_entropy(x, labels, label_smoothing=0.1) + x.logsumexp(-1)[:, None]

    scalar = lambda x: (whole(x) * t).sum()  # noqa: E731
    hidden = numbers(2, 3, 9, dtype=torch.float64, seed=4)
    with bt.invariant(report=True) as context:
        assert torch.autograd.gradcheck(whole, x.clone().requires_grad_())
        assert torch.autograd.gradgradcheck(whole, x.clone().requires_grad_())
        results = {
            "jvp": torch.func.jvp(whole, (x,), (t,))[1],
            "grad": torch.func.grad(scalar)(x),
            "hessian": torch.func.hessian(scalar)(x),
            "vmap": torch.func.vmap(whole)(hidden),
            "vmap of grad": torch.func.vmap(torch.func.grad(scalar))(hidden),
        }
    assert not {name for name, _ in context.passed} - {"sum"}
    plain = {
        "jvp": torch.func.jvp(whole, (x,), (t,))[1],
        "grad": torch.func.grad(scalar)(x),
        "hessian": torch.func.hessian(scalar)(x),
        "vmap": torch.stack([whole(each) for each in hidden]),
        "vmap of grad": torch.stack([torch.func.grad(scalar)(each) for each in hidden]),
    }
    for name, expected in plain.items():
        torch.testing.assert_close(results[name], expected, rtol=1e-9, atol=1e-9, msg=name)


def test_in_place_of_a_recorded_tensor() -> None:
    x = numbers(3, 9, dtype=torch.float64)
    function = lambda x: F.silu(x * x, inplace=True) * x  # noqa: E731
    with bt.invariant(report=True) as context:
        assert torch.autograd.gradcheck(function, x.clone().requires_grad_())
    assert context.caught["silu"]


def test_a_lazy_negative() -> None:
    x = torch.complex(numbers(3, 9), numbers(3, 9, seed=1)).conj().imag
    assert x.is_neg()
    with bt.invariant():
        same(x.softmax(-1), bt.scaled_softmax(x.resolve_neg().contiguous()))
        same(F.gelu(x).contiguous(), bt.bias_gelu(x.resolve_neg().contiguous(), approximate="none"))


EMPTY: dict[str, Any] = {
    "softmax": lambda: torch.zeros(4, 0).softmax(-1),
    "softmax of the first": lambda: torch.zeros(2, 0, 3).softmax(0),
    "mean of nothing": lambda: torch.zeros(4, 0).mean(-1),
    "mean of all": lambda: torch.zeros(0, 3).mean(),
    "mean of two": lambda: torch.zeros(2, 0, 3).mean((1, 2)),
    "logsumexp": lambda: torch.zeros(4, 0).logsumexp(-1),
    "layer_norm": lambda: F.layer_norm(torch.zeros(4, 0), (0,)),
    "rms_norm": lambda: F.rms_norm(torch.zeros(0, 3), (3,)),
    "gelu": lambda: F.gelu(torch.zeros(2, 0).T),
    "losses of no rows": lambda: F.cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()),
    "sum of no rows": lambda: F.cross_entropy(
        torch.zeros(0, 3), torch.zeros(0).long(), reduction="sum"
    ),
    "losses of no columns": lambda: F.cross_entropy(torch.zeros(2, 0), torch.zeros(2, 0)),
    "losses of no positions": lambda: F.cross_entropy(
        torch.zeros(2, 3, 0), torch.zeros(2, 0).long(), reduction="none"
    ),
    "twelve dimensions": lambda: numbers(*[2] * 12).softmax(3),
    "twelve dimensions, elementwise": lambda: F.gelu(numbers(*[2] * 12).transpose(0, 5)),
}


@pytest.mark.parametrize("case", EMPTY)
def test_extreme_shapes(case: str) -> None:
    expected = EMPTY[case]()
    with bt.invariant():
        found = EMPTY[case]()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


OWNED: dict[str, Any] = {
    "softmax": lambda x: x.T.softmax(0),
    "mean": lambda x: x.mean(0, keepdim=True),
    "gelu": lambda x: F.gelu(x.T),
    "silu of a number": lambda x: F.silu(x[0, 0]),
    "layer_norm": lambda x: F.layer_norm(x, (4, 6)),
    "rms_norm": lambda x: F.rms_norm(x, (4, 6)),
}


@pytest.mark.parametrize("form", OWNED)
def test_a_result_without_history_is_no_view(form: str) -> None:
    x = numbers(4, 6).requires_grad_()
    with bt.invariant(report=True) as context:
        with torch.no_grad():
            y, other = OWNED[form](x), OWNED[form](x)
        y += x.sum()  # torch refuses this for a view from no_grad mode
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, y.numel()))
        same(other.detach_(), OWNED[form](x.detach()))
        tangent = torch.func.jvp(OWNED[form], (x.detach(),), (torch.ones(4, 6),))[1]
    plain = torch.func.jvp(OWNED[form], (x.detach(),), (torch.ones(4, 6),))[1]
    torch.testing.assert_close(tangent, plain, rtol=1e-5, atol=1e-5)
    assert set(name for name, _ in context.passed) <= {"sum"}


@pytest.mark.parametrize("dims", [4, 5])
def test_rms_norm_keeps_the_channels_last(dims: int) -> None:
    memory_format = torch.channels_last if dims == 4 else torch.channels_last_3d
    x = numbers(2, 3, 4, 5, 7)[..., 0] if dims == 4 else numbers(2, 3, 4, 5, 7)
    x = x.contiguous(memory_format=memory_format)
    for count in (1, 2):
        for norm in (F.rms_norm, F.layer_norm):
            expected = norm(x, x.shape[-count:])
            with bt.invariant():
                found = norm(x, x.shape[-count:])
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
