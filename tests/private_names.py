"""Finds uses of a framework's private names in a source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

FRAMEWORKS = ("equinox", "flax", "jax", "jaxlib", "numpy", "torch")
_PATH = re.compile(rf"({'|'.join(FRAMEWORKS)})(\.\w+)*")
# Names of Python itself, which are documented.
_PYTHONS = {"_asdict", "_fields", "_getframe", "_make", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def has_private_part(path: str) -> bool:
    return path.split(".")[0] in FRAMEWORKS and any(map(is_private, path.split(".")))


def defined_in(trees: Iterable[ast.AST]) -> set[str]:
    """Returns names that these sources define themselves."""
    names: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                    names.add(name)
                case ast.ImportFrom(module=module, names=aliases):
                    if (module or "").split(".")[0] not in FRAMEWORKS:
                        names.update(alias.name for alias in aliases)
    return names


def private_names(tree: ast.AST, own: set[str], listed: set[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, name) for each use of a private name of a framework.

    Args:
      tree: the syntax tree of the source.
      own: names that the sources define themselves.
      listed: attributes that may be read anywhere.
    """
    roots: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                roots[alias.asname or first] = alias.name if alias.asname else first
                if has_private_part(alias.name):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                if path.split(".")[0] in FRAMEWORKS:
                    roots[alias.asname or alias.name] = path
                if has_private_part(path):
                    yield node.lineno, path
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name):
                path = ast.unparse(node)
                root = roots.get(path.split(".")[0], "").split(".")[0]
                is_foreign = name not in own | listed | _PYTHONS
                if root in FRAMEWORKS or is_foreign:
                    yield node.lineno, path
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, *rest]):
                if rest and isinstance(rest[0], ast.Constant) and is_private(str(rest[0].value)):
                    name = str(rest[0].value)
                    if name not in own | listed | _PYTHONS:
                        yield node.lineno, name
            case ast.Constant(value=str(text)) if _PATH.fullmatch(text):
                if has_private_part(text):
                    yield node.lineno, text
