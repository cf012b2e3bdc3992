"""Conversion of an array of NumPy, or of another library with DLPack, to a torch tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bridge.exchange.dtypes import FLOAT8, SUPPORTED, TO_TORCH
from bridge.exchange.refusal import Refused

# NumPy has these only through ml_dtypes; they are exported as integers of the same size.
NOT_NUMPYS = FLOAT8 | {"bfloat16"}
_BITS = {1: np.uint8, 2: np.uint16}


def from_producer(producer: Any, copy: bool | None) -> torch.Tensor:
    """Returns a tensor on the producer's memory, or a copy; raises Refused if it can do neither."""
    if isinstance(producer, np.ndarray):
        return _from_numpy(producer, copy)
    # torch ends the process over negative strides, and not every library can make a copy.
    if any(stride < 0 for stride in getattr(producer, "strides", None) or ()):
        raise Refused(BufferError, producer, "has a negative stride", "make it contiguous first")
    try:
        tensor = torch.from_dlpack(producer, copy=copy)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        kind = type(error) if type(error) in (BufferError, TypeError, ValueError) else ValueError
        why = f"cannot be exported by its library ({error})"
        raise Refused(kind, producer, why, "make a NumPy array of it") from error
    if tensor.dtype not in TO_TORCH.values():
        raise Refused(TypeError, producer, f"has a dtype that is none of {SUPPORTED}", "convert it")
    return tensor


def _from_numpy(array: np.ndarray, copy: bool | None) -> torch.Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise Refused(TypeError, array, "has a mask, which torch lacks", "pass array.filled()")
    dtype = array.dtype.newbyteorder("=")
    if dtype not in TO_TORCH:
        raise Refused(TypeError, array, f"has a dtype that is none of {SUPPORTED}", "convert it")
    why = ""
    if any(stride < 0 or stride % dtype.itemsize for stride in array.strides):
        why = "has strides that are negative, or no multiples of the element's size,"
    elif dtype != array.dtype:
        why = "is in the other byte order"
    if why and copy is False:
        raise Refused(BufferError, array, f"{why} and copy=False", "pass copy=None")
    if why or copy is True:
        array = np.array(array, dtype, order="C", copy=True)
    if dtype.name in NOT_NUMPYS:
        array = array.view(_BITS[dtype.itemsize])
    return torch.from_dlpack(array).view(TO_TORCH[dtype])
