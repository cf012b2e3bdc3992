"""Every fault of scripts/planted_faults still has its place, and a test that can detect it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from scripts.planted_faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.whole
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_place_of_a_fault(fault: Any) -> None:
    assert (ROOT / fault.file).read_text().count(fault.original) == 1
    file, _, test = fault.tests.partition("::")
    function, _, _ = test.partition("[")
    assert f"def {function}" in (ROOT / file).read_text()
    if fault.keyword:  # an expression of names, as pytest reads it
        ast.parse(fault.keyword, mode="eval")
