"""The cases that the originals publish for themselves, applied to the drop-ins.

This file has the softmax kernels, and test_original_modules.py the rest. Shapes, dtypes and
tolerances are the originals'. Each case is also compared with float64, relative to the values
themselves (a tolerance of 1e-3 passes on zeros if rows have 2048 keys), with gradients of random
cotangents. The last tests plant faults and check that the comparison fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from bridge.torch import megatron
from tests.torch.attention import above_diagonal, check_softmax, generator, unfused

# The number of elements of a case in the default run; marked cases have full size.
_MOST = 1 << 19


def check_masked_case(
    apply: Any, batch: int, heads: int, queries: int, keys: int, forward: Any, backward: Any
) -> None:
    """Checks a random mask [batch, 1, queries, keys] and an all-true mask, in float16, scale 1."""
    random = generator(batch, heads, queries, keys)
    shape = (batch, heads, queries, keys)
    x = (torch.randn(shape, generator=random) * 2).half()
    g = torch.rand(shape, generator=random).half()
    mask = torch.rand(batch, 1, queries, keys, generator=random) < 0.5
    y, dx = check_softmax(lambda x: apply(x, mask, 1.0), x, mask, 1.0, g)

    x.requires_grad_()
    composed = unfused(x, mask, 1.0)
    torch.testing.assert_close(y, composed.detach(), **forward)
    torch.testing.assert_close(dx, grad(composed, x, g)[0], **backward)

    nothing = apply(x, torch.ones_like(mask), 1.0)
    assert not nothing.any()
    assert not grad(nothing, x, g)[0].any()


# Megatron-LM, megatron/legacy/fused_kernels/tests/test_fused_kernels.py: batch 2, 16 heads.
MEGATRON = [(q, k) for q in (128, 256, 1024, 2048, 4096) for k in (128, 256, 1024, 2048)]
MEGATRON_TOLERANCES = ({"atol": 1e-3, "rtol": 0.0}, {"atol": 1e-3, "rtol": 0.0})
# apex, tests/L0/run_transformer/test_fused_softmax.py: the generic kernel, batch 2, 16 heads.
APEX_KEYS = (1, 2, 3, 4, 5, 8, 10, 11, 13, 128, 256, 1200, 1234, 2048, 3123, 4096, 4128, 7234, 8192)
APEX = [(q, k) for q in (1, 2, 1234, 2322, 2348) for k in APEX_KEYS]
APEX_TOLERANCES = ({"atol": 1e-3, "rtol": 1e-3}, {"atol": 1.5e-1, "rtol": 5e-3})


def heads_within(elements: int, queries: int, keys: int) -> tuple[int, int]:
    """Returns batch and heads of a case: 2 and 16, or fewer to stay within `elements`."""
    heads = min(16, max(1, elements // (2 * queries * keys)))
    return (2 if 2 * queries * keys <= 2 * elements else 1), heads


@pytest.mark.parametrize(("queries", "keys"), MEGATRON)
def test_megatron_masked(queries: int, keys: int) -> None:
    batch, heads = heads_within(_MOST, queries, keys)
    apply = megatron.ScaledMaskedSoftmax.apply
    check_masked_case(apply, batch, heads, queries, keys, *MEGATRON_TOLERANCES)


@pytest.mark.parametrize(("queries", "keys"), [case for case in APEX if case[0] <= 2])
def test_apex_generic(queries: int, keys: int) -> None:
    apply = megatron.GenericScaledMaskedSoftmax.apply
    check_masked_case(apply, 2, 16, queries, keys, *APEX_TOLERANCES)


@pytest.mark.parametrize(("queries", "keys"), [(1234, 1), (1234, 1200), (2322, 13), (2348, 3123)])
def test_apex_generic_long(queries: int, keys: int) -> None:
    batch, heads = heads_within(_MOST, queries, keys)
    apply = megatron.GenericScaledMaskedSoftmax.apply
    check_masked_case(apply, batch, heads, queries, keys, *APEX_TOLERANCES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "keys"), [*MEGATRON, (1234, 3123), (2322, 4128), (2348, 7234), (2348, 8192)]
)
def test_full_size(queries: int, keys: int) -> None:
    """All heads run in one call; the comparison is head by head, to save memory."""
    shape = (2, 16, queries, keys)
    random = generator(*shape)
    x, g = torch.empty(shape, dtype=torch.float16), torch.empty(shape, dtype=torch.float16)
    for part in range(32):
        x.view(32, queries, keys)[part] = torch.randn(queries, keys, generator=random) * 2
        g.view(32, queries, keys)[part] = torch.rand(queries, keys, generator=random)
    mask = torch.rand(2, 1, queries, keys, generator=random) < 0.5
    y = megatron.ScaledMaskedSoftmax.apply(x.requires_grad_(), mask, 1.0)
    (dx,) = grad(y, x, g, retain_graph=True)
    for b in range(2):
        for head in range(16):

            def whole(_: Tensor, part: Any = (b, head)) -> Tensor:
                return _Given.apply(_, y.detach()[part], dx[part])

            check_softmax(whole, x.detach()[b, head], mask[b, 0], 1.0, g[b, head])
    nothing = megatron.ScaledMaskedSoftmax.apply(x, torch.ones_like(mask), 1.0)
    assert not nothing.any()
    assert not grad(nothing, x, g)[0].any()


class _Given(torch.autograd.Function):
    """A function with a given value and gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient, None, None


FAULTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "mask dropped": lambda x, mask, scale: megatron.ScaledSoftmax.apply(x, scale),
    "scale dropped": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(x, mask, 1.0),
    "first mask for every sample": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, mask[:1], scale
    ),
    "mask the other way round": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, ~mask, scale
    ),
    "zeros": lambda x, mask, scale: x * 0.0,
    "a row in a hundred off": lambda x, mask, scale: (
        megatron.ScaledMaskedSoftmax.apply(x, mask, scale)
        * (1.0 + 0.01 * (torch.arange(x.shape[-2]) % 100 == 7).to(x.dtype)[:, None])
    ),
    "scale rounded to the dtype": lambda x, mask, scale: megatron.ScaledMaskedSoftmax.apply(
        x, mask, float(torch.tensor(scale).to(x.dtype))
    ),
    "filled with -10000": lambda x, mask, scale: unfused(x, mask, scale),
    "no gradient": lambda x, mask, scale: (
        megatron.ScaledMaskedSoftmax.apply(x, mask, scale).detach() + x * 0.0
    ),
    "gradient without the scale": lambda x, mask, scale: _Given.apply(
        x,
        megatron.ScaledMaskedSoftmax.apply(x.detach(), mask, scale),
        _gradient(x, mask, scale) / scale,
    ),
}


def _gradient(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    x = x.detach().requires_grad_()
    return grad(megatron.ScaledMaskedSoftmax.apply(x, mask, scale), x, _faulty_inputs()[1])[0]


def _faulty_inputs() -> tuple[Tensor, Tensor, Tensor]:
    random = generator(15)
    x, g = (torch.randn(2, 2, 4, 128, 256, generator=random) * 2).half()
    return x, g, torch.rand(2, 1, 128, 256, generator=random) < 0.5


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_comparison_sees(fault: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    x, g, mask = _faulty_inputs()
    scale = 0.70710678
    good = megatron.ScaledMaskedSoftmax.apply
    check_softmax(lambda x: good(x, mask, scale), x, mask, scale, g)
    with pytest.raises(AssertionError, match="off by"):
        check_softmax(lambda x: fault(x, mask, scale), x, mask, scale, g)


def test_the_comparison_sees_a_dropped_causal_rule() -> None:
    x, g = torch.randn(2, 1, 2, 16, 16, generator=generator(16)).half()
    check_softmax(
        lambda x: megatron.ScaledUpperTriangMaskedSoftmax.apply(x, 1.0),
        x,
        above_diagonal(16, 16),
        1.0,
        g,
    )
    with pytest.raises(AssertionError, match="off by"):
        check_softmax(
            lambda x: megatron.ScaledSoftmax.apply(x, 1.0), x, above_diagonal(16, 16), 1.0, g
        )
