"""An edit that a test must detect, and the tests that faults of several parts name."""

from __future__ import annotations

from dataclasses import dataclass

VALUES = "tests/test_values.py::test_value_and_derivatives"
LAYOUTS = "tests/test_native.py"
GELU = "bridge/catalogue/bias_gelu.py"
DERIVATIVES = "bridge/lang/derivatives/modes.py"


@dataclass(frozen=True)
class Fault:
    """An edit of one place.

    Attributes:
      name: a description of the fault.
      file, original, planted: the place, which contains `original` exactly once, and its
        replacement.
      tests: the test, or a file of tests, that must detect the fault.
      keyword: the argument of pytest's -k: selects the tests about the faulty part.
    """

    name: str
    file: str
    original: str
    planted: str
    tests: str = VALUES
    keyword: str = ""
