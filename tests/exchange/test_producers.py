"""NumPy arrays, and arrays of any library with DLPack, become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from tests.exchange.values import DTYPES, NAMES, bits_of, random_bits


def test_numpy_is_a_producer_for_torch() -> None:
    values = np.arange(6.0).reshape(2, 3)
    tensor = bridge.to_torch(values)
    assert tensor.data_ptr() == values.ctypes.data
    assert bridge.to_torch(values, copy=True).data_ptr() != values.ctypes.data
    assert bridge.to_jax({"x": values})["x"] is values
    with pytest.raises((TypeError, BufferError), match=r"tree\[1\].*ndarray"):
        bridge.to_torch([0, np.array(["text"])])


def numpy_arrays() -> dict[str, np.ndarray]:
    values = np.arange(24.0).reshape(4, 6)
    record = np.zeros(5, [("tag", "u1"), ("value", "f4")])
    record["value"] = np.arange(5)
    return {
        "reversed": values[::-1],
        "both reversed": values[::-1, ::-2],
        "other byte order": values.astype(values.dtype.newbyteorder()),
        "packed field": record["value"],
    }


@pytest.mark.parametrize("name", numpy_arrays())
def test_numpy_arrays_that_torch_cannot_hold_are_copied(name: str) -> None:
    """torch would end the process over a negative stride."""
    values = numpy_arrays()[name]
    for copy in (None, True):
        np.testing.assert_array_equal(bridge.to_torch(values, copy=copy).numpy(), values)
    with pytest.raises(BufferError, match="copy=None"):
        bridge.to_torch(values, copy=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_numpys_dtypes(dtype: torch.dtype, rng: np.random.Generator) -> None:
    values = random_bits(rng, (4, 6), dtype)
    for given in (values, values.T, values[::2, 1:]):
        tensor = bridge.to_torch(given, copy=False)
        assert tensor.dtype == dtype
        assert bits_of(tensor) == np.ascontiguousarray(given).tobytes()
        assert tensor.data_ptr() == given.ctypes.data
    assert bridge.to_torch(values, copy=True).data_ptr() != values.ctypes.data


class Producer:
    """An array of another library."""

    def __init__(self, tensor: torch.Tensor, strides: tuple[int, ...] = ()) -> None:
        self.tensor, self.strides = tensor, strides

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_other_producers() -> None:
    tensor = torch.randn(3, 4)
    assert bridge.to_torch([Producer(tensor)])[0].data_ptr() == tensor.data_ptr()
    with pytest.raises(BufferError, match=r"tree\[0\].*negative"):
        bridge.to_torch([Producer(tensor, (-4, 1))])
    with pytest.raises(BufferError, match=r"tree\[0\].*gradient"):
        bridge.to_torch([Producer(tensor.requires_grad_())])
    with pytest.raises(TypeError, match="dtype"):
        bridge.to_torch(Producer(torch.zeros(3, dtype=torch.float8_e4m3fnuz)))
    with pytest.raises(TypeError, match="mask"):
        bridge.to_torch(np.ma.masked_equal(np.arange(3.0), 1))
