"""docs/declare.md has every function of `bridge.lang`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from bridge import lang as bl

PAGE = Path(__file__).resolve().parents[2] / "docs" / "declare.md"


def test_the_page_has_every_function_of_bridge_lang() -> None:
    """Each function has one row, with the names of its arguments."""
    section = PAGE.read_text().partition("### The functions of bridge.lang")[2]
    section = section.partition("`print(op)`")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    rows = [row for cell in cells for row in re.findall(r"`(\w+)\((.*?)\)`", cell)]
    listed = dict(rows)
    assert len(listed) == len(rows)
    functions = {name: getattr(bl, name) for name in bl.__all__ if name.islower()}
    assert {*listed} == {*functions}
    for name, function in functions.items():
        assert listed[name] == ", ".join(inspect.signature(function).parameters), name
