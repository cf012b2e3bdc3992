"""Faults in `bridge.compare`."""

from __future__ import annotations

from .fault import Fault

_BEHIND = "tests/compare/test_behind_a_convolution.py"

COMPARED = (
    Fault(
        "compare: axes of one size lie in any order",
        "bridge/compared/joins.py",
        "key=lambda order: -usual[order])",
        "key=lambda order: 0)",
        tests=_BEHIND,
        keyword="16-bias",
    ),
    Fault(
        "compare: a right convolution is replaced with a wrong one of the same line",
        "bridge/compared/recording/tape.py",
        "(op, line, numbers_of(eqn), shapes)",
        "(op, line, shapes)",
        tests=_BEHIND,
        keyword="20-plain-relu",
    ),
    Fault(
        "compare: a step of a slope counts as the whole operation with its operands",
        "bridge/compared/joins.py",
        'WHOLE = {"conv_general_dilated", "dot_general"}',
        'WHOLE = {"conv_general_dilated", "dot_general", "mul"}',
        tests="tests/compare/test_memory.py::test_steps_of_a_wrong_slope_are_one_part",
    ),
    Fault(
        "compare: common operands are no sign of one operation",
        "bridge/compared/joins.py",
        "if len(theirs) < 2:",
        "if theirs:",
        tests=_BEHIND,
        keyword="20-bias-norm",
    ),
    Fault(
        "compare: numbers that differ by a tenth are equal",
        "bridge/compared/recording/fingerprints.py",
        "EQUAL = 1e-10",
        "EQUAL = 1e-1",
        tests="tests/compare/test_planted_mistakes.py::test_a_mistake_is_named_at_its_line",
        keyword="gelu",
    ),
)
