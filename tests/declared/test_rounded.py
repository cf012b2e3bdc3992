"""`bl.rounded` and `bl.like`: values as rounded to an array's dtype."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from tests.frameworks import numpy_dtype


@bridge.op
def rounded_sum(x: bridge.Full, y: bridge.Full, *, dtype: str = "bfloat16", like: int = 0):
    return bl.like(bl.rounded(x + y, dtype), (x, y)[like]), bl.rounded(x, dtype)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("arithmetic", ["float32", "float64"])
def test_rounded(dtype: str, arithmetic: str) -> None:
    """Rounds to nearest even: denormals, ties, numbers beyond the largest, infinities, NaN."""
    narrow, wide = numpy_dtype(dtype), np.dtype(arithmetic)
    rng = np.random.default_rng(0)
    any_float = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    any_float = np.where(np.isnan(any_float), np.float32(np.nan), any_float).astype(wide)
    some = np.concatenate(
        [
            any_float,
            (rng.normal(size=4000) * 2.0 ** rng.integers(-30, 17, 4000)).astype(wide),
            np.array(
                [0.0, -0.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519.9, 65520, 3.4e38, np.inf], wide
            ),
        ]
    )[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = some.astype(narrow).astype(wide) if narrow.itemsize < wide.itemsize else some
    for found in (
        rounded_sum(torch.tensor(some), torch.tensor(some), dtype=dtype)[1].numpy(),
        rounded_sum.reference(some, some, dtype=dtype)[1],
    ):
        np.testing.assert_array_equal(found, expected)
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


def test_tangents_and_cotangents_are_rounded_too() -> None:
    x, y = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    t = torch.randn(3, 5)
    total, _ = rounded_sum(x, y)
    (back,) = torch.autograd.grad(total, x, t)
    _, (forward, _) = torch.func.jvp(rounded_sum.torch, (x, y), (t, torch.zeros_like(t)))
    assert torch.equal(back, t.bfloat16().float())
    assert torch.equal(forward, back)


def test_a_result_has_the_dtype_of_the_operand_that_it_is_like() -> None:
    x, y = torch.ones(2, 3, dtype=torch.bfloat16), torch.ones(2, 3)
    for place, dtype in enumerate((torch.bfloat16, torch.float32)):
        first, second = rounded_sum(x, y, like=place)
        assert (first.dtype, second.dtype) == (dtype, torch.float32)
        first, second = rounded_sum.jax(
            *map(jnp.asarray, (x.float().numpy(), y.numpy())), like=place
        )
        assert (first.dtype, second.dtype) == (jnp.float32, jnp.float32)


def test_what_rounded_and_like_refuse() -> None:
    def unknown(x: bridge.Full):
        return bl.rounded(x, "float8")

    def computed(x: bridge.Full):
        return bl.like(x, x + 1.0)

    def used(x: bridge.Full):
        return bl.like(x, x) + 1.0

    for declaration, words in (
        (unknown, "rounded has no dtype 'float8'"),
        (computed, "the second argument of like is no floating operand"),
        (used, "a result of bl.like or bl.stored can only be returned"),
    ):
        with pytest.raises(bl.DeclarationError, match=words):
            bridge.op(declaration)
