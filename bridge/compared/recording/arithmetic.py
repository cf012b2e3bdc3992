"""Equations in NumPy, which needs no compilation for each shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Params = dict[str, Any]


def find(name: str) -> Callable[..., Any] | None:
    """Returns f(params, *arrays) for the name of a primitive, None where JAX itself runs it."""
    return _TABLE.get(name)


def _broadcast(p: Params, x: Any, *_: Any) -> Any:
    shape = [1] * len(p["shape"])
    for place, n in zip(p["broadcast_dimensions"], np.shape(x), strict=True):
        shape[place] = n
    return np.broadcast_to(np.reshape(x, shape), p["shape"])


def _integer_pow(p: Params, x: Any) -> Any:
    y = p["y"]
    if y < 0:
        return 1 / _integer_pow({"y": -y}, x)
    if y == 0:
        return np.ones_like(x)
    result, power = None, x
    while y:
        if y & 1:
            result = power if result is None else result * power
        y >>= 1
        if y:
            power = power * power
    return result


def _select(p: Params, which: Any, *cases: Any) -> Any:
    if len(cases) != 2:
        return np.choose(np.broadcast_to(which, np.shape(cases[0])), cases)
    return np.where(which, cases[1], cases[0])


def _convert(p: Params, x: Any) -> Any:
    x = np.asarray(x)
    new = np.dtype(p["new_dtype"])
    if x.dtype.kind == "f" and new.kind in "iu":
        raise NotImplementedError  # JAX clamps
    return x.astype(new)


def _dot(p: Params, a: Any, b: Any) -> Any:
    (ca, cb), (ba, bb) = p["dimension_numbers"]
    if a.dtype != np.float64 or b.dtype != np.float64:
        raise NotImplementedError
    ra = [k for k in range(a.ndim) if k not in (*ca, *ba)]
    rb = [k for k in range(b.ndim) if k not in (*cb, *bb)]
    batch = [a.shape[k] for k in ba]
    left = a.transpose(*ba, *ra, *ca).reshape(*batch, -1, _size(a, ca))
    right = b.transpose(*bb, *cb, *rb).reshape(*batch, _size(b, cb), -1)
    if 0 in left.shape or 0 in right.shape:
        raise NotImplementedError
    rows = [a.shape[k] for k in ra]
    return _product(left, right).reshape(*batch, *rows, *(b.shape[k] for k in rb))


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns a product of float64 matrices, computed by torch.

    Two libraries of threads in one process, that of torch and that of NumPy, wait for each other.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor written to
        tensors = torch.from_numpy(left), torch.from_numpy(right)
    return torch.matmul(*tensors).numpy()


def _size(array: Any, axes: Any) -> int:
    return int(np.prod([array.shape[k] for k in axes], dtype=np.int64))


def _iota(p: Params, *_: Any) -> Any:
    shape = p["shape"]
    view = [1] * len(shape)
    view[p["dimension"]] = shape[p["dimension"]]
    row = np.arange(shape[p["dimension"]]).astype(p["dtype"])
    return np.broadcast_to(row.reshape(view), shape)


def _floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """Only floating-point arrays: whole numbers have rules of their own."""

    def run(p: Params, *arrays: Any) -> Any:
        if any(np.asarray(a).dtype.kind != "f" for a in arrays):
            raise NotImplementedError
        return function(*arrays)

    return run


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *arrays: function(*arrays)


def _slice(p: Params, x: Any) -> Any:
    strides = p["strides"] or [1] * x.ndim
    places = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[tuple(slice(a, b, c) for a, b, c in places)]


def _split(p: Params, x: Any) -> Any:
    return np.split(x, np.cumsum(p["sizes"])[:-1], p["axis"])


_TABLE: dict[str, Callable[..., Any]] = {
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _floats(np.divide),
    "neg": _plain(np.negative),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "exp": _floats(np.exp),
    "log": _floats(np.log),
    "tanh": _floats(np.tanh),
    "sqrt": _floats(np.sqrt),
    "rsqrt": _floats(lambda x: 1 / np.sqrt(x)),
    "logistic": _floats(lambda x: 1 / (1 + np.exp(-x))),
    "sin": _floats(np.sin),
    "cos": _floats(np.cos),
    "abs": _floats(np.abs),
    "square": _plain(np.square),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "integer_pow": _integer_pow,
    "select_n": _select,
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "dot_general": _dot,
    "slice": _slice,
    "split": _split,
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "reshape": lambda p, x, *_: np.reshape(x, p["new_sizes"]),
    "transpose": lambda p, x: np.transpose(x, p["permutation"]),
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "copy": lambda p, x: x,
    "copy_p": lambda p, x: x,
    "name": lambda p, x: x,
    "stop_gradient": lambda p, x: x,
    "reduce_sum": lambda p, x: np.sum(x, axis=tuple(p["axes"]), dtype=x.dtype),
    "reduce_max": lambda p, x: np.max(x, axis=tuple(p["axes"])),
    "reduce_min": lambda p, x: np.min(x, axis=tuple(p["axes"])),
}
