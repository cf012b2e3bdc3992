"""The site: every page is in its navigation, and the reference has every public name.

`make site` itself is not run here: it needs packages of its own.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bridge
from tests.test_docs import code_of

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
INSIDE = re.findall(r"(\S+\.md)$", NAVIGATION.partition("- Inside:")[2], re.MULTILINE)
# A drop-in module is a file of bridge/torch.
DROP_INS = "bridge.torch.{}"
DROP_IN_FILES = [file.stem for file in (ROOT / "bridge" / "torch").glob("[!_]*.py")]
# The page of each public module.
MODULES = {
    "bridge.jax.nnx": "nnx.md",
    "bridge.jax.optim": "optim.md",
    "bridge.testing": "testing.md",
    **{f"bridge.{name}": f"{name}.md" for name in ("torch", "jax", "lang")},
    **{DROP_INS.format(stem): f"{stem}.md" for stem in DROP_IN_FILES},
    "bridge": "bridge.md",
}
of_each_module = pytest.mark.parametrize("module", sorted(MODULES))
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
MOST_WORDS = 120


def public_names(module: ModuleType) -> dict[str, Any]:
    """Returns the public names that a page has an entry for, with their values.

    Names that need the other framework are not in `__all__`; modules have pages of their own, and
    a name of `bridge` that another module has too stands on the page of `bridge`.
    """
    names = {*(getattr(module, "__all__", ()) or _defined_in(module))}
    names |= {*getattr(module, "_OF_JAX", ()), *getattr(module, "_OF_TORCH", ())}
    values = {name: getattr(module, name) for name in sorted(names)}
    return {
        name: value
        for name, value in values.items()
        if not isinstance(value, ModuleType)
        and (module is bridge or getattr(bridge, name, None) is not value)
    }


def _defined_in(module: ModuleType) -> list[str]:
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"^ +- (?:.+: )?(\S+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(named) == PAGES


@of_each_module
def test_the_reference_has_every_public_name(module: str) -> None:
    """An entry besides is a class that a public function returns or raises."""
    page = REFERENCE / MODULES[module]
    entries = ENTRY.findall(page.read_text())
    names = public_names(importlib.import_module(module))
    missing = [name for name in names if f"{module}.{name}" not in entries]
    assert not missing, f"enter them in {page.relative_to(ROOT)}: {missing}"
    own = [e.removeprefix(f"{module}.") for e in entries if e.startswith(f"{module}.")]
    gone = [name for name in own if name not in names and "." not in name]
    assert not gone, f"{page.relative_to(ROOT)} has entries of no public name: {gone}"
    assert len(entries) == len({*entries})


@of_each_module
def test_every_public_name_has_an_example(module: str) -> None:
    """The example stands in the docstring or on the page, whose code tests/test_docs.py runs."""
    code = code_of(REFERENCE / MODULES[module])
    without = [
        name
        for name, value in public_names(importlib.import_module(module)).items()
        if ">>>" not in (value.__doc__ or "") and not re.search(rf"\b{name}\b", code)
    ]
    assert not without, f"write an example for each of them: {without}"


@pytest.mark.parametrize("module", [*map(DROP_INS.format, sorted(DROP_IN_FILES))])
def test_the_arguments_of_drop_in_functions_are_described(module: str) -> None:
    """Names of originals say little: `Args` tells shape and meaning of each argument."""
    without = {}
    for name, value in public_names(importlib.import_module(module)).items():
        if not inspect.isfunction(value):
            continue
        described = (value.__doc__ or "").partition("Args:")[2]
        missing = [p for p in inspect.signature(value).parameters if not _has_entry(described, p)]
        if missing:
            without[name] = missing
    assert not without, f"write Args for them: {without}"


def _has_entry(text: str, parameter: str) -> bool:
    """True if a line of Args names the parameter before its colon, alone or with others."""
    return re.search(rf"(?:^ +|, |; ){parameter}(?:, \w+)*: ", text, re.MULTILINE) is not None


@of_each_module
def test_examples_of_docstrings_run(module: str) -> None:
    """They know the frameworks and the names of their module, and give the printed results."""
    home = importlib.import_module(module)
    names = public_names(home)
    frameworks = {n: importlib.import_module(n) for n in ("bridge", "numpy", "torch", "jax")}
    shorter = {"jnp": frameworks["jax"].numpy, "nnx": importlib.import_module("flax.nnx")}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    said: list[str] = []
    for name, value in names.items():
        start = {**frameworks, **shorter, **names}
        example = doctest.DocTestParser().get_doctest(
            value.__doc__ or "", start, f"{module}.{name}", None, 0
        )
        runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in INSIDE])
def test_paragraphs_are_short(page: str) -> None:
    """No paragraph and no entry of a list has more words than a reader takes in at once."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n\n", re.sub(r"\]\([^)]*\)", "]", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not paragraph.lstrip().startswith("|"):
            count = len(paragraph.split())
            assert count <= MOST_WORDS, f"{count} words: {paragraph.strip()[:60]}"
