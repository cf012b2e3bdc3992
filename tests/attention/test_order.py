"""A query's bits depend on the keys that it sees, and a key's gradient on the queries in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge.catalogue import attention_chunks
from bridge.catalogue.attention_chunks import chunks_of
from tests.attention.reference import (
    DTYPES,
    drawn,
    everything_jax,
    everything_torch,
    run_jax,
    run_torch,
    same,
    tensors_of,
)

# Options, and sizes for `drawn`.
DECODED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {}),
    "grouped": ({}, {"heads": 6, "key_heads": 2}),
    "window": ({"window": 17}, {}),
    "sink": ({"window": 300}, {"has_sink": True}),
    "softcap": ({"softcap": 1.5}, {"has_sink": True, "heads": 3, "key_heads": 1}),
}


def part(tensors: dict[str, torch.Tensor], queries: slice, keys: slice) -> dict[str, torch.Tensor]:
    """Returns the tensors of some queries and keys."""
    places = {"q": queries, "g": queries, "k": keys, "v": keys}
    return {n: x[..., places[n], :] if n in places else x for n, x in tensors.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", DECODED)
@pytest.mark.parametrize("length", [9, 1300])
def test_decoding_is_the_whole(
    length: int, form: str, dtype: str, rng: np.random.Generator
) -> None:
    """A query alone, or with its neighbours, has its bits of the whole sequence."""
    options, sizes = DECODED[form]
    options = {"causal": True, **options}
    sizes = {"batch": (1,), "queries": length, "keys": length, **sizes}
    tensors = tensors_of(drawn(rng, **sizes), dtype)
    whole = run_torch(tensors, **options)
    places = range(length) if length < 10 else [0, 1, 255, 256, 300, 1023, 1024, 1090, length - 1]
    for i in places:
        alone = part(tensors, slice(i, i + 1), slice(0, i + 1))
        same(run_torch(alone, **options), whole[..., i : i + 1, :])
        first = max(i - 2, 0)
        few = part(tensors, slice(first, i + 1), slice(0, i + 1))
        same(run_torch(few, **options), whole[..., first : i + 1, :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", DECODED)
@pytest.mark.parametrize("length", [9, 700])
def test_hidden_places_of_a_cache(
    length: int, form: str, dtype: str, rng: np.random.Generator
) -> None:
    """Places of a cache that the mask hides may hold NaN and infinities, and no bit changes."""
    options, sizes = DECODED[form]
    sizes = {"batch": (2,), "queries": length, "keys": length, **sizes}
    tensors = tensors_of(drawn(rng, **sizes), dtype)
    whole = run_torch(tensors, causal=True, **options)
    window = options.get("window", length)
    options = {name: x for name, x in options.items() if name != "window"}
    for i in {0, 3, length // 2, length - 1}:
        own = part(tensors, slice(i, i + 1), slice(None))
        hidden = (torch.arange(length) > i) | (torch.arange(length) <= i - window)
        for name, garbage in (("k", float("nan")), ("v", float("inf"))):
            own[name] = own[name].clone()
            own[name][..., hidden, :] = garbage
        ours = everything_torch(own, mask=hidden, **options)
        same(ours["y"], whole[..., i : i + 1, :])
        for name, value in ours.items():
            assert value.isfinite().all()
            if name in ("k", "v"):
                assert not value[..., hidden, :].any()
        if dtype != "float64":
            arrays = {n: bridge.to_jax(x) for n, x in own.items()}
            same(ours["y"], run_jax(arrays, mask=hidden.numpy(), **options))


# Options and sizes, with more than two chunks of 256 rows.
CHUNKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"queries": 1100, "keys": 40}),
    "causal": ({"causal": True}, {"queries": 1100, "keys": 1100}),
    "grouped": ({"causal": True}, {"heads": 4, "key_heads": 1, "queries": 300, "keys": 320}),
    "far more keys": ({"causal": True, "window": 700}, {"queries": 900, "keys": 5000}),
    "window": ({"causal": True, "window": 90}, {"queries": 2400, "keys": 2400, "has_sink": True}),
    "more queries than keys": (
        {"causal": True, "softcap": 1.5},
        {"queries": 1400, "keys": 600, "has_sink": True},
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", CHUNKED)
def test_chunk_sizes(form: str, dtype: str, rng: np.random.Generator) -> None:
    """Values and gradients have the same bits in chunks of 256·2ⁿ rows, in both frameworks."""
    options, sizes = CHUNKED[form]
    sizes = {"batch": (), "heads": 1, "key_heads": 1, "d": 5, "d_v": 3, **sizes}
    tensors = tensors_of(drawn(rng, **sizes), dtype)
    mask = torch.tensor(rng.random((sizes["queries"], sizes["keys"])) < 0.2)
    whole = everything_torch(tensors, 8192, mask=mask, **options)
    for rows in (256, 512, 1024):
        found = everything_torch(tensors, rows, mask=mask, **options)
        for name, value in whole.items():
            same(found[name], value)
    for rows in (256, 8192):
        found = everything_jax(tensors, rows, mask=mask, **options)
        for name, value in whole.items():
            same(value, found[name])


def test_sums_over_queries_have_the_order_of_one_product(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """dv is pᵀ g over all queries of all heads that share the key head, leaf by leaf."""
    monkeypatch.setattr(attention_chunks, "_BUDGET", 1)  # chunks of the fewest rows
    sizes = {"batch": (), "heads": 3, "key_heads": 1, "queries": 300, "keys": 6, "d": 4, "d_v": 6}
    tensors = tensors_of(drawn(rng, **sizes), "float32")
    # Numbers of few bits, so that a fused multiply-add is exact in a long double.
    tensors["g"] = torch.tensor(rng.integers(-99, 99, (3, 300, 6)) / 64, dtype=torch.float32)
    found = everything_torch(tensors)
    for name, value in everything_torch(tensors, 1024).items():
        same(value, found[name])
    p = run_torch({**tensors, "v": torch.eye(6)[None]}).reshape(900, 6).numpy()
    g = tensors["g"].reshape(900, 6).numpy()

    def leaf(start: int) -> Any:
        total = np.full((6, 6), -0.0, np.float32)
        for r in range(start, min(start + 256, 900)):
            term = p[r, :, None].astype(np.longdouble) * g[r, None]
            total = (term + total).astype(np.float32)
        return total

    leaves = [leaf(start) for start in range(0, 900, 256)]
    expected = (leaves[0] + leaves[1]) + (leaves[2] + leaves[3])
    assert np.array_equal(found["v"][0].numpy(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_are_rounded_to_the_dtype_of_q(dtype: str, rng: np.random.Generator) -> None:
    """y is the product of v with the probabilities in 16 bits, added in float32."""
    sizes = {"batch": (), "heads": 1, "key_heads": 1, "queries": 40, "keys": 200, "d_v": 200}
    tensors = tensors_of(drawn(rng, **sizes), dtype)
    y = run_torch(tensors)
    p = run_torch({**tensors, "v": torch.eye(200, dtype=y.dtype)[None]})
    same(y, bridge.torch.matmul(p, tensors["v"]))
    wide = run_torch({name: x.float() for name, x in tensors.items()})
    assert not torch.equal(y, wide.to(y.dtype))


def test_rows_alone_and_in_a_batch(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng, batch=(3, 2), queries=40, keys=70), "float32")
    options = {"causal": True, "window": 33}
    whole = everything_torch(tensors, **options)
    for i in range(3):
        own = {name: x[i : i + 1, 1:] for name, x in tensors.items()}
        for name, value in everything_torch(own, **options).items():
            same(value, whole[name][i : i + 1, 1:])


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves room for the scores of one head at a time."""
    monkeypatch.setattr(attention_chunks, "_BUDGET", 40 * 70 * 4 + 1)


