"""An isolated build has neither NumPy nor a framework, and writes the same sources without them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CMAKE = ROOT / "cmake"
ALONE = ("-I", "-S")  # Python without installed packages


def run(*arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_the_build_requires_its_tools_alone() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert [text.partition(">=")[0] for text in required] == ["scikit-build-core", "nanobind"]


def test_the_table_of_operations_needs_no_numpy() -> None:
    run(*ALONE, str(CMAKE / "write_operations.py"), "--check")


@pytest.mark.parametrize(
    "arguments",
    [("v4", "v3", "none:base"), ("none:base",), ("cuda", "all"), ("hand",)],
    ids=lambda arguments: arguments[0].replace(":", "-"),
)
def test_the_sources_are_the_same_without_numpy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    written = []
    for options in ((), ALONE):
        folder = tmp_path / str(len(options))
        run(*options, str(CMAKE / "write_ahead_of_time.py"), str(folder), *arguments)
        written.append({path.name: path.read_text() for path in folder.iterdir()})
    assert written[0]
    assert written[0] == written[1]
