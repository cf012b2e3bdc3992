"""docs/caches.md names every cache, and no cache returns a value found under another setting."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cross.cache_probes import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "caches.md"
ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)


def rows(heading: str) -> dict[str, list[str]]:
    """Returns the rows of the table under a heading, by the name in the first column."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in ROW.findall(section)}


MEMOS = {"cache", "lru_cache", "cached_property"}
EMPTY = {
    *("dict", "set", "list", "deque", "OrderedDict", "defaultdict", "Counter", "SimpleQueue"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "local", "SimpleNamespace"),
}
# Objects of these packages live for one call: only variables of modules count.
OF_ONE_CALL = {"lang", "compared", "checked"}


def called(node: Any) -> str:
    """Returns the last part of the name in a decorator or a call."""
    while isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))


def is_empty(value: Any) -> bool:
    """True for a container that is filled later."""
    if isinstance(value, ast.Call) and called(value) == "field":
        return any(keyword.arg == "default_factory" for keyword in value.keywords)
    if isinstance(value, ast.Call):
        return called(value) in EMPTY and (not value.args or called(value) == "defaultdict")
    return isinstance(value, ast.Dict | ast.List) and not (
        value.keys if isinstance(value, ast.Dict) else value.elts
    )


class Scan(ast.NodeVisitor):
    """Finds names that may keep a value from one call to the next."""

    def __init__(self, path: Path) -> None:
        relative = path.relative_to(ROOT / "bridge").with_suffix("")
        self.module = relative.as_posix()
        self.of_one_call = relative.parts[0] in OF_ONE_CALL
        self.scopes: list[Any] = []
        self.found: set[str] = set()
        self.visit(ast.parse(path.read_text()))

    def add(self, *names: str) -> None:
        self.found.add(f"{self.module}:{'.'.join(names)}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scopes.append(node)
        self.generic_visit(node)
        self.scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        is_memo = any(called(decorator) in MEMOS for decorator in node.decorator_list)
        if is_memo and not (self.of_one_call and self.scopes):
            self.add(*(scope.name for scope in self.scopes), node.name)
        self.visit_ClassDef(node)  # type: ignore[arg-type]

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self.add(name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.assign(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.assign([node.target], node.value)
        self.generic_visit(node)

    def assign(self, targets: list[Any], value: Any) -> None:
        functions = [s for s in self.scopes if isinstance(s, ast.FunctionDef)]
        is_memo = isinstance(value, ast.Call) and called(value.func) in MEMOS and not functions
        if not is_memo and (not is_empty(value) or (self.of_one_call and self.scopes)):
            return
        for target in targets:
            if isinstance(target, ast.Attribute) and called(target.value) == "self":
                classes = [s.name for s in self.scopes if isinstance(s, ast.ClassDef)]
                self.add(*classes, target.attr)
            elif isinstance(target, ast.Name) and (
                not functions or target.id in captured(functions[-1])
            ):
                self.add(*(scope.name for scope in self.scopes), target.id)


def captured(function: ast.FunctionDef) -> set[str]:
    """Returns names that inner functions of this function use."""
    inner = [
        node
        for node in ast.walk(function)
        if node is not function and isinstance(node, ast.FunctionDef | ast.Lambda)
    ]
    return {n.id for each in inner for n in ast.walk(each) if isinstance(n, ast.Name)}


def in_python() -> set[str]:
    paths = [p for p in (ROOT / "bridge").rglob("*.py") if "cli" not in p.parts]
    return set().union(*(Scan(path).found for path in paths))


# A mutable variable that lives longer than a call.
VARIABLE = re.compile(r"^\s*(?:inline|static|thread_local)\s+(?!.*\bconst(?:expr)?\b)([^(;={]+)")


def in_cpp() -> Iterator[str]:
    for path in (ROOT / "cpp").rglob("*"):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh") or "simt" in path.parts:
            continue
        for line in path.read_text().splitlines():
            match = VARIABLE.match(line)
            if match and line[match.end() : match.end() + 1] in (";", "=", "{"):
                name = re.sub(r"\[.*", "", match.group(1)).split()[-1]
                yield f"{path.relative_to(ROOT).as_posix()}:{name}"


def test_every_cache_is_on_the_page() -> None:
    """The top of docs/caches.md says what a row must contain."""
    named = rows("What is remembered").keys() | rows("What is no cache").keys()
    found = in_python() | set(in_cpp())
    assert found - named == set(), "docs/caches.md lacks these caches"
    assert named - found == set(), "docs/caches.md has these, and the source has not"


def test_every_setting_is_flipped() -> None:
    assert rows("Settings").keys() == SETTINGS.keys()
    for name, cells in rows("What is remembered").items():
        for setting in re.findall(r"`([^`]+)`", cells[2]):
            assert setting in SETTINGS or setting.startswith("_"), (name, setting)


def test_a_new_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "bridge").mkdir()
    path = tmp_path / "bridge" / "new.py"
    path.write_text("""
import functools
_known = {}
memo = functools.lru_cache(8)(len)
@functools.cache
def f(): global last; last = 1
def g():
    seen: dict = {}
    work = []
    def h(x): seen[x] = 1
    return h
class C:
    def __init__(self): self._kept = set()
    @functools.cached_property
    def p(self): return 1
""")
    names = {"_known", "memo", "f", "last", "g.seen", "C._kept", "C.p"}
    assert Scan(path).found == {f"new:{name}" for name in names}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_cache_outlives_a_setting(setting: str) -> None:
    """Results equal those of a process that has seen one value; every cache has been filled."""
    filled = [
        name
        for name, cells in rows("What is remembered").items()
        if cells[-1] == "calls" and not name.startswith("cpp/")
    ]
    command = [sys.executable, "-m", "tests.cross.cache_probes", setting, json.dumps(filled)]
    # A background compilation could finish in one process and not in the other.
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "BRIDGE_COMPILE": "0"},
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    for phase, (cold, warm) in enumerate(zip(report["expected"], report["found"], strict=True)):
        for name, expected in cold.items():
            assert warm[name] == expected, (name, phase)
    assert report["empty"] == []
