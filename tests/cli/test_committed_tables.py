"""The tables of docs/parity hold on this machine, and all machines have the same bits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bridge.cli.parity.grid import Case
from bridge.cli.parity.hashes import OPERANDS, cases_with_hashes, in_json
from bridge.cli.parity.setting import FRAMEWORKS
from bridge.cli.parity.table import read

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "parity"
WHOLE = read(FOLDER / "x86-64-v4.txt")
CASES = {f"{case.form}-{case.dtypes}-{case.place}": case for case in cases_with_hashes()}


@pytest.mark.whole
@pytest.mark.sampled(24)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_hold_here(case: Case) -> None:
    found = in_json(case, "cpu", FRAMEWORKS)
    assert len(found) == 1 + len(case.quantities)
    for row in found:
        stored = WHOLE.rows[case.form, case.dtypes, str(case.place), row["quantity"]]
        assert {*row["hashes"].values()} == {stored}, row


@pytest.mark.whole
def test_a_hash_follows_from_its_description() -> None:
    """The steps of docs/parity.md, without the code of the command."""
    import torch

    import bridge.torch

    case = CASES["log_softmax-float32-161x129"]
    y = bridge.torch.log_softmax(torch.from_numpy(case.operands()["x"]))
    digest = hashlib.sha256(b"forward float32 (161, 129) " + y.numpy().tobytes()).hexdigest()
    assert WHOLE.rows["log_softmax", "float32", "161x129", "forward"] == digest[:16]


@pytest.mark.whole
def test_the_table_has_every_case() -> None:
    """A new op, or a new shape, belongs into the tables."""
    every = [
        (case.form, case.dtypes, str(case.place), quantity)
        for case in CASES.values()
        for quantity in (OPERANDS, *case.quantities)
    ]
    assert len({*every}) == len(every)
    assert [*WHOLE.rows] == every


@pytest.mark.whole
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_all_machines_have_the_same_bits(path: Path) -> None:
    rows = read(path).rows.items()
    assert rows
    assert rows <= WHOLE.rows.items()
    assert path.stat().st_size < 600_000
