"""docs/settings.md has every environment variable and every build option, and no other."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"

_ROW = re.compile(r"^\| (`[A-Z].*?) \|", re.MULTILINE)
_GETENV = re.compile(r"\bgetenv\(\s*\"(\w+)\"")
_OPTION = re.compile(r"\boption\((\w+)|\bset\((\w+)[^()]*\bCACHE\b")
_OWN_OPTION = re.compile(r"\b(?:else)?if\(.*?\b(BRIDGE_\w+)")
_SET = re.compile(r"\b(?:set|list)\((?:APPEND )?(\w+)")
_CMAKE_ENVIRONMENT = re.compile(r"\$ENV\{(\w+)\}")
_SHELL = re.compile(r"\$\{([A-Z_]+):?-")
_MAKE_DEFAULT = re.compile(r"^(\w+) \?=", re.MULTILINE)
_MAKE_SET = re.compile(r"^(\w+) :?=", re.MULTILINE)
_MAKE_USED = re.compile(r"\$\((?:if )?\$?\(?([A-Z_]+)\)")
_OF_MAKE = {"MAKE", "CURDIR"}


class Unknown(Exception):
    """An expression reads a variable whose name cannot be found."""


def constants_of(tree: ast.Module) -> dict[str, list[str]]:
    """Returns texts in a module's constants, and starts of f-strings for variables, by name."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.JoinedStr) and isinstance(value.values[0], ast.Constant):
                texts = [f"{value.values[0].value}…"]
            else:
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                texts = [p.value for p in parts if isinstance(p, ast.Constant)]
            found[node.targets[0].id] = [text for text in texts if isinstance(text, str)]
    for node in ast.walk(tree):  # loops over a constant, whose name is in capital letters
        match node:
            case ast.For(target, ast.Name(id=name)) | ast.comprehension(target, ast.Name(id=name)):
                if name.isupper() and isinstance(target, ast.Name):
                    found[target.id] = found.get(name, [])
    return found


def is_environment(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def keys_in(tree: ast.Module) -> Iterator[ast.expr]:
    """Yields the expressions that name a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_environment(node.value):
            yield node.slice
        elif isinstance(node, ast.Compare) and is_environment(node.comparators[0]):
            yield node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, node.func.value
            is_asked = is_environment(of) and name in ("get", "setdefault", "pop")
            if is_asked or name == "getenv":
                yield node.args[0]


def in_python(source: str) -> set[str]:
    """Returns the environment variables of a Python source.

    Raises:
      Unknown: for an expression whose value cannot be found.
    """
    tree = ast.parse(source)
    constants, found = constants_of(tree), set()
    for key in keys_in(tree):
        if isinstance(key, ast.Constant):
            found.add(key.value)
        elif isinstance(key, ast.Name) and constants.get(key.id):
            found.update(constants[key.id])
        else:
            raise Unknown(f"line {key.lineno}: {ast.unparse(key)}")
    return found


def in_cmake(text: str) -> set[str]:
    """Returns options, and variables of this project that are read but set nowhere."""
    text = re.sub(r"#.*", "", text)
    options = {name for pair in _OPTION.findall(text) for name in pair if name}
    asked = {*_OWN_OPTION.findall(text)} - {*_SET.findall(text)}
    return options | asked | {*_CMAKE_ENVIRONMENT.findall(text)}


def in_make(text: str) -> set[str]:
    text = re.sub(r"^#.*", "", text, flags=re.MULTILINE).replace("$$(", "")
    used = {*_MAKE_USED.findall(text)} - {*_MAKE_SET.findall(text)} - _OF_MAKE
    return {*_MAKE_DEFAULT.findall(text)} | used


def files(*folders: str, suffixes: tuple[str, ...]) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return [path for path in found if path.suffix in suffixes and path.is_file()]


@functools.cache
def in_source() -> dict[str, str]:
    """Returns every variable and option, with one of the files that read it."""
    found: dict[str, str] = {}

    def note(path: Path, names: set[str]) -> None:
        found.update(dict.fromkeys(names, str(path.relative_to(ROOT))))

    for path in files("bridge", "scripts", "tools", "cmake", suffixes=(".py",)):
        note(path, in_python(path.read_text()))
    for path in files("cpp", suffixes=(".h", ".cpp", ".cu", ".cuh")):
        note(path, {*_GETENV.findall(path.read_text())})
    for path in files("scripts", suffixes=(".sh",)):
        note(path, {*_SHELL.findall(path.read_text())})
    lists = [ROOT / "CMakeLists.txt", *(ROOT / "cpp").rglob("CMakeLists.txt")]
    lists += files("cmake", "cpp", suffixes=(".cmake",))
    # A variable may be set in one file and read in another.
    note(lists[0], in_cmake("\n".join(path.read_text() for path in lists)))
    note(ROOT / "Makefile", in_make((ROOT / "Makefile").read_text()))
    return found


def on_page() -> list[str]:
    return [name for row in _ROW.findall(PAGE.read_text()) for name in re.findall(r"`(.*?)`", row)]


def test_the_page_has_every_setting() -> None:
    source = in_source()
    missing = {name: source[name] for name in sorted({*source} - {*on_page()})}
    assert not missing, f"enter them in docs/settings.md: {missing}"


def test_the_page_has_no_other() -> None:
    names = on_page()
    assert len(names) == len({*names})
    gone = sorted({*names} - {*in_source()})
    assert not gone, f"nothing reads them: {gone}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("os.environ.get('A')", {"A"}),
        ("os.environ['A'] = os.getenv('B', '')", {"A", "B"}),
        ("NAME = 'A'\nNAME in os.environ", {"A"}),
        ("ALL = ('A', 'B')\n[os.environ.get(each) for each in ALL]", {"A", "B"}),
        ("name = f'A{b}'\nos.environ.setdefault(name, '')", {"A…"}),
        ("run({**os.environ, 'C': ''})", set()),
    ],
)
def test_what_is_found_in_python(source: str, found: set[str]) -> None:
    assert in_python(f"import os\n{source}") == found


def test_a_name_that_is_not_found_is_an_error() -> None:
    with pytest.raises(Unknown, match=r"line 1: name\(\)"):
        in_python("os.environ.get(name())")


def test_what_is_found_elsewhere() -> None:
    text = 'option(A "x" ON)\nset(B "" CACHE PATH "x")\nset(C 1)\nif(BRIDGE_D AND $ENV{E})\nendif()'
    assert in_cmake(text) == {"A", "B", "BRIDGE_D", "E"}
    assert in_make("A ?= 1\nB := 2\n\t$(A) $(B) $(if $(C),1) $(MAKE) $$(D)\n") == {"A", "C"}
