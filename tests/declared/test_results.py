"""Shapes and dtypes of results that differ from all operands; the native module makes them."""

from __future__ import annotations

import functools
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
from bridge.torch._adapter.kernels import Kernel
from tests.frameworks import FRAMEWORKS


@bridge.op
def of_a_full(x: bridge.Full, w: bridge.Row) -> Any:
    return bl.sum(x), bl.halves(x, x * w), bl.column_sum(x), x * w


@bridge.op
def of_halves(x: bridge.Halves) -> Any:
    first, second = x
    return first + second, bl.halves(second, first), bl.column_sum(first), bl.max(second)


@bridge.op
def by_kind(x: bridge.Full, *, c: Any = 1):
    c = c[0] if isinstance(c, tuple) else c
    return x * float(c) * (2.0 if isinstance(c, bool) else 3.0 if isinstance(c, int) else 5.0)


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: (c,)], ids=["bare", "tuple"])
def test_equal_static_arguments_of_other_types(own: Any, wrap: Any) -> None:
    x = np.ones((1, 3), np.float32)
    for c, expected in ((1, 3.0), (True, 2.0), (1.0, 5.0), (np.float32(1), 5.0)):
        np.testing.assert_array_equal(own.call(lambda x, c=c: by_kind(x, c=wrap(c)), x), expected)
    for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
        found = own.call(lambda x, c=zero: by_kind(x, c=wrap(c)), x)
        assert (np.signbit(found) == np.signbit(zero)).all()


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
        # For columns that are not contiguous, Python makes the results.
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


def test_as_many_results_as_the_function_returns() -> None:
    """The number does not depend on the operands and static parameters of the first trace."""

    @bridge.op
    def scaled(x: bridge.Full, *, eps: float):  # type: ignore[no-untyped-def]
        r = bl.rsqrt(bl.mean(x * x) + eps)
        return x * r, r

    @bridge.op
    def centered(x: bridge.Full, *, stats: bool = False):  # type: ignore[no-untyped-def]
        m = bl.mean(x)
        return (x - m, m) if stats else x - m

    @bridge.op
    def added(x: bridge.Full, residual: bridge.Full | None = None):  # type: ignore[no-untyped-def]
        return 2.0 * x if residual is None else (x + residual, residual)

    @bridge.op
    def alone(x: bridge.Full, *, by: float):  # type: ignore[no-untyped-def]
        return (x * by,)

    @bridge.op
    def sometimes(x: bridge.Full, y: bridge.Full | None = None):  # type: ignore[no-untyped-def]
        return x * 2.0 if y is None else (x * y,)

    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for op, operands, static in (
        (alone, (x,), {"by": 2.0}),
        (sometimes, (x,), {}),
        (sometimes, (x, x), {}),
        (sometimes, (x,), {}),
        (scaled, (x,), {"eps": 1e-6}),
        (centered, (x,), {"stats": True}),
        (centered, (x,), {}),
        (added, (x,), {}),
        (added, (x, x), {}),
    ):
        expected = op.reference(*operands, **static)
        tensors, arrays = [torch.tensor(a) for a in operands], [jnp.asarray(a) for a in operands]
        of_torch = functools.partial(op.torch, **static)
        of_jax = functools.partial(op.jax, **static)
        for call, given in (
            (of_torch, tensors),
            (of_jax, arrays),
            (jax.jit(of_jax), arrays),
            (torch.compile(of_torch, backend="eager"), tensors),
            (torch.func.vmap(of_torch), tensors),
        ):
            for _ in range(2):  # as a new kind of call, and as a known one
                found = call(*given)
                assert isinstance(found, tuple) is isinstance(expected, tuple)
                several = (found, expected) if isinstance(found, tuple) else ([found], [expected])
                for a, b in zip(*several, strict=True):
                    np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)
    out = torch.empty(3, 4)
    for _ in range(2):
        with pytest.raises(TypeError, match="out has type Tensor, expected a tuple of tensors"):
            centered.torch(torch.tensor(x), stats=True, out=out)
        with pytest.raises(TypeError, match="out has type Tensor, expected a tuple of tensors"):
            alone.torch(torch.tensor(x), by=2.0, out=out)
        with pytest.raises(TypeError, match="out has type tuple, expected a tensor"):
            centered.torch(torch.tensor(x), out=(out,))
        assert centered.torch(torch.tensor(x), out=out) is out
        assert added.torch(torch.tensor(x), out=out) is out


