"""Commands of the library run wherever it is installed; bench, scaling and demo in its tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pathspec
import pytest

from bridge import _native
from bridge.cli.commands import NOT_INSTALLED

ROOT = Path(__file__).resolve().parents[2]
OF_THE_TREE = ("bench", "scaling", "demo")
# An editable install would answer for `bridge` before the path is searched.
RUN = (
    "import runpy, sys\n"
    "if (folder := sys.argv.pop(1)) != {root!r}:\n"
    "    sys.meta_path = [f for f in sys.meta_path if 'ScikitBuildRedirecting' not in repr(f)]\n"
    "sys.path.insert(0, folder)\n"
    "{first}\n"
    "runpy.run_module('bridge', run_name='__main__', alter_sys=True)"
)


def put_tools(folder: Path) -> Path:
    """Makes a package `tools` that is not ours."""
    for name in OF_THE_TREE:
        (folder / "tools" / name).mkdir(parents=True)
        (folder / "tools" / name / "__init__.py").write_text("raise SystemExit('not ours')")
    (folder / "tools" / "__init__.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as a wheel lays it out, beside somebody's package `tools`."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "bridge", folder / "bridge", ignore=ignored)
    shutil.copy(_native.__file__, folder / "bridge")
    return put_tools(folder)


def run(folder: Path, *arguments: str, first: str = "") -> subprocess.CompletedProcess[str]:
    code = RUN.format(first=first, root=str(ROOT))
    command = [sys.executable, "-c", code, str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [[], ["--quick"], ["--help"]], ids=" ".join)
@pytest.mark.parametrize("command", OF_THE_TREE)
def test_outside_the_source_tree_a_tool_ends_with_one_line(site, command, arguments):
    result = run(site, command, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"bridge {command}: {NOT_INSTALLED}\n"


def test_outside_the_source_tree_the_library_s_commands_run(site):
    result = run(site, "info", "--json")
    assert result.returncode == 0, result.stderr
    assert str(site) in result.stdout


@pytest.mark.parametrize("installed", [True, False])
def test_help_says_what_runs_here(site, installed):
    result = run(site if installed else ROOT, "--help")
    assert result.returncode == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert words.count("not installed with the library") == (3 if installed else 0)
    assert "parity torch against JAX" in words


def test_somebody_s_package_of_that_name_is_not_taken_for_ours(tmp_path):
    path = f"sys.path.insert(0, {str(put_tools(tmp_path))!r})"
    found = run(ROOT, "scaling", "--help", first=path)
    assert found.returncode == 0, found.stderr
    assert "--processes" in found.stdout
    taken = run(ROOT, "scaling", first=f"{path}; import tools")
    assert taken.returncode == 2
    assert "finds another package than bridge's" in taken.stderr
    assert taken.stderr.count("\n") == 1


def test_the_wheel_holds_the_package_alone_and_the_sdist_the_tools_too():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert build["wheel"]["packages"] == ["bridge"]
    assert not [path for name in OF_THE_TREE for path in (ROOT / "bridge").rglob(f"{name}*")]
    left_out = [*(ROOT / ".gitignore").read_text().splitlines(), *build["sdist"]["exclude"]]
    left_out = pathspec.GitIgnoreSpec.from_lines(left_out)
    assert left_out.match_file("out/report.html")
    assert not left_out.match_file("tools/bench/command.py")
