"""Private names of each framework are in its files, and the package works without them."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.private_names import defined_in, private_names

ROOT = Path(__file__).resolve().parent.parent
PRIVATE = ROOT / "bridge" / "_private"
FILES = ("torch", "torch_distributed", "jax")
# It must ask if JAX is running without importing it, in a process that was just forked.
KNOWN = {("bridge/_fork.py", "jax._src.xla_bridge")}


@functools.cache
def sources() -> dict[Path, ast.AST]:
    files = [file for name in ("bridge", "tools") for file in sorted((ROOT / name).rglob("*.py"))]
    return {file: ast.parse(file.read_text()) for file in files if file.parent != PRIVATE}


@functools.cache
def listed() -> set[str]:
    """Returns private attributes that may be read outside of these files."""
    modules = [importlib.import_module(f"bridge._private.{name}") for name in FILES]
    paths = {entry.path for module in modules for entry in module.names.entries}
    return {path for path in paths if "." not in path}


def test_no_private_name_elsewhere() -> None:
    trees = sources()
    own, allowed = defined_in(trees.values()), listed()
    found = []
    for file, tree in trees.items():
        name = str(file.relative_to(ROOT))
        uses = {(line, use) for line, use in private_names(tree, own, allowed)}
        found += [f"{name}:{line}: {use}" for line, use in sorted(uses) if (name, use) not in KNOWN]
    assert not found, "\n" + "\n".join(found)


PLANTED = {
    "import torch._dynamo": "torch._dynamo",
    "from jax._src.core import Jaxpr": "jax._src.core.Jaxpr",
    "from torch import _VF": "torch._VF",
    "import torch\ntorch._C._nn.gelu(1)": "torch._C",
    "import numpy as np\nnp.core._dtype": "np.core._dtype",
    "from torch.autograd import forward_ad\nforward_ad._current_level": "forward_ad._current_level",
    "def f(tensor):\n    return tensor._is_zerotensor()": "tensor._is_zerotensor",
    "def f(x):\n    return getattr(x, '_backward_cls')": "_backward_cls",
    "import sys\nsys.modules.get('torch.utils._pytree')": "torch.utils._pytree",
}


@pytest.mark.parametrize("source", PLANTED)
def test_a_private_name_is_found(source: str) -> None:
    trees = sources()
    found = private_names(ast.parse(source), defined_in(trees.values()), listed())
    assert PLANTED[source] in [use for _, use in found]


def test_own_and_public_names_are_none() -> None:
    source = (
        '"""Of torch._C."""\nimport torch\nfrom bridge._private.torch import forward_ad\n'
        "class A:\n    def __init__(self):\n        self._x = torch.ones(1).__dlpack__()\n"
        "def f(a, x):\n    return a._x, x._base, forward_ad._current_level, x.__class__\n"
    )
    tree = ast.parse(source)
    assert not list(private_names(tree, defined_in([tree]), {"_base", "_current_level"}))


PARTS = 12


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_each_name_of_torch_can_be_lost(part: int) -> None:
    check_without_names(str(part), str(PARTS))


@pytest.mark.long
def test_all_names_of_torch_can_be_lost_that_are_not_needed() -> None:
    check_without_names()


def check_without_names(*arguments: str) -> None:
    version = importlib.import_module("torch").__version__
    result = subprocess.run(
        [sys.executable, "-m", "tests.torch.without_names", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(rows) > 1
    for row in rows:
        if row["needed"] and row["error"]:
            (path,) = row["paths"]
            expected = f"ImportError: bridge needs {path}, which torch {version} lacks"
            assert row["error"].startswith(expected), row
        else:
            assert row["error"] == "", row
