"""The headers of third_party are those of their packages, and the sources need each of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from scripts import check_headers
from scripts.check_headers import ORIGINS, THIRD_PARTY

ROOT = Path(__file__).resolve().parent.parent
HEADERS = {header for origin in ORIGINS for header in origin.headers}


def test_the_installed_packages_have_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A jaxlib with a newer API may differ."""
    status = check_headers.main()
    if status == 2:
        pytest.skip("neither package is installed")
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("minor", "status", "verdict"),
    [(3, 1, "FAILED"), (2, 1, "FAILED"), (4, 0, "a newer API")],
)
def test_a_difference_is_named(
    minor: int, status: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(THIRD_PARTY, tmp_path, dirs_exist_ok=True)
    header = tmp_path / "xla/ffi/api/c_api.h"
    text = header.read_text().replace("API_MINOR 3\n", f"API_MINOR {minor}\n")
    header.write_text(text + "// one line more\n")
    assert check_headers.main(lambda _: tmp_path) == status
    lines = capsys.readouterr().out.splitlines()
    changes = 1 if minor == 3 else 3
    assert lines[0] == f"jaxlib: {verdict}"
    assert lines[1] == f"  xla/ffi/api/c_api.h: {changes} lines differ (API 0.3 and 0.{minor})"
    assert lines[2:] == ["tvm_ffi: the same text"]
    assert check_headers.main(lambda _: None) == 2


def test_the_sources_include_every_header_and_no_other() -> None:
    """An included header is one of the standard library, of this project or of third_party."""
    include = re.compile(r'^\s*#\s*include\s*[<"]((?:xla|dlpack)/[^>"]+)[>"]', re.MULTILINE)
    found: set[str] = set()
    texts = [path.read_text() for path in (ROOT / "cpp").rglob("*") if path.is_file()]
    while texts:
        new = {*include.findall(texts.pop())} - found
        found |= new
        texts += [(THIRD_PARTY / header).read_text() for header in new]
    stored = {str(path.relative_to(THIRD_PARTY)) for path in THIRD_PARTY.rglob("*.h")}
    assert found == stored == HEADERS


def test_each_origin_has_a_licence_and_a_version_on_the_page() -> None:
    page = (THIRD_PARTY / "README.md").read_text()
    for origin in ORIGINS:
        folder = origin.versioned.partition("/")[0]
        assert "Apache License" in (THIRD_PARTY / folder / "LICENSE").read_text()
        major, minor = check_headers.version_of(THIRD_PARTY / origin.versioned)
        assert re.search(rf"`{folder}/.*\| {major}\.{minor} ", page)
