"""Declared ops on NumPy arrays: the kernels of both frameworks, without a framework.

Results are new arrays. NumPy asks for no derivatives, so there are none here.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from bridge import _native
from bridge.lang import roles
from bridge.lang.dtypes import FLOATING, promote
from bridge.lang.tracing import HasDeclaration
from bridge.ops.definition import Spec
from bridge.ops.form import as_per_row, check_operands
from bridge.ops.integers import check_integer, check_integer_array
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.traced import Traced, function_of, traced

NUMPY_TYPES = (np.ndarray, np.generic)
_NUMBERS = (bool, int, float, complex)
# Older versions of NumPy export no memory that may not be written.
_LENDS_READ_ONLY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class DeclaredFunction:
    """The function of a declared op on NumPy arrays, `public`."""

    def __init__(self, op: HasDeclaration) -> None:
        self.name = op.declaration.name
        find = functools.partial(traced, op.declaration)
        self.public = function_of(op.declaration, "numpy", find, self.run)

    def run(self, found: Traced, operands: tuple[Any, ...]) -> Any:
        """Returns the result of the op; the operands are those that are present."""
        arrays = as_per_row(found.form, tuple(_as_arrays(self.name, found, operands)))
        specs = [Spec(array.shape, array.dtype.name) for array in arrays]
        params = check_operands(self.name, found.form, specs, found.texts)
        results = _run(arrays, specs, params)
        return results if found.returns_several else results[0]


def _as_arrays(function: str, found: Traced, operands: Sequence[Any]) -> list[Any]:
    """The operands as arrays of this machine's byte order.

    A Python float takes the dtype of the floating arrays beside it, as in NumPy.
    """
    given = [value.dtype for value in operands if isinstance(value, NUMPY_TYPES)]
    own = {dtype.name: dtype.newbyteorder("=") for dtype in given if dtype.name in FLOATING}
    weak = own.get(promote(*own), np.dtype(np.float32)) if own else np.dtype(np.float64)
    arrays = []
    for operand, value in zip(found.program.operands, operands, strict=True):
        if operand.role is roles.Integer:
            arrays.append(_as_integer(function, operand.name, value))
            continue
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                f"{function}: {operand.name} is a masked array, expected a plain one: fill it, or "
                "make an operand of its mask"
            )
        if not isinstance(value, NUMPY_TYPES + _NUMBERS):
            raise TypeError(
                f"{function}: {operand.name} has type {type(value).__name__}, expected a NumPy "
                "array or a number"
            )
        array = np.asarray(value)
        if type(value) is float:
            array = array.astype(weak)
        arrays.append(array.astype(array.dtype.newbyteorder("="), copy=False))
    return arrays


def _as_integer(function: str, name: str, value: Any) -> Any:
    """A seed or an offset as an int64 array without dimensions."""
    if isinstance(value, np.ndarray):
        check_integer_array(function, name, Spec(value.shape, value.dtype.name))
        return value.astype(np.int64)
    return np.array(check_integer(function, name, value), np.uint64).view(np.int64)


def _run(arrays: Sequence[Any], specs: Sequence[Spec], params: ProgramParams) -> tuple[Any, ...]:
    names = {array.dtype.name: array.dtype for array in arrays}  # NumPy may know no bfloat16
    results = tuple(
        [
            np.empty(spec.shape, names.get(spec.dtype) or _dtype(spec.dtype))
            for spec in PROGRAM.results(specs, params)
            if spec is not None
        ]
    )
    attributes, code = _prepared(params, tuple([spec.dtype for spec in specs]))
    settings = (attributes, _threads(), None, code)
    given = [array if _is_lent(array) else array.copy() for array in arrays]
    written = tuple(map(_lent, results))
    while True:
        operands = tuple(map(_lent, given))
        unreadable = _native.run(PROGRAM.kernel_name, operands, written, *settings)
        if unreadable < 0:
            return results
        # A kernel cannot walk these strides: at most once for each operand.
        given[unreadable] = given[unreadable].copy()


@functools.lru_cache(maxsize=1024)
def _prepared(params: ProgramParams, dtypes: tuple[str, ...]) -> tuple[tuple[int, ...], bytes]:
    """Attributes and words of calls of one kind, for which machine code is asked here."""
    PROGRAM.ask_for_machine_code(params, dtypes, "cpu")
    return tuple(params.attributes().values()), PROGRAM.code(params, dtypes)


def _threads() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_lent(array: Any) -> bool:
    """True if NumPy exports the array through DLPack as it lies."""
    if not (array.flags.writeable or _LENDS_READ_ONLY):
        return False
    is_whole = all(stride % array.itemsize == 0 for stride in array.strides)
    return bool(array.flags.aligned) and is_whole


def _lent(array: Any) -> Any:
    return _OfMlDtypes(array) if array.dtype.name in _OfMlDtypes.CODES else array


def _dtype(name: str) -> Any:
    """Returns a dtype that may be one of the package ml_dtypes, which registers its names."""
    if name in _OfMlDtypes.CODES:
        import ml_dtypes  # noqa: F401
    return np.dtype(name)


class _OfMlDtypes:
    """An array of a dtype that NumPy does not know and does not export, such as bfloat16.

    Its bits are exported as unsigned integers, and then called by the code of the dtype. The
    numbers are those of dlpack.h, which are fixed.
    """

    CODES: ClassVar = {
        "bfloat16": 4,
        "float8_e4m3fn": 10,
        "float8_e5m2": 12,
        "float8_e8m0fnu": 14,
    }
    # Bytes in front of the dtype: of a DLManagedTensor, which begins with its DLTensor (a pointer,
    # two numbers of a device, the number of dimensions), and of a versioned one.
    _PLACES = ((b"dltensor", 20), (b"dltensor_versioned", 32 + 20))

    def __init__(self, array: Any) -> None:
        self._bits = array.view(f"u{array.itemsize}")
        self._code = self.CODES[array.dtype.name]

    def __dlpack__(self, **keywords: Any) -> Any:
        capsule = self._bits.__dlpack__(**keywords)
        for name, place in self._PLACES:
            if _is_named(capsule, name):
                ctypes.c_uint8.from_address(_address(capsule, name) + place).value = self._code
                return capsule
        raise BufferError("NumPy exports arrays in a way that is not known here")


_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
