"""Ops of segments: a segment has the bits of the same row alone, in value and gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.declared.segments import (
    FLOATING,
    LENGTHS,
    PAIRS,
    ends_of,
    operands_of,
    parts_of,
    rotate,
    segment_softmax,
)

ROWS = {"a row": (), "three rows": (3,), "2 by 2": (2, 2)}


def _bits(x: Any) -> Any:
    array = x.detach().float().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    return np.ascontiguousarray(array, np.float32).view(np.int32)


def _same(x: Any, y: Any) -> bool:
    """True for the same bits; any NaN is like another."""
    x, y = (np.where(np.isnan(a.view(np.float32)), -1, a) for a in (_bits(x), _bits(y)))
    return x.shape == y.shape and np.array_equal(x, y)


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _special(operands: Any, kinds: str, seed: int) -> None:
    """Writes zeros of both signs, NaN and infinities into some places."""
    rng = np.random.default_rng(seed)
    for kind, operand in zip(kinds, operands, strict=True):
        if kind in FLOATING and operand.size:
            flat = operand.reshape(-1)
            places = rng.integers(0, flat.size, max(flat.size // 8, 1))
            flat[places] = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42], len(places))


def _with_gradient(op: Any, operands: Any, kinds: str, cotangents: Any = None) -> Any:
    """Returns the results of an op on tensors, and the gradients of the floating ones."""
    wanted = [o.requires_grad_() for k, o in zip(kinds, operands, strict=False) if k in FLOATING]
    results = _tuple(op(*operands))
    given = cotangents(results)
    moved = [(r, g) for r, g in zip(results, given, strict=True) if r.requires_grad]
    moving, given = [r for r, _ in moved], [g for _, g in moved]
    return results, torch.autograd.grad(moving, wanted, given, allow_unused=True)


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "special"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_segment_has_the_bits_of_a_row_alone(
    name: str, lengths: Any, rows: Any, dtype: Any, special: bool
) -> None:
    op, alone, kinds = PAIRS[name]
    operands = operands_of(kinds, lengths, rows)
    if special:
        _special(operands, kinds, 1)
    tensors = [
        torch.tensor(o).to(dtype) if k in FLOATING else torch.tensor(o)
        for k, o in zip(kinds, operands, strict=True)
    ]
    ends = torch.tensor(ends_of(lengths))
    rng = np.random.default_rng(2)
    given: list[Any] = []

    def drawn(results: Any) -> Any:
        given.extend(torch.tensor(rng.normal(size=r.shape)).to(r.dtype) for r in results)
        return given

    results, gradients = _with_gradient(op, [*tensors, ends], kinds, drawn)
    total = sum(lengths)
    fulls = [r.shape[-1:] == (total,) and r.dim() == tensors[0].dim() for r in results]
    if name in ("loss", "statistics"):
        fulls = [place == len(results) - 1 for place in range(len(results))]
    detached = [t.detach() for t in tensors]
    for which, part in enumerate(parts_of(kinds, detached, lengths)):
        start, stop = ends[which], ends[which + 1]
        own = [each.clone() for each in part]

        def cut(x: Any, is_full: bool, where: Any = (which, start, stop)) -> Any:
            return x[..., where[1] : where[2]] if is_full else x[..., where[0]]

        cotangents = [cut(g, full) for g, full in zip(given, fulls, strict=True)]
        found, pulled = _with_gradient(alone, own, kinds, lambda _, c=cotangents: c)
        for result, full, single in zip(results, fulls, found, strict=True):
            assert _same(cut(result, full), single)
        floating = [k for k in kinds if k in FLOATING]
        for kind, gradient, single in zip(floating, gradients, pulled, strict=True):
            if kind not in "RT":  # whose gradients are sums over the rows
                assert _same(cut(gradient, kind == "F"), single)


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "special"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", PAIRS)
def test_both_frameworks_and_numpy_have_the_same_bits(
    name: str, lengths: Any, rows: Any, special: bool
) -> None:
    op, _, kinds = PAIRS[name]
    operands = operands_of(kinds, lengths, rows)
    if special:
        _special(operands, kinds, 1)
    ends = ends_of(lengths)
    tensors = [torch.tensor(o) for o in operands]
    rng = np.random.default_rng(2)
    given: list[Any] = []

    def drawn(results: Any) -> Any:
        given.extend(rng.normal(size=r.shape).astype(np.float32) for r in results)
        return [torch.tensor(g) for g in given]

    results, gradients = _with_gradient(op, [*tensors, torch.tensor(ends)], kinds, drawn)
    places = tuple(p for p, k in enumerate(kinds) if k in FLOATING)
    arrays = [jnp.asarray(o) for o in operands]

    def run(ends: Any, longest: Any, *floating: Any) -> Any:
        own = list(arrays)
        for place, value in zip(places, floating, strict=True):
            own[place] = value
        results = _tuple(op(*own, ends, max_seqlen=longest))
        return tuple(r.astype(jnp.float32) for r in results)

    floating = [arrays[p] for p in places]
    most = max(lengths, default=0)
    for longest, compile_it in ((None, False), (most + 7, True)):
        if compile_it:
            pull = jax.jit(
                lambda ends, given, *f, longest=longest: (lambda out: (out[0], out[1](given)))(
                    jax.vjp(lambda *f: run(ends, longest, *f), *f)
                )
            )
            found, pulled = pull(jnp.asarray(ends), tuple(given), *floating)
        else:
            found, back = jax.vjp(lambda *f, n=longest: run(ends, n, *f), *floating)
            pulled = back(tuple(map(jnp.asarray, given)))
        assert all(map(_same, found, results))
        assert all(
            _same(a, np.zeros(a.shape) if b is None else b)
            for a, b in zip(pulled, gradients, strict=True)
        )
    assert all(map(_same, _tuple(op(*operands, ends)), results))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", PAIRS)
def test_results_are_near_the_reference(name: str, lengths: Any) -> None:
    op, alone, kinds = PAIRS[name]
    operands = operands_of(kinds, lengths, (2,))
    found = _tuple(op(*operands, ends_of(lengths)))
    expected = _tuple(op.reference(*operands, ends_of(lengths)))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    parts = [_tuple(alone.reference(*part)) for part in parts_of(kinds, operands, lengths)]
    for place, b in enumerate(expected):
        own = [np.atleast_1d(part[place].T).T for part in parts]
        if parts:
            is_full = parts[0][place].ndim == 2
            joined = np.concatenate(own, -1) if is_full else np.stack([p[place] for p in parts], -1)
            np.testing.assert_array_equal(joined, b)


def test_a_rotation_by_position_is_the_one_of_each_sequence() -> None:
    rng, lengths = np.random.default_rng(0), (5, 0, 1, 34)
    x = rng.normal(size=(40, 3, 16)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 50, 8)).astype(np.float32)
    ends = ends_of(lengths)
    found = rotate(x, cos, sin, ends)
    position = np.concatenate([np.arange(n) for n in lengths])
    c, s = (np.float64(table[position])[:, None] for table in (cos, sin))
    first, second = np.float64(x[..., :8]), np.float64(x[..., 8:])
    expected = np.concatenate([first * c - second * s, second * c + first * s], -1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rotate.reference(x, cos, sin, ends), expected)
    tensors = [torch.tensor(each, requires_grad=True) for each in (x, cos, sin)]
    g = rng.normal(size=x.shape).astype(np.float32)
    y = rotate(*tensors, torch.tensor(ends))
    y.backward(torch.tensor(g))
    assert _same(y, found)
    of_cos = np.zeros(cos.shape)
    terms = (np.float64(g[..., :8]) * first + np.float64(g[..., 8:]) * second).sum(1)
    np.add.at(of_cos, position, terms)
    np.testing.assert_allclose(tensors[1].grad, of_cos, rtol=1e-5, atol=1e-5)

    def run(ends: Any, *arrays: Any) -> Any:
        return (rotate(*arrays, ends) * g).sum()

    for each in (run, jax.jit(run)):
        pulled = jax.grad(each, (1, 2, 3))(jnp.asarray(ends), *map(jnp.asarray, (x, cos, sin)))
        assert all(_same(a, b.grad) for a, b in zip(pulled, tensors, strict=True))


def test_one_row_of_each_segment_without_other_rows() -> None:
    y = segment_softmax(np.zeros(4, np.float32), np.array([0, 1, 4]))
    np.testing.assert_allclose(y, [1.0, 1 / 3, 1 / 3, 1 / 3], rtol=2e-7)
