"""`python -m bridge parity` passes for every op on rows of zeros, extremes, infinities and NaN.

Each test runs a sample of the grid in the suite; the command itself runs all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bridge.cli.parity import bias_dropout_add, bias_gelu, catalogue, softmax
from bridge.cli.parity.measure import measure
from bridge.cli.parity.ops import OPS


def special(op: Any) -> Callable[[Any], Any]:
    """Parametrizes a test by the special rows of an op; each run of the suite draws some."""
    cases = [case for case in op.cases(False, op.FORMS) if "special" in case.place.values]
    names = [f"{c.form}-{c.dtypes}-{c.place.shape}-{c.place.values}" for c in cases]
    grid = pytest.mark.parametrize("case", cases, ids=names)
    return lambda test: pytest.mark.whole(pytest.mark.sampled(3)(grid(test)))


def assert_passes(case: Any) -> None:
    import jax

    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        rows = measure(case, "cpu", own_quick=True)
    failed = [(row.quantity, row.differing, row.torch, row.jax) for row in rows if not row.passed]
    assert rows
    assert not failed, failed


@special(bias_gelu)
def test_special_rows_of_bias_gelu(case: Any) -> None:
    assert_passes(case)


@special(softmax)
def test_special_rows_of_softmax(case: Any) -> None:
    assert_passes(case)


@special(bias_dropout_add)
def test_special_rows_of_bias_dropout_add(case: Any) -> None:
    assert_passes(case)


@special(catalogue)
def test_special_rows_of_the_catalogue(case: Any) -> None:
    assert_passes(case)


def test_every_op_of_the_command_is_here() -> None:
    assert set(OPS.values()) == {bias_gelu, softmax, bias_dropout_add, catalogue}
