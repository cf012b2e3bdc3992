"""The code in the README and in the docs runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.count_adapter_lines import ADAPTERS, BESIDES, FAMILIES

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def code_of(page: Path) -> str:
    return "\n".join(PYTHON.findall(page.read_text()))


# The frameworks are imported once, with the imports of torch.compile, which take longer than most
# pages. Each page runs in a forked child of that process, before either framework has started and
# without any import of bridge.
RUN = """
import os, runpy, sys
import jax, torch, torch._dynamo

failed = []
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        failed.clear()
        runpy.run_path(script, run_name="__main__")
        break
    if os.waitpid(child, 0)[1]:
        failed.append(script)
if failed:
    sys.exit("failed: " + ", ".join(failed))
"""


@pytest.mark.first
@pytest.mark.whole
@pytest.mark.parametrize("part", range(3))
def test_code_runs(part: int, tmp_path: Path) -> None:
    """All blocks of a page run in turn, with warnings as errors, until the process ends."""
    scripts = []
    for page in [p for p in PAGES if code_of(p)][part::3]:
        scripts.append(tmp_path / (str(page.relative_to(ROOT)).replace("/", "_") + ".py"))
        scripts[-1].write_text(code_of(page))
    # torch.func.jvp compiles torch's own decompositions with deprecated features.
    command = [sys.executable, "-W", "error", "-W", "ignore:::torch.jit._script", "-c", RUN]
    result = subprocess.run(
        [*command, *scripts], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.whole
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, place in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
        if place:
            headings = HEADING.findall((page.parent / target).read_text())
            plain = [re.sub(r"[^\w\- ]", "", heading).lower() for heading in headings]
            assert place in [words.replace(" ", "-") for words in plain], f"{target}#{place}"


@pytest.mark.parametrize("page", ["numerics.md", "invariance.md"])
def test_a_promise_names_its_test(page: str) -> None:
    """The page names a test for each rule, and the tests exist."""
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`(tests/[\w/]+\.(?:py|cpp))(?:::(\w+))?`", text)
    assert len(named) >= 8
    for file, test in named:
        content = (ROOT / file).read_text()
        assert not test or f"def {test}(" in content, f"{file} has no {test}"


def test_figures_are_those_of_the_files() -> None:
    """The figures of the pages equal the files of docs/benchmarks."""
    command = [sys.executable, str(ROOT / "scripts" / "quote_figures.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_a_family_takes_few_lines() -> None:
    """The limit excludes kernels and declarations, as docs/architecture.md says."""
    command = [sys.executable, str(ROOT / "scripts" / "count_adapter_lines.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout


def test_every_public_function_is_counted() -> None:
    """A file of public functions belongs to a family or stands besides."""
    package = ROOT / "bridge"
    files = {
        str(file.relative_to(package))
        for adapter in ADAPTERS
        for file in (package / adapter / "_ops").rglob("[!_]*.py")
    }
    families = {f"{adapter}/_ops/{family}.py" for adapter in ADAPTERS for family in FAMILIES}
    assert families <= files
    assert files - families <= BESIDES.keys()
