"""The Python packages form the layers of docs/architecture.md, and none imports a higher layer."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.test_import_circles import PACKAGES, ROOT, circles, edges_of, imported, module_of

# The frameworks that a row of the table may import, in the words of its last cell.
FRAMEWORKS = {"neither": set(), "PyTorch": {"torch"}, "JAX": {"jax"}, "both": {"torch", "jax"}}
Rows = Sequence[tuple[Sequence[str], str]]


def rows_of(page: str) -> Rows:
    """Returns the layers and the last cell of each row of the table of Python's layers.

    A layer is a module or a package.
    """
    table = page.partition("| Python, from bottom to top |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [([named(path) for path in re.findall(r"`(.+?)`", row[0])], row[-1]) for row in rows]


def named(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def layer_of(module: str, layers: Sequence[str]) -> str:
    """Returns the layer that holds a module, the innermost of several; "" for none."""
    holding = [each for each in layers if f"{module}.".startswith(f"{each}.")]
    innermost = max(holding, key=len, default="")
    # `bridge/__init__.py` is the only file of its layer.
    return "" if innermost == "bridge" != module else innermost


def misplaced(edges: dict[str, set[str]], rows: Rows) -> list[str]:
    """Returns what contradicts the table: modules in no row, and imports that go up or around."""
    height = {layer: number for number, (layers, _) in enumerate(rows) for layer in layers}
    layer = {module: layer_of(module, [*height]) for module in edges}
    if lost := [f"{module} is in no row" for module in edges if not layer[module]]:
        return lost
    wrong = [f"{each} is empty" for each in height if each not in layer.values()]
    beside: dict[str, set[str]] = {each: set() for each in height}
    for module, targets in sorted(edges.items()):
        for target in sorted(targets):
            own, other = layer[module], layer[target]
            if height[other] > height[own]:
                wrong.append(f"{module} imports {target}, which stands above it")
            elif height[other] == height[own] and other != own:
                beside[own].add(other)
    return wrong + [f"these import each other: {', '.join(each)}" for each in circles(beside)]


def frameworks_of(file: Path, root: Path) -> set[str]:
    """Returns the frameworks that a file imports itself, or by their private names."""
    package = file.name == "__init__.py"
    found = imported(ast.parse(file.read_text()), module_of(file, root), package)
    names = {source.removeprefix("bridge._private.").partition(".")[0] for source, _ in found}
    return names & FRAMEWORKS["both"]


def test_no_import_goes_up() -> None:
    rows = rows_of((ROOT / "docs/architecture.md").read_text())
    wrong = misplaced(edges_of(ROOT, PACKAGES), rows)
    assert not wrong, "\n".join(wrong)


def test_each_row_imports_the_frameworks_of_its_last_cell() -> None:
    rows = rows_of((ROOT / "docs/architecture.md").read_text())
    layers = [layer for row, _ in rows for layer in row]
    own: dict[str, set[str]] = {layer: set() for layer in layers}
    for file in (file for name in PACKAGES for file in (ROOT / name).rglob("*.py")):
        own[layer_of(module_of(file, ROOT), layers)] |= frameworks_of(file, ROOT)
    for row, word in rows:
        assert set().union(*(own[layer] for layer in row)) == FRAMEWORKS[word], row


PAGE = """
| Python, from bottom to top | contents | frameworks |
|---|---|---|
| `package/low.py`, `package/beside.py` | x | neither |
| `package/middle` | y | both |
| `package/top.py` | z | JAX |

| `a` | b | c |
"""


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        (
            "middle/inner.py",
            "def f():\n    from package import top\n",
            "package.middle.inner imports package.top, which stands above it",
        ),
        (
            "beside.py",
            "TYPE_CHECKING = 0\nif TYPE_CHECKING:\n    from .middle.inner import f\n",
            "package.beside imports package.middle.inner, which stands above it",
        ),
        (
            "beside.py",
            "from package import low\n",
            "these import each other: package.beside, package.low",
        ),
        ("new.py", "", "package.new is in no row"),
    ],
)
def test_what_contradicts_the_table_is_found(
    tmp_path: Path, file: str, source: str, wrong: str
) -> None:
    package = tmp_path / "package"
    (package / "middle").mkdir(parents=True)
    for name in ("beside.py", "middle/inner.py"):
        (package / name).write_text("import jax\n")
    (package / "low.py").write_text("from package import beside\n")
    (package / "top.py").write_text("from package.middle import inner\nfrom . import low\n")
    rows = rows_of(PAGE)
    assert misplaced(edges_of(tmp_path, ["package"]), rows) == []
    (package / file).write_text(source)
    assert misplaced(edges_of(tmp_path, ["package"]), rows) == [wrong]


@pytest.mark.parametrize(
    ("source", "frameworks"),
    [
        ("import torch.nn\n", {"torch"}),
        ("def f():\n    from bridge._private.jax import names\n", {"jax"}),
        ("import bridge.torch\nimport torchvision\n", set()),
    ],
)
def test_frameworks_are_found(tmp_path: Path, source: str, frameworks: set[str]) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert frameworks_of(file, tmp_path) == frameworks
