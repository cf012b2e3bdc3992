"""`scripts/compare_models.py` measures rows, and the docs quote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import compare_models
from scripts.figures import models


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch.compile's
def test_a_row_is_measured_and_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bridge.cli.machine import describe

    row = next(compare_models.products(compare_models.QUICK_PRODUCTS))
    found = compare_models.measured(row, 2, 0.0)
    assert found["times"].keys() == found["spread"].keys() == compare_models.OTHERS.keys()
    assert all(ms > 0 for ms in found["milliseconds"].values())
    for other, own in compare_models.OTHERS.items():
        assert {other, own} <= found["milliseconds"].keys()
    report = {**describe(), "options": {"threads": 2, "device": "cpu"}, "rows": [found]}
    (tmp_path / models.RECORD).write_text(json.dumps(report))
    monkeypatch.setattr(models, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(models, "read", lambda name: json.loads((tmp_path / name).read_text()))
    assert "| linear, forward and backward | 32 × 16 × 8 |" in models.of_models()


def test_without_a_record_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "BENCHMARKS", tmp_path)
    assert models.of_models() == "Not measured yet."
