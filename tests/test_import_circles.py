"""No two files import each other, even indirectly, lazily or for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bridge", "tools")


def module_of(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
    """Yields (module, name) of every import, also lazy ones and those for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: None if is_package and node.level == 1 else -node.level]
            base = ".".join(above) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            yield from ((source, alias.name) for alias in node.names)


def edges_of(root: Path, packages: Sequence[str]) -> dict[str, set[str]]:
    """Returns for each module of the packages the modules that it imports.

    An import of a name from a package counts as the module of that name, or else as the package's
    `__init__`, which has the name. Python also runs the `__init__` of every parent package; this
    does not count.
    """
    files = {
        module_of(file, root): file for name in packages for file in (root / name).rglob("*.py")
    }
    edges: dict[str, set[str]] = {}
    for module, file in files.items():
        tree = ast.parse(file.read_text())
        edges[module] = set()
        for source, name in imported(tree, module, file.name == "__init__.py"):
            target = f"{source}.{name}" if f"{source}.{name}" in files else source
            # A module with a stub is compiled: it is none of these files, and imports none of them.
            is_compiled = root.joinpath(*source.split("."), f"{name}.pyi").exists()
            if target in files and target != module and not is_compiled:
                edges[module].add(target)
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Returns sets of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(edges.get(module, ())):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(edges):
        if module not in index:
            visit(module)
    return sorted(found)


def test_no_circle() -> None:
    found = circles(edges_of(ROOT, PACKAGES))
    assert not found, "\n".join(f"these import each other: {', '.join(circle)}" for circle in found)


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    sources = {
        "__init__.py": "from package.top import name\n",
        "top.py": "from package import middle\nname = 1\n",
        "middle.py": "def f():\n    from package.inner import low\n",
        "inner/__init__.py": "",
        "inner/low.py": (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..top import name\n"
        ),
        "apart.py": "import package.inner.low\nimport os\n",
    }
    for file, source in sources.items():
        (package / file).write_text(source)
    assert circles(edges_of(tmp_path, ["package"])) == [
        ["package.inner.low", "package.middle", "package.top"]
    ]
    (package / "inner/low.py").write_text("from package import name\n")
    assert circles(edges_of(tmp_path, ["package"])) == [
        ["package", "package.inner.low", "package.middle", "package.top"]
    ]
    (package / "inner/low.py").write_text("from . import other\n")
    assert circles(edges_of(tmp_path, ["package"])) == []
