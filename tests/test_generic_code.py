"""Code for any op names no op: it asks an op's definition for roles and properties."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.ops import OPS

ROOT = Path(__file__).resolve().parent.parent
GENERIC = (
    "bridge/torch/_adapter",
    "bridge/torch/_sharded",
    "bridge/jax/_adapter",
    "bridge/jax/_sharded",
    "bridge/ops/definition.py",
    "bridge/ops/batching.py",
    "bridge/ops/parts.py",
    "bridge/ops/splitting.py",
)
# Ops, their building blocks, and the classes named after them. The op for programs is generic.
OTHERS = {"dropout", "gelu", "softmax", "biasgelu", "biasdropout"}
WORDS = re.compile("|".join({*OPS, *OTHERS} - {"program"}), re.I)


def files() -> list[Path]:
    paths = [ROOT / path for path in GENERIC]
    return [file for path in paths for file in (sorted(path.glob("*.py")) or [path])]


def named_ops(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, word) for names and strings that name an op; comments and docstrings may."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        for field in ("id", "attr", "name", "asname", "arg", "module", "value"):
            word = getattr(node, field, None)
            if isinstance(word, str) and WORDS.search(word):
                yield getattr(node, "lineno", 0), word


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_generic_code_names_no_op(file: Path) -> None:
    assert not list(named_ops(file.read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "from bridge.ops import BIAS_GELU",
        "import bridge.ops.softmax",
        "if op.name == 'bias_dropout_add': pass",
        "def f(x): return x.softmax(-1)",
        "params = BiasDropoutAddParams(0, 1.0)",
        "f(dropout=1)",
    ],
)
def test_the_name_of_an_op_is_found(source: str) -> None:
    assert list(named_ops(source))
    assert not list(named_ops('"""softmax"""\nx = 1  # bias_gelu\n'))
