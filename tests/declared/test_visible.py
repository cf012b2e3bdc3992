"""`bl.visible`: hidden columns count nowhere, whatever they hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
import bridge.jax
import bridge.torch
from bridge import lang as bl


@bridge.op
def reductions(x: bridge.Full, last: bridge.PerRow[int]) -> Any:
    h = bl.visible(x, last=last)
    return bl.sum(h), bl.mean(h), bl.max(h), 1.0 * bl.argmax(h), bl.logsumexp(h), bl.column_sum(h)


@bridge.op
def whole(x: bridge.Full) -> Any:
    return bl.sum(x), bl.mean(x), bl.max(x), 1.0 * bl.argmax(x), bl.logsumexp(x), bl.column_sum(x)


@bridge.op
def window_softmax(x: bridge.Full, last: bridge.PerRow[int], *, width: int) -> Any:
    return bl.exp(bl.log_softmax(bl.visible(x, first=last - width + 1, last=last)))


@bridge.op
def norm(x: bridge.Full, last: bridge.PerRow[int], weight: bridge.Row) -> Any:
    h = bl.visible(x, last=last)
    return h * bl.rsqrt(bl.mean(h * h) + 1e-6) * weight


@bridge.op
def norm_of_all(x: bridge.Full, weight: bridge.Row) -> Any:
    return x * bl.rsqrt(bl.mean(x * x) + 1e-6) * weight


def hidden_behind(x: np.ndarray[Any, Any], last: int) -> np.ndarray[Any, Any]:
    """Returns x with NaN and infinities behind column `last`."""
    x = x.copy()
    x[:, last + 1 :: 2], x[:, last + 2 :: 2] = np.nan, np.inf
    return x


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("cols", "last"), [(1, 0), (9, 4), (40, 31), (700, 256), (2500, 1023)])
def test_reductions_are_those_of_the_visible_columns(
    rng: np.random.Generator, dtype: str, cols: int, last: int
) -> None:
    numbers = hidden_behind(rng.standard_normal((5, cols)), last)
    x = torch.tensor(numbers).to(getattr(torch, dtype))
    found = reductions(x, torch.full((5,), last))
    expected = whole(x[:, : last + 1])
    for each, alone in zip(found[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(each, alone, rtol=0, atol=0)
    torch.testing.assert_close(found[-1][: last + 1], expected[-1], rtol=0, atol=0)
    assert not found[-1][last + 1 :].any()


def test_a_row_without_visible_columns_is_empty() -> None:
    x, last = torch.full((3, 8), torch.nan), torch.tensor([-1, -1, -9])
    total, mean, largest, place, lse, over = reductions(x, last)
    assert not total.any()
    assert total.signbit().all()
    assert mean.isnan().all()
    assert (largest == -torch.inf).all()
    assert not place.any()
    assert (lse == -torch.inf).all()
    assert not over.any()


@pytest.mark.parametrize("width", [1, 3, 100])
def test_a_window(rng: np.random.Generator, width: int) -> None:
    x = rng.standard_normal((6, 33)).astype(np.float32)
    last = np.array([0, 5, 32, 40, 17, 2])
    y = window_softmax(torch.tensor(x), torch.tensor(last), width=width)
    column = np.arange(33)
    is_visible = (column <= last[:, None]) & (column > last[:, None] - width)
    power = np.where(is_visible, np.exp(x.astype(np.float64)), 0.0)
    with np.errstate(invalid="ignore"):
        expected = np.where(is_visible, power / power.sum(-1, keepdims=True), 0.0)
    np.testing.assert_allclose(y.numpy(), expected, rtol=2e-6)
    assert not y.numpy()[~is_visible].any()
    np.testing.assert_array_equal(window_softmax(jnp.asarray(x), last, width=width), y)


@pytest.mark.parametrize("last", [0, 3, 11])
def test_gradients_of_hidden_elements_are_zero(rng: np.random.Generator, last: int) -> None:
    numbers = hidden_behind(rng.standard_normal((4, 12)), last).astype(np.float32)
    weight, g = rng.standard_normal(12, np.float32), rng.standard_normal((4, 12), np.float32)
    g[:, last + 1 :] = np.nan
    lasts = np.full(4, last)
    x, w = (torch.tensor(each, requires_grad=True) for each in (numbers, weight))
    (norm(x, torch.tensor(lasts), w)).backward(torch.tensor(g))
    seen, of_seen = (
        torch.tensor(each[..., : last + 1], requires_grad=True) for each in (numbers, weight)
    )
    norm_of_all(seen, of_seen).backward(torch.tensor(g[:, : last + 1]))
    assert torch.equal(x.grad[:, : last + 1], seen.grad)
    assert torch.equal(w.grad[: last + 1], of_seen.grad)
    assert not x.grad[:, last + 1 :].any()
    assert not w.grad[last + 1 :].any()
    _, pull = jax.vjp(lambda x, w: norm(x, lasts, w), jnp.asarray(numbers), jnp.asarray(weight))
    for mine, other in zip((x.grad, w.grad), pull(jnp.asarray(g)), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_second_derivatives(rng: np.random.Generator) -> None:
    x = torch.tensor(rng.standard_normal((3, 7)), requires_grad=True)
    w, last = torch.tensor(rng.standard_normal(7), requires_grad=True), torch.tensor([2, 6, 0])
    assert torch.autograd.gradcheck(lambda x, w: norm(x, last, w), (x, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: norm(x, last, w), (x, w))


def test_what_two_values_share_is_visible() -> None:
    @bridge.op
    def shared(x: bridge.Full, y: bridge.Full) -> Any:
        product = bl.visible(x, first=2) * bl.visible(y, last=4)
        return product, bl.sum(bl.where(product > 0, 1.0, 0.0)), bl.visible(product, last=3)

    x = torch.arange(1.0, 8.0).expand(2, 7)
    product, count, narrower = shared(x, x)
    assert product[0].tolist() == [0, 0, 9, 16, 25, 0, 0]
    assert count.tolist() == [3, 3]
    assert narrower[0].tolist() == [0, 0, 9, 16, 0, 0, 0]


def test_halves_and_residuals() -> None:
    @bridge.op(keep=("h",))
    def packed(x: bridge.Halves, last: bridge.PerRow[int]) -> Any:
        first, second = x
        h = bl.visible(first, last=last)
        return bl.halves(h * second, second), bl.sum(h)

    x = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    last = torch.tensor([1, 4, -1])
    assert torch.autograd.gradcheck(lambda x: packed(x, last), x)
    both, _ = packed(x, last)
    assert not both[0, 2:5].any()
    assert torch.equal(both[:, 5:], x[:, 5:])


def test_every_promise(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 40)).astype(np.float32)
    last, weight = np.array([3, 5, 39, 50, 0]), rng.standard_normal(40).astype(np.float32)
    bridge.check(norm, x, last, weight, quiet=True)


def test_wrong_sides() -> None:
    def declare(side: Any, **others: Any) -> None:
        @bridge.op
        def wrong(x: bridge.Full, y: bridge.PerRow) -> Any:
            return bl.visible(x, **{side: {"x": x, "y": y}[others["of"]]} if others else {})

        wrong(torch.ones(2, 3), torch.ones(2))

    with pytest.raises(bl.DeclarationError, match="neither first nor last"):
        declare("last")
    with pytest.raises(bl.DeclarationError, match=r"first is .*, expected an integer"):
        declare("first", of="y")
    with pytest.raises(bl.DeclarationError, match="last differs from column to column"):
        declare("last", of="x")
