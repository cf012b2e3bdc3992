"""`python -m bridge parity` passes for every op on rows of zeros, extremes, infinities and NaN.

The test runs a sample of the grid in the suite; the command itself runs all of it.
"""

from __future__ import annotations

import pytest

from bridge.cli.parity.grid import Case, cases
from bridge.cli.parity.measure import measure

SPECIAL = {
    f"{case.form}-{case.dtypes}-{case.place.values}": case
    for case in cases(False)
    if "special" in case.place.values
}


@pytest.mark.whole
@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", SPECIAL.values(), ids=SPECIAL)
def test_special_rows(case: Case) -> None:
    import jax

    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        rows = measure(case, "cpu", own_quick=True)
    failed = [(row.quantity, row.differing, row.torch, row.jax) for row in rows if not row.passed]
    assert rows
    assert not failed, failed
