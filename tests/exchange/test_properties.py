"""Any layout against NumPy: shape, strides, offset, dtype, and the lazy bits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
from tests.exchange.values import DTYPES, address_of, bits_of, random_bits, tensor_of


@st.composite
def layouts(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Draws a shape, strides and an offset; half of them are compact orders."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        strides, step = [0] * len(shape), 1
        for dimension in order:
            strides[dimension] = step
            step *= max(shape[dimension], 1)
    else:
        strides = [draw(st.integers(0, 12)) for _ in shape]
    offset = draw(st.sampled_from([0, 0, 1, 3, 16, 64]))
    return shape, tuple(strides), offset


def reference(
    memory: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> np.ndarray:
    """Returns the content of the view, by NumPy's own strides."""
    width = memory.itemsize
    return np.ndarray(
        shape, memory.dtype, memory, offset * width, [stride * width for stride in strides]
    )


def fills_a_block(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if every element of a block belongs to exactly one index, counted one by one."""
    offsets = [
        sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in np.ndindex(*shape)
    ]
    return sorted(offsets) == list(range(len(offsets)))


@settings(max_examples=300, deadline=None)
@given(
    layout=layouts(),
    dtype=st.sampled_from(DTYPES),
    copy=st.sampled_from([None, False, True]),
    conj=st.booleans(),
    negative=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_layout_crosses_as_numpy_reads_it(
    layout: Any, dtype: torch.dtype, copy: bool | None, conj: bool, negative: bool, seed: int
) -> None:
    shape, strides, offset = layout
    size = offset + sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = random_bits(np.random.default_rng(seed), (size,), dtype)
    whole = tensor_of(memory, dtype)
    tensor = whole.as_strided(shape, strides, offset)
    expected = np.ascontiguousarray(reference(memory, shape, strides, offset))
    if conj and dtype.is_complex:
        tensor, expected = tensor.conj(), np.conj(expected)
    if negative and (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1:
        tensor = torch._neg_view(tensor)
        with np.errstate(invalid="ignore"):  # warnings of ml_dtypes' own arithmetic
            if np.isnan(expected).any():
                return  # the bits of a negated NaN are not specified
            expected = -expected
    lazy = tensor.is_conj() or tensor.is_neg()
    aligned = whole[offset : offset + 1].data_ptr() % 64 == 0 or not tensor.numel()
    shared = fills_a_block(shape, strides) and aligned and not lazy

    with jax.enable_x64(True):
        if copy is False and not shared:
            with pytest.raises(BufferError) as error:
                bridge.to_jax(tensor, copy=False)
            assert str(tuple(shape)) in str(error.value)
            return
        array = bridge.to_jax(tensor, copy=copy)
        assert (array.shape, array.dtype) == (shape, expected.dtype)
        assert bits_of(array) == expected.tobytes()
        if tensor.numel() and not lazy:
            assert (address_of(array) == address_of(tensor)) is (shared and copy is not True)

        back = bridge.to_torch(array, copy=copy)
        assert (tuple(back.shape), back.dtype) == (shape, dtype)
        assert bits_of(back) == expected.tobytes()
        if tensor.numel():
            assert (address_of(back) == address_of(array)) is (copy is not True)
