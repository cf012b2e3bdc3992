"""`scripts/compare_vision.py` measures rows, and the docs quote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import compare_vision, vision_rows
from scripts.figures import vision

ROWS = [row for row in vision_rows.rows_of(quick=True) if row.what != "forward"]


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=[f"{row.op} {row.shape}" for row in ROWS])
def test_a_row_is_measured_and_quoted(
    row: vision_rows.Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridge.cli.machine import describe

    found = compare_vision.measured(row, 2, 0.0)
    names = {name for name, *_ in compare_vision.QUOTIENTS}
    assert found["times"].keys() == found["spread"].keys() == names == vision.COLUMNS.keys()
    assert len(found["milliseconds"]) == 6
    assert all(ms > 0 for ms in found["milliseconds"].values())
    means = compare_vision.means_of([found])
    assert means[row.op].keys() == names
    chosen = {"threads": 2, "device": "cpu"}
    report = {**describe(), "options": chosen, "means": means, "rows": [found]}
    (tmp_path / vision.RECORD).write_text(json.dumps(report))
    monkeypatch.setattr(vision, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(vision, "read", lambda name: json.loads((tmp_path / name).read_text()))
    assert f"| {row.op} | {row.what} | {row.shape} |" in vision.of_vision(row.op.split()[0])
    assert vision.of_vision("another") == "Not measured yet."


def test_without_a_record_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "BENCHMARKS", tmp_path)
    assert vision.of_vision("conv") == "Not measured yet."
