"""Faults of the kernels of a build."""

from __future__ import annotations

from .fault import Fault

BUILD = (
    Fault(
        "a build without NumPy rounds no constant to float32",
        "cmake/without_numpy.py",
        'super().__new__(cls, *struct.unpack("f", struct.pack("f", x)))',
        "super().__new__(cls, x)",
        tests="tests/test_isolated_build.py::test_the_sources_are_the_same_without_numpy",
    ),
)
