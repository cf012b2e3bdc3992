"""Draws of tokens: the definition, the filters, the distribution, and all transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import bridge.jax
import bridge.torch
from bridge import _native
from tests.choices.reference import drawn, token
from tests.frameworks import DTYPES, FRAMEWORKS
from tests.isas import ISAS

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)

SEED, OFFSET = 0x123456789ABCDEF, 77

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1e-4},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.7},
    {"top_p": 1e-9},
    {"min_p": 0.2},
    {"min_p": 1.0, "temperature": 3.0},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
]


def sample(own: Any, logits: Any, seed: Any = SEED, offset: Any = OFFSET, **filters: Any) -> Any:
    return np.asarray(own.ops.seeded_sample(own.array(logits), seed, offset, **filters))


@each
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("coarse", [False, True])
def test_definition(
    dtype: str, filters: Any, coarse: bool, own: Any, rng: np.random.Generator
) -> None:
    for rows, columns in ((3, 1), (4, 7), (5, 300)):
        logits = drawn(rng, (rows, columns), dtype, coarse)
        own_filters = filters | (
            {"top_k": min(filters["top_k"], columns)} if "top_k" in filters else {}
        )
        expected = [token(x, SEED, OFFSET + i, **own_filters) for i, x in enumerate(logits)]
        assert sample(own, logits, **own_filters).tolist() == expected


@each
def test_a_row_alone(own: Any, rng: np.random.Generator) -> None:
    """The token does not depend on other rows, threads, the instruction set or the shape."""
    logits = drawn(rng, (60, 700), "bfloat16")
    offsets = rng.integers(-(2**31), 2**31, 60)
    given = offsets.astype(np.int32)
    filters = {"top_k": 60, "top_p": 0.95}
    expected = [token(x, 5, int(o), **filters) for x, o in zip(logits, given, strict=True)]
    before = torch.get_num_threads()
    try:
        for isa in ISAS:
            _native.set_cpu_isa(isa)
            for threads in (1, 3):
                torch.set_num_threads(threads)
                assert sample(own, logits, 5, own.array(given), **filters).tolist() == expected
    finally:
        _native.set_cpu_isa(None)
        torch.set_num_threads(before)
    alone = [sample(own, logits[i], 5, int(given[i]), **filters) for i in (0, 17, 59)]
    assert [int(x) for x in alone] == [expected[i] for i in (0, 17, 59)]
    folded = sample(own, logits.reshape(3, 20, 700), 5, own.array(given.reshape(3, 20)), **filters)
    assert folded.reshape(-1).tolist() == expected


@each
@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, -3, 2**32 - 2, 2**64 - 2])
def test_64_bits(own: Any, seed: int, offset: int, rng: np.random.Generator) -> None:
    """Rows count on from the offset, modulo 2**64."""
    logits = drawn(rng, (5, 40), "float32")
    expected = [token(x, seed, offset + i) for i, x in enumerate(logits)]
    assert sample(own, logits, seed, offset).tolist() == expected


@each
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_offsets_of_64_bits(own: Any, dtype: str, rng: np.random.Generator) -> None:
    """JAX takes all bits of an offset from an array of NumPy, also while x64 is off."""
    logits = drawn(rng, (3, 40), "float32")
    offsets = np.array([5, 2**40, 2**63 - 1], dtype)
    if dtype == "int64":
        offsets[0] = -(2**35)
    expected = [token(x, SEED, int(o)) for x, o in zip(logits, offsets, strict=True)]
    given = torch.tensor(offsets.astype(np.int64)) if own.name == "torch" else offsets
    assert sample(own, logits, SEED, given).tolist() == expected


@each
def test_the_distribution(own: Any) -> None:
    """Chi-square over 20,000 draws, for all columns and for the columns that filters leave."""
    count, columns = 20000, 12
    logits = np.linspace(-1.5, 1.5, columns).astype(np.float32)
    rows = np.broadcast_to(logits, (count, columns)).copy()
    for filters in ({}, {"temperature": 2.0, "top_k": 7}, {"top_p": 0.8}, {"min_p": 0.3}):
        found = np.bincount(sample(own, rows, 11, 10**6, **filters), minlength=columns)
        p = np.exp(logits.astype(np.float64) / filters.get("temperature", 1.0))
        p /= p.sum()
        falling = np.sort(p)[::-1]
        if "top_k" in filters:
            p = np.where(p >= falling[filters["top_k"] - 1], p, 0)
        if "top_p" in filters:
            p = np.where(p >= falling[np.searchsorted(np.cumsum(falling), filters["top_p"])], p, 0)
        if "min_p" in filters:
            p = np.where(p >= filters["min_p"] * p.max(), p, 0)
        assert found[p == 0].sum() == 0
        wanted = (p / p.sum() * count)[p > 0]
        # 40 is beyond the 99.99 % point of chi-square with 11 degrees of freedom.
        assert np.sum((found[p > 0] - wanted) ** 2 / wanted) < 40


@each
def test_neighbours_are_independent(own: Any) -> None:
    """Neighbouring rows with equal logits draw equal tokens as often as chance has it."""
    rows = np.zeros((20000, 8), np.float32)
    found = sample(own, rows, 3, 0)
    assert abs(np.mean(found[1:] == found[:-1]) - 1 / 8) < 0.012


@each
def test_special_numbers(own: Any) -> None:
    nan, inf = np.nan, np.inf
    rows = np.array(
        [[0, nan, 0], [-inf, -inf, -inf], [-inf, 3, -inf], [inf, 0, inf], [1e38, -1e38, 0]],
        np.float32,
    )
    for filters in ({}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.99, "min_p": 0.5}):
        found = sample(own, rows, **filters).tolist()
        assert found == [token(x, SEED, OFFSET + i, **filters) for i, x in enumerate(rows)]
        assert found[:3] == [-1, -1, 1]
        assert found[3] in (0, 2)
        assert found[4] == 0
    assert sample(own, np.zeros((0, 3), np.float32)).shape == (0,)


def test_both_frameworks_and_seeds(rng: np.random.Generator) -> None:
    """Numbers, arrays and keys are the same seed; tokens have no gradient."""
    logits = drawn(rng, (9, 100), "float32")
    expected = bridge.torch.seeded_sample(torch.tensor(logits), 7, 4)
    assert expected.dtype == torch.int64
    seed, offset = torch.tensor(7), torch.tensor(4, dtype=torch.int32)
    assert torch.equal(bridge.torch.seeded_sample(torch.tensor(logits), seed, offset), expected)
    for key in (7, jnp.array(7), jax.random.key(7), np.int64(7)):
        found = jax.jit(lambda x, s: bridge.jax.seeded_sample(x, s, jnp.array(4)))(logits, key)
        assert found.dtype == jnp.int32
        assert found.tolist() == expected.tolist()
    wanted = torch.tensor(logits, requires_grad=True)
    assert not bridge.torch.seeded_sample(wanted, 7, 4).requires_grad
    g = jax.grad(lambda x: bridge.jax.seeded_sample(x, 7, 4).sum() * 0.5 + x.sum())(logits)
    assert np.all(np.asarray(g) == 1)
    generator = torch.Generator().manual_seed(3)
    assert bridge.torch.seeded_sample(torch.tensor(logits), generator, 0).shape == (9,)


def test_vmap(rng: np.random.Generator) -> None:
    logits = drawn(rng, (4, 3, 50), "float32")
    offsets = np.arange(100, 104, dtype=np.int32)
    expected = [
        [token(x, 9, int(o) + i, top_k=10) for i, x in enumerate(rows)]
        for rows, o in zip(logits, offsets, strict=True)
    ]
    ours = torch.func.vmap(lambda x, o: bridge.torch.seeded_sample(x, 9, o, top_k=10))
    theirs = jax.jit(jax.vmap(lambda x, o: bridge.jax.seeded_sample(x, 9, o, top_k=10)))
    assert ours(torch.tensor(logits), torch.tensor(offsets)).tolist() == expected
    assert theirs(logits, offsets).tolist() == expected


def test_compile_and_export(rng: np.random.Generator) -> None:
    logits = torch.tensor(drawn(rng, (5, 60), "float32"))

    def function(x: Any, offset: Any) -> Any:
        return bridge.torch.seeded_sample(x, 3, offset, top_p=0.8) + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for offset in (torch.tensor(4), torch.arange(5)):
        assert torch.equal(compiled(logits, offset), function(logits, offset))

    class Module(torch.nn.Module):
        def forward(self, x: Any, offset: Any) -> Any:
            return function(x, offset)

    given = (logits, torch.arange(5))
    assert torch.equal(torch.export.export(Module(), given).module()(*given), function(*given))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", [("a", None), (None, "a")])
def test_split_rows(kind: Any, split: Any, rng: np.random.Generator) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("a",), (kind,))
    logits = drawn(rng, (6, 32), "float32")
    expected = [token(x, 2, 5 + i) for i, x in enumerate(logits)]
    with jax.set_mesh(mesh):
        placed = jax.device_put(logits, NamedSharding(mesh, PartitionSpec(*split)))
        compiled = jax.jit(lambda x: bridge.jax.seeded_sample(x, 2, 5))
        assert compiled(placed).tolist() == expected
        text = compiled.lower(placed).compile().as_text()
    assert split[0] is None or "all-gather" not in text


X = np.zeros((2, 3), np.float32)
WRONG: list[Any] = [
    ((X, 0, 0), {"temperature": -1.0}, ValueError, "temperature is -1.0, expected a number"),
    ((X, 0, 0), {"temperature": np.nan}, ValueError, "temperature is nan"),
    ((X, 0, 0), {"temperature": "hot"}, TypeError, "temperature"),
    ((X, 0, 0), {"top_k": 4}, ValueError, "top_k is 4, expected an integer from 1 to 3"),
    ((X, 0, 0), {"top_k": 0}, ValueError, "top_k is 0"),
    ((X, 0, 0), {"top_p": 0.0}, ValueError, "top_p is 0.0, expected a probability above 0"),
    ((X, 0, 0), {"top_p": 1.5}, ValueError, "top_p is 1.5"),
    ((X, 0, 0), {"min_p": 1.5}, ValueError, "min_p is 1.5, expected a probability"),
    ((X, 1.5, 0), {}, TypeError, "seed has type float"),
    ((X, 0, None), {}, TypeError, "offset has type NoneType"),
    ((X, 2**64, 0), {}, ValueError, "seed is 18446744073709551616"),
    ((X[:, :0], 0, 0), {}, ValueError, r"logits has shape \[2, 0\], expected at least one column"),
    ((X.astype(np.int32), 0, 0), {}, TypeError, "logits has dtype int32"),
]


@each
@pytest.mark.parametrize(("given", "filters", "error", "words"), WRONG)
def test_wrong_arguments(own: Any, given: Any, filters: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=f"seeded_sample: {words}"):
        sample(own, *given, **filters)
    with pytest.raises(ValueError, match=r"offset has shape \[3\], expected \[2\]"):
        sample(own, X, 0, own.array(np.zeros(3, np.int32)))
    with pytest.raises(TypeError, match="offset has dtype float32, expected an integer"):
        sample(own, X, 0, own.array(np.zeros(2, np.float32)))
