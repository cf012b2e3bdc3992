"""The version, the changelog, the metadata and the workflows of a release agree."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import check_release
from scripts.exhaustive import parts

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def index_page(readme: str, source: str | None) -> str:
    spec = importlib.util.spec_from_file_location("index_page", ROOT / "cmake" / "index_page.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.index_page(readme, source)


def test_the_changelog_has_the_version() -> None:
    """Entries after a release stand under another title, without a number."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    numbered = re.search(r"^## \d.*\Z", changelog, re.MULTILINE | re.DOTALL)
    assert numbered is not None
    version = check_release.version()
    assert check_release.fault(f"v{version}", version, f"\n{numbered[0]}") is None


@pytest.mark.parametrize(
    ("tag", "changelog", "words"),
    [
        ("v1.2.3", "# C\n\n## 1.2.3\n\n### Upgrade from 1.1\n", None),
        ("v1.2.3", "# C\n\n## 1.2.3 (2030-01-31)\n\n### Upgrade\n\n## 1.2.2\n", None),
        ("1.2.3", "# C\n\n## 1.2.3\n\n### Upgrade\n", "the tag is 1.2.3, but"),
        ("v1.2.3", "# C\n\n## Unreleased\n\n## 1.2.3\n\n### Upgrade\n", "is Unreleased, expected"),
        ("v1.2.3", "# C\n\n## 1.2.3\n\n### Added\n\n### Upgrade\n", "no upgrade notes"),
    ],
)
def test_a_tag_that_is_no_release_is_refused(tag: str, changelog: str, words: str | None) -> None:
    reason = check_release.fault(tag, "1.2.3", changelog)
    assert reason is None if words is None else words in (reason or "")


def test_links_on_an_index_page() -> None:
    readme = "A [page](docs/a.md#b), [`x[0]`](x.md) and [one](https://e.org/).\n![](a.svg)\n"
    code = "```python\nx[0](y)\n```\n"
    assert index_page(readme + code, None) == (
        "A page, `x[0]` and [one](https://e.org/).\n\n" + code
    )
    assert index_page(readme + code, "https://e.org/tree/") == (
        "A [page](https://e.org/tree/docs/a.md#b), [`x[0]`](https://e.org/tree/x.md) and "
        "[one](https://e.org/).\n![](https://e.org/tree/a.svg)\n" + code
    )
    today = index_page((ROOT / "README.md").read_text(), None)
    assert not re.search(r"\]\((?!https?://|#)[\w./#-]+\)", re.sub(r"(?s)```.*?```", "", today))


def test_the_policy_names_the_versions_of_the_metadata() -> None:
    page = (ROOT / "docs" / "policy.md").read_text()
    rows = dict(re.findall(r"^\| (\w+).*? \| (.*?) \|", page, re.MULTILINE))
    wanted = [text for extra in PROJECT["optional-dependencies"].values() for text in extra]
    for package in ("torch", "jax"):
        text = next(each for each in wanted if re.match(rf"{package}[<>=]", each))
        least, major, above = re.fullmatch(rf"{package}>=(.*),<(\d+)\.(\d+)", text).groups()
        assert rows[package] == f"{least} to {major}.{int(above) - 1}"
    flax = next(each for each in wanted if each.startswith("flax>="))
    assert rows["flax"] == f"{flax.removeprefix('flax>=')} and newer"
    pythons = [name.rpartition(" :: ")[2] for name in PROJECT["classifiers"]]
    pythons = [name for name in pythons if re.fullmatch(r"3\.\d+", name)]
    assert rows["Python"] == f"{pythons[0]} to {pythons[-1]}"
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    built = [f"cp{name.replace('.', '')}-manylinux_*" for name in pythons]
    assert PYPROJECT["tool"]["cibuildwheel"]["build"] == built


def test_every_part_runs_every_night() -> None:
    """The nightly jobs share the parts of `make exhaustive`, and another runs `make versions`."""
    nightly = (WORKFLOWS / "nightly.yml").read_text()
    named = [
        p for line in re.findall(r'parts: "?(.*?)"?$', nightly, re.M) for p in shlex.split(line)
    ]
    for part in parts():
        assert sum(fnmatch.fnmatch(part, name) for name in named) == 1, part
    versions = (WORKFLOWS / "versions.yml").read_text()
    assert "run: python scripts/check_versions.py ${{ matrix.pair }}" in versions
    for text in (nightly, versions):
        assert re.search(r'cron: "\d+ \d+ \* \* \*"', text)


def test_workflows_and_forms_are_mappings() -> None:
    files = [*WORKFLOWS.glob("*.yml"), *(WORKFLOWS.parent / "ISSUE_TEMPLATE").glob("*.yml")]
    assert len(files) >= 7
    for file in [*files, ROOT / "CITATION.cff"]:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file


def test_workflows_name_files_of_the_tree() -> None:
    named = [
        name
        for file in WORKFLOWS.glob("*.yml")
        for name in re.findall(r"\bscripts/\w+\.\w+|\.ci/\w+", file.read_text())
    ]
    assert len(named) >= 4
    for name in named:
        assert (ROOT / name).is_file(), name


def test_the_notice_names_every_drop_in() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for module in (ROOT / "bridge" / "torch").glob("[!_]*.py"):
        assert re.search(rf"^bridge\.torch\.{module.stem} .* License", notice, re.MULTILINE)
    for pattern in PROJECT["license-files"]:
        assert [*ROOT.glob(pattern)], pattern
