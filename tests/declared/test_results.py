"""Shapes and dtypes of results that are like no operand, which the native module makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bridge
import bridge.torch
from bridge import lang as bl
from bridge.torch._adapter.kernels import Kernel


@bridge.op
def of_a_full(x: bridge.Full, w: bridge.Row) -> Any:
    return bl.sum(x), bl.halves(x, x * w), bl.column_sum(x), x * w


@bridge.op
def of_halves(x: bridge.Halves) -> Any:
    first, second = x
    return first + second, bl.halves(second, first), bl.column_sum(first), bl.max(second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6), (0, 6)], ids=str)
def test_made_as_documented(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: Any) -> None:
    x, w = torch.randn(shape, dtype=dtype), torch.randn(shape[-1])
    *rows, columns = shape
    wide, half = torch.promote_types(dtype, torch.float32), columns // 2
    several: Any = (
        (of_a_full, (x, w), [rows, [*rows, 2 * columns], [columns], shape], [wide] * 4),
        (of_halves, (x,), [[*rows, half], shape, [half], rows], [dtype, dtype, wide, wide]),
    )
    for op, (x, *others), shapes, dtypes in several:
        # Of columns that lie apart the results are made in Python.
        expected = op(torch.stack([x, x], -1)[..., 0], *others)
        with monkeypatch.context() as patched:
            patched.setattr(Kernel, "empty_results", None)
            found = op(x, *others)
        for one, other, own, kind in zip(found, expected, shapes, dtypes, strict=True):
            assert list(one.shape) == list(other.shape) == list(own)
            assert one.dtype == other.dtype == kind
            assert one.is_contiguous()
            assert torch.equal(one, other)


def test_sums_of_a_batch() -> None:
    x, w = torch.randn(4, 3, 6), torch.randn(6)
    batched = torch.func.vmap(of_a_full, (0, None))
    for _ in range(2):
        one_by_one = zip(*[of_a_full(y, w) for y in x], strict=True)
        for whole, parts in zip(batched(x, w), one_by_one, strict=True):
            assert torch.equal(whole, torch.stack(parts))


def test_static_arguments_that_are_equal_and_not_the_same() -> None:
    @bridge.op
    def times(x: bridge.Full, *, factor: float = 1.0):
        return x * factor

    x, eps = torch.ones(2, 3), float("0.5")
    for _ in range(3):
        assert not times.torch(x, factor=0.0).signbit().any()
        assert times.torch(x, factor=-0.0).signbit().all()
        assert torch.equal(times.torch(x, factor=eps), x / 2)
        assert torch.equal(times.torch(x, factor=float("0.5")), x / 2)
        assert bridge.torch.rms_norm(x, eps=1.0).isfinite().all()
        with pytest.raises(TypeError, match="rms_norm: eps has type bool"):
            bridge.torch.rms_norm(x, eps=True)
        with pytest.raises(ValueError, match=r"offset is 1\.0 and weight is None"):
            bridge.torch.rms_norm(x, offset=eps + 0.5)
        assert bridge.torch.rms_norm(x, x[0], offset=eps).isfinite().all()
        with pytest.raises(ValueError, match=r"offset is 0\.5 and weight is None"):
            bridge.torch.rms_norm(x, offset=eps)
