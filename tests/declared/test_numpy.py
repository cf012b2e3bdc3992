"""A declared op on NumPy arrays has the same bits as in PyTorch and in JAX."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import ml_dtypes
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.checked.arrays import Array
from tests.declared.ops import OTHERS, SEVEN, rms_norm, row_dot
from tests.frameworks import DTYPES, numpy_dtype
from tests.lang.arrays import draw

OPS = {op.__name__: op for op in (*SEVEN, *OTHERS.values())}


def operands_of(op: Any, rng: Any, space: tuple[int, ...], dtypes: list[str]) -> list[Any]:
    """Returns random operands; the floating ones have these dtypes in turn."""
    found = []
    for i, operand in enumerate(op._example.program.operands):
        array = np.asarray(draw(rng, operand, space))
        is_floating = array.dtype == np.float64
        found.append(array.astype(numpy_dtype(dtypes[i % len(dtypes)])) if is_floating else array)
    return found


def as_tensor(array: Any) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


def each(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def assert_same(results: Any, others: Any) -> None:
    for result, other in zip(each(results), each(others), strict=True):
        assert Array.of(result).same(Array.of(other))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtypes", [*([d] for d in DTYPES), ["bfloat16", "float32"]], ids=str)
@pytest.mark.parametrize("space", [(3, 33), (7,), (0, 5), (2, 0), (2, 3, 1100)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_the_bits_are_those_of_both_frameworks(
    name: str, space: tuple[int, ...], dtypes: list[str], rng: Any
) -> None:
    op, operands = OPS[name], operands_of(OPS[name], rng, space, dtypes)
    before = [operand.copy() for operand in operands]
    found = op(*operands)
    assert all(type(result) is np.ndarray for result in each(found))
    assert_same(found, op(*map(as_tensor, operands)))
    with jax.enable_x64(True):
        assert_same(found, op(*map(jnp.asarray, operands)))
    assert_same(tuple(operands), tuple(before))


def unaligned(array: Any) -> Any:
    content = np.zeros(array.nbytes + 1, np.uint8)
    content[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return content[1:].view(array.dtype).reshape(array.shape)


def read_only(array: Any) -> Any:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS = {
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "of a record": lambda a: np.rec.fromarrays([a, np.zeros(a.shape, np.uint8)]).f0,
    "unaligned": unaligned,
    "read only": read_only,
    "other bytes": lambda a: a.astype(a.dtype.newbyteorder()),
    "a matrix of its own class": lambda a: a.view(type("Own", (np.ndarray,), {})),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: str, rng: Any) -> None:
    x, weight = operands_of(rms_norm, rng, (5, 12), [dtype])
    expected = rms_norm(x, weight)
    found = rms_norm(LAYOUTS[layout](x), LAYOUTS[layout](weight))
    assert found.dtype.isnative
    assert_same(found, expected)


@bridge.op
def placed(x: bridge.Full, y: bridge.Table, mask: bridge.Mask):
    return bl.where(mask, x * y, 0.0), bl.sum(x), bl.like(x, y)


def test_numbers_and_what_broadcasts(rng: Any) -> None:
    x = rng.normal(size=(4, 6)).astype(np.float16)
    full, total, like = placed(x, 0.5, True)
    assert (full.dtype, total.dtype, like.dtype) == (np.float16, np.float32, np.float16)
    assert_same(full, x * np.float16(0.5))
    strong = placed(x, np.float64(0.5), np.bool_(True))  # promoted by NumPy's rules
    assert [result.dtype for result in strong] == [np.float64] * 3
    bits = rng.integers(0, 2, (6,), np.uint8)
    column = rng.normal(size=(4, 1)).astype(ml_dtypes.bfloat16)
    found = placed(x, np.broadcast_to(column, x.shape), np.broadcast_to(bits, x.shape))
    assert [result.dtype.name for result in found] == ["float32", "float32", "bfloat16"]
    assert_same(found[:2], placed(x, column, bits)[:2])
    assert [result.shape for result in placed(x[0], 1.0, True)] == [(6,), (), (6,)]


@bridge.op
def doubled(x: bridge.Full):
    return x + x


def test_a_number_without_dimensions() -> None:
    for value in (np.float32(1.5), np.array(1.5, np.float32)):
        result = doubled(value)
        assert (type(result), result.shape, result.dtype) == (np.ndarray, (), np.float32)
        assert result == 3.0


@pytest.mark.parametrize(
    "seed", [7, -1, 2**64 - 1, np.int32(7), np.array(2**63, np.uint64)], ids=str
)
def test_seeds(seed: Any) -> None:
    @bridge.op
    def dropped(x: bridge.Full, seed: bridge.lang.Integer):
        return bl.where(bl.dropout_keep(0.5, seed), x, 0.0)

    x = np.ones((4, 50), np.float32)
    number = int(seed)
    assert_same(dropped(x, seed), dropped(torch.tensor(x), number))
    with pytest.raises(TypeError, match="dropped: seed has"):
        dropped(x, 0.5)
    with pytest.raises(ValueError, match=r"dropped: seed has shape \[2\], expected a 0-dim"):
        dropped(x, np.arange(2))


def test_what_is_refused(rng: Any) -> None:
    x, y = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match="row_dot: y has type list, expected a NumPy array or a n"):
        row_dot(x, [[1.0]])
    with pytest.raises(TypeError, match="row_dot: y is a masked array, expected a plain one"):
        row_dot(x, np.ma.masked_array(y))
    with pytest.raises(TypeError, match="row_dot: x has dtype int64, expected one of float16"):
        row_dot(x.astype(np.int64), y)
    with pytest.raises(ValueError, match=r"row_dot: y has shape \[3\], expected \[2, 3\]"):
        row_dot(x, y[0])
    with pytest.raises(TypeError, match="row_dot: got float, float, expected tensors of PyTorch"):
        row_dot(1.0, 2.0)
    # A call may not mix tensors and NumPy arrays.
    for operands in ((torch.tensor(x), y), (x, torch.tensor(y))):
        with pytest.raises(TypeError, match=r"has type ndarray, expected torch\.Tensor"):
            row_dot(*operands)


def test_an_array_beside_arrays_of_jax(rng: Any) -> None:
    """A NumPy array is an ordinary operand there, as in jax.numpy."""
    x, y = (rng.normal(size=(2, 3)).astype(np.float32) for _ in range(2))
    expected = row_dot(x, y)
    for operands in ((jnp.asarray(x), y), (x, jnp.asarray(y))):
        found = row_dot(*operands)
        assert isinstance(found, jax.Array)
        assert_same(found, expected)
        jaxpr = jax.make_jaxpr(lambda a, b=operands: row_dot(a, b[1]))(x)
        assert "bridge_program" in str(jaxpr)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "row_dot", "swish_gate"])
def test_check_grads_of_jax(name: str, mode: str, x64: bool, rng: Any) -> None:
    dtype = "float64" if x64 else "float32"
    operands = operands_of(OPS[name], rng, (3, 8), [dtype])
    with jax.enable_x64(x64):
        jax.test_util.check_grads(OPS[name], operands, order=2, modes=[mode])


def test_without_a_framework() -> None:
    code = """
import sys
import ml_dtypes, numpy as np
import bridge

@bridge.op
def rms_norm(x: bridge.Full, weight: bridge.Row | None = None, *, eps: float = 1e-6):
    y = x * bridge.lang.rsqrt(bridge.lang.mean(x * x) + eps)
    return y if weight is None else y * weight

rng = np.random.default_rng(0)
for dtype, bound in (("float64", 1e-15), ("float32", 1e-6), (ml_dtypes.bfloat16, 2.0**-7)):
    x, weight = (rng.normal(size=size).astype(dtype) for size in ((300, 700), 700))
    for operands in ((x,), (x, weight)):
        y, right = rms_norm(*operands, eps=1e-3), rms_norm.reference(*operands, eps=1e-3)
        assert y.dtype == x.dtype and np.all(abs(y.astype(float) - right) <= bound * abs(right))
assert not {"torch", "jax"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)
