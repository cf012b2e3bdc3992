"""Every fault of scripts/planted_faults.py still has its place, and a test that can detect it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def faults() -> Any:
    spec = importlib.util.spec_from_file_location(
        "planted_faults", ROOT / "scripts" / "planted_faults.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks up its module here
    spec.loader.exec_module(module)
    return module.FAULTS


@pytest.mark.whole
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_place_of_a_fault(fault: Any) -> None:
    assert (ROOT / fault.file).read_text().count(fault.original) == 1
    file, _, test = fault.tests.partition("::")
    function, _, _ = test.partition("[")
    assert f"def {function}" in (ROOT / file).read_text()
    if fault.keyword:  # an expression of names, as pytest reads it
        ast.parse(fault.keyword, mode="eval")