def test_names_that_the_library_might_use() -> None:
    @bridge.op
    def _run(self: bridge.Full, _find: bridge.Row):  # type: ignore[no-untyped-def]
        return self * _find

    @bridge.op
    def required(required: bridge.Full, function: bridge.Row, *, axis: float, f: float = 1.0):  # type: ignore[no-untyped-def]
        return required * function * axis * f

    x, row = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(_run(self=x, _find=row), x * row)
    assert torch.equal(required(required=x, function=row, axis=2.0), x * row * 2.0)
    bridge.check(required, x, row, axis=2.0, f=1.0, quiet=True)


def test_the_reference_refuses_the_shapes_that_the_op_refuses() -> None:
    x, w = np.ones((2, 6), np.float32), np.ones(5, np.float32)
    for op, operands in ((of_a_full, (x, w)), (of_halves, (x[:, :5],)), (of_halves, (x[0, 0],))):
        messages = []
        for function in (op.reference, op.torch, op.jax):
            arrays = [torch.tensor(a) if function is op.torch else a for a in operands]
            with pytest.raises(ValueError, match="expected") as caught:
                function(*arrays)
            messages.append(str(caught.value))
        assert messages[0] == messages[1] == messages[2]


def test_zeros_of_what_a_result_does_not_follow_from() -> None:
    """They are made once, by the op itself, and never added to gradients of other operands."""

    @bridge.op
    def apart(x: bridge.Full, y: bridge.Full) -> Any:
        return bl.exp(x), bl.exp(y)

    x, y = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    dx, dy = torch.autograd.grad(apart.torch(x, y)[1].sum(), (x, y))
    assert not dx.any()
    torch.testing.assert_close(dy, torch.exp(y.detach()))
    alone = jax.grad(lambda x: apart.jax(x, jnp.asarray(y.detach().numpy()))[1].sum())
    assert not alone(jnp.ones((2, 3))).any()
    assert "vjp" not in str(jax.make_jaxpr(alone)(jnp.ones((2, 3))))


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)])
def test_the_reference_of_rows_without_columns(shape: tuple[int, int]) -> None:
    """Their largest number is -inf, and no power is left out."""

    @bridge.op
    def parts(x: bridge.Full) -> Any:
        return bl.logsumexp_parts(x)

    expected = parts(torch.zeros(shape))
    for found, value in zip(parts.reference(np.zeros(shape)), expected, strict=True):
        np.testing.assert_array_equal(found, value.numpy())


def test_integers_that_jax_would_narrow_to_others_are_refused() -> None:
    """2**32 would become the number of the first column."""

    def at(x: bridge.Full, label: bridge.PerRow[int]) -> Any:
        return bl.sum(bl.where(bl.column() == label, x, 0.0))

    op, x = bridge.op(at), np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    for dtype, wide in (("int64", 2**32), ("int64", -(2**32)), ("uint64", 2**63)):
        labels = np.array([2, wide % 2**64], np.uint64).astype(dtype)
        words = rf"^at: label has {wide}, expected integers from .* jax_enable_x64 is off"
        with pytest.raises(ValueError, match=words):
            op(jnp.asarray(x), labels)
        with jax.enable_x64(True):
            np.testing.assert_array_equal(op(jnp.asarray(x), labels), [3, 0])
        np.testing.assert_array_equal(op(torch.tensor(x), torch.tensor(labels)), [3, 0])
    np.testing.assert_array_equal(op(jnp.asarray(x), np.array([2, -1])), [3, 0])


@bridge.op
def by_sign(x: bridge.Full, label: bridge.PerRow[int]) -> Any:
    sign = bl.where(label < 0, -1.0, bl.where(label > 2**40, 1.0, 0.0))
    return sign, bl.where(bl.column() == label, 0.0, x), x * 0.0 + label


@pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
def test_the_upper_half_of_uint64_is_the_largest_number_with_a_sign(own: Any) -> None:
    """It is no column number, and not negative."""
    labels = np.array([1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    x = np.arange(1, 17, dtype=np.float64).reshape(4, 4)
    with jax.enable_x64(True):
        found = [own.call(lambda *of, i=i: by_sign(*of)[i], x, labels) for i in range(3)]
    cut = x.copy()
    cut[0, 1] = 0
    numbers = np.minimum(labels, 2**63 - 1).astype(np.float64)[:, None] + np.zeros((4, 4))
    expected = [0, 1, 1, 1], cut, numbers
    for value, other, reference in zip(found, expected, by_sign.reference(x, labels), strict=True):
        np.testing.assert_array_equal(value, other)
        np.testing.assert_array_equal(reference, other)
