"""Library commands run wherever bridge is installed; bench, scaling and demo in its source tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy
import pathspec
import pytest

from bridge import _native
from bridge._installed import VERSIONS
from bridge.cli.commands import NOT_INSTALLED

ROOT = Path(__file__).resolve().parents[2]
OF_THE_TREE = ("bench", "scaling", "demo")
# An editable install would resolve `bridge` before the path is searched.
RUN = (
    "import runpy, sys\n"
    "if (folder := sys.argv.pop(1)) != {root!r}:\n"
    "    sys.meta_path = [f for f in sys.meta_path if 'ScikitBuildRedirecting' not in repr(f)]\n"
    "sys.path.insert(0, folder)\n"
    "{first}\n"
    "runpy.run_module('bridge', run_name='__main__', alter_sys=True)"
)


# Prints the name in an import error, and its message.
ONE_LINE = """
try:
    {}
except ModuleNotFoundError as error:
    print(error.name, error, sep=chr(10))
"""


def put_tools(folder: Path) -> Path:
    """Makes a package `tools` that is not bridge's."""
    for name in OF_THE_TREE:
        (folder / "tools" / name).mkdir(parents=True)
        (folder / "tools" / name / "__init__.py").write_text("raise SystemExit('not ours')")
    (folder / "tools" / "__init__.py").write_text("")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in the layout of a wheel, and another package `tools`."""
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


def test_outside_the_source_tree_a_table_of_hashes_is_compared(site, tmp_path):
    table = shutil.copy(ROOT / "docs" / "parity" / "x86-64-v3.txt", tmp_path)
    options = ("--quick", "--forms", "log_softmax", "--against", str(table))
    result = run(site, "parity", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "have the bits of the table" in result.stdout


@pytest.fixture(scope="module")
def bare(site: Path) -> Path:
    """A folder with only the package and NumPy."""
    folder = site.parent / "bare"
    folder.mkdir()
    for name, where in (("bridge", site / "bridge"), ("numpy", Path(numpy.__file__).parent)):
        (folder / name).symlink_to(where)
    if (libraries := Path(numpy.__file__).parents[1] / "numpy.libs").is_dir():
        (folder / "numpy.libs").symlink_to(libraries)
    return folder


def run_bare(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code without site-packages."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_info_needs_no_other_package(bare, arguments):
    code = f"from bridge.cli.main import main; sys.exit(main({['info', *arguments]}))"
    found = run_bare(bare, code)
    assert (found.returncode, found.stderr) == (0, "")
    if arguments:
        facts = json.loads(found.stdout)
        assert facts["torch"] == facts["jax"] == {"installed": False}
    else:
        assert found.stdout.startswith("bridge ")
        assert "instruction set in use" in found.stdout


@pytest.mark.parametrize("command", [["parity"], ["parity", "--help"]], ids=" ".join)
def test_parity_says_in_one_line_which_package_it_needs(bare, command):
    found = run_bare(bare, f"from bridge.cli.main import main; sys.exit(main({command}))")
    expected = "bridge parity: this command needs rich, which is not installed: pip install rich\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", expected)


@pytest.mark.parametrize(
    ("statement", "subject", "package"),
    [
        ("import bridge.torch", "bridge.torch", "torch"),
        ("import bridge.jax", "bridge.jax", "jax"),
        ("import bridge.jax.nnx", "bridge.jax", "jax"),
        ("import bridge.torch.megatron", "bridge.torch", "torch"),
        ("import bridge; bridge.to_jax", "bridge.to_jax", "torch"),
    ],
)
def test_an_import_says_which_framework_is_missing(bare, statement, subject, package):
    found = run_bare(bare, ONE_LINE.format(statement))
    assert found.returncode == 0, found.stderr
    expected = f"{subject} needs {package}, which is not installed: pip install '{package}>="
    assert found.stdout.startswith(f"{package}\n{expected}")
    assert found.stdout.count("\n") == 2


HIDDEN = """
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize(
    ("statement", "subject", "package"),
    [
        ("from bridge.torch import from_jax", "bridge.torch.from_jax", "jax"),
        ("from bridge.torch import JaxModule", "bridge.torch.JaxModule", "jax"),
        ("from bridge.jax import from_torch", "bridge.jax.from_torch", "torch"),
        ("from bridge import to_torch", "bridge.to_torch", "jax"),
        ("import bridge.jax.nnx", "bridge.jax.nnx", "flax"),
    ],
)
def test_what_needs_another_package_says_so(statement, subject, package):
    code = f"import sys\n{HIDDEN.format([package])}{ONE_LINE.format(statement)}"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr
    expected = f"{subject} needs {package}, which is not installed: pip install '{package}>="
    assert found.stdout.startswith(f"{package}\n{expected}")


def test_a_package_that_is_broken_keeps_its_own_error(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import no_such_part")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ONE_LINE}"
    code = code.format("import bridge.torch")
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.stdout == "no_such_part\nNo module named 'no_such_part'\n"


def test_models_of_transformers_are_served_without_it():
    code = f"import sys\n{HIDDEN.format(['transformers'])}import bridge.torch.huggingface"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_errors_name_the_versions_of_pyproject():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for package, versions in VERSIONS.items():
        assert any(f"{package}{versions}" in wanted for wanted in extras.values())


@pytest.mark.parametrize("installed", [True, False])
def test_help_says_what_runs_here(site, installed):
    result = run(site if installed else ROOT, "--help")
    assert result.returncode == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert words.count("not installed with the library") == (3 if installed else 0)
    assert "parity compare torch's bits with JAX's" in words


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