@pytest.mark.parametrize("has_mask", [False, True])
def test_parts_of_batches(
    has_mask: bool, small_parts: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Heads that are computed one after the other have the bits of all at once."""
    case = drawn(rng, batch=(3,), heads=4, key_heads=4, queries=40, keys=70, has_sink=True)
    tensors = tensors_of(case, "float32")
    mask = torch.tensor(rng.random((3, 1, 40, 70)) < 0.3) if has_mask else None
    ours, theirs = (run(tensors, mask=mask) for run in (everything_torch, everything_jax))
    monkeypatch.setattr(attention_chunks, "_BUDGET", 2**40)
    for name, value in everything_torch(tensors, mask=mask).items():
        same(value, ours[name])
        same(value, theirs[name])


def test_threads(rng: np.random.Generator) -> None:
    tensors = tensors_of(drawn(rng, batch=(2,), queries=600, keys=600, d=16), "float32")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(everything_torch(tensors, causal=True))
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name])
        assert torch.equal(value, found[2][name])


@pytest.mark.parametrize("is_unrolled", [False, True])
@pytest.mark.parametrize("window", [None, 1, 40, 3000])
@pytest.mark.parametrize("queries", [1, 100, 256, 700, 5000])
@pytest.mark.parametrize("keys", [0, 1, 257, 700, 9000])
@pytest.mark.parametrize("group", [1, 3])
def test_chunks_hold_all_rows_and_the_keys_that_they_see(
    group: int, keys: int, queries: int, window: int | None, is_unrolled: bool
) -> None:
    rows, start = group * queries, 0
    for each in chunks_of(rows, queries, keys, 256, True, window, is_unrolled):
        assert each.start == start
        assert each.count & (each.count - 1) == 0
        assert start // 256 % each.count == 0  # a subtree of the sum over chunks
        start += each.rows * each.count
        assert each.rows == 256 or start == rows
        last = np.arange(each.start, start) % queries + keys - queries
        seen = last[last >= 0]
        if seen.size:
            first = np.maximum(0 if window is None else seen - window + 1, 0)
            assert each.first <= first.min()
            assert each.end == seen.max() + 1
            unit = 1024
            while each.first % (2 * unit) == 0 and unit < 2**20:
                unit *= 2
            assert each.first == 0 or each.end - each.first <= unit
            if not each.has_first:
                assert each.first == first.max() or first.max() <= each.first
        else:
            assert each.end == 0
        if not each.has_last:
            assert (last >= each.end - 1).all()
    assert start == rows
