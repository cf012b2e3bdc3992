"""Fixtures of tests for promises about both frameworks."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks import FRAMEWORKS

# Thousands of programs run here, few of them twice; `tests/generated` compiles its own.
os.environ.setdefault("BRIDGE_COMPILE", "0")
os.environ.setdefault(
    "BRIDGE_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "compiled")
)


def commit() -> str:
    """The tested commit; empty outside of a clone or without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help="run N cases of each test, others for each commit; 0 runs all, of large grids too",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"sampled cases: drawn for commit {commit() or 'unknown'}"


def pytest_configure() -> None:
    gc.disable()  # collecting tests makes a million objects, and all of them stay


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draws N cases of each test, or as many as its marker `sampled` says; all of a `whole` one.

    Of tests that take `long`, or start processes, a quarter run, with one case each; if N is 1,
    half of the others run. A failure names its case. A test that the command line names runs as
    requested.
    """
    everywhere = config.getoption("--sample")
    if everywhere == 0 or any("::" in argument for argument in config.args):
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    seed, drawn = commit(), set()
    long = [name for name, cases in tests.items() if _is_long(cases[0])]
    others = [name for name in tests if name not in {*long}]
    left_out = random.Random(seed).sample(long, len(long) * 3 // 4 if everywhere else 0)
    left_out += random.Random(seed).sample(others, len(others) // 2 if everywhere == 1 else 0)
    for name in left_out:
        del tests[name]
    for name, cases in tests.items():
        is_whole = cases[0].get_closest_marker("whole") and everywhere != 1
        marker = cases[0].get_closest_marker("sampled")
        counts = [None if is_whole else everywhere, *(marker.args if marker else ())]
        if everywhere is not None and _is_long(cases[0]):
            counts.append(1)
        count = min((n for n in counts if n is not None), default=len(cases))
        chosen = random.Random(f"{seed} {name}").sample(cases, min(count, len(cases)))
        drawn |= {item.nodeid for item in chosen}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
    items[:] = [item for item in items if item.nodeid in drawn]
    # The longest come first: otherwise other workers would wait for the last one.
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def _is_long(item: pytest.Item) -> bool:
    """True for a case of 2 to 60 seconds of a test that is not `whole`."""
    if item.get_closest_marker("whole"):
        return False
    is_marked = item.get_closest_marker("long") or item.get_closest_marker("processes")
    return bool(is_marked) or item.nodeid.startswith(("tests/distributed/", "tests/cli/"))


@pytest.fixture(scope="session", autouse=True)
def nodes() -> None:
    """Makes C++ nodes record calls, unless a test disables them by this variable."""
    if os.environ.get("BRIDGE_TEST_NODES") != "0":
        # Imported here: with a fault planted in it, it cannot be imported.
        from bridge.generated import CompileError
        from bridge.torch._adapter import nodes

        with contextlib.suppress(CompileError):  # tests/torch/test_nodes.py reports it
            nodes.load()


@pytest.fixture(scope="session", autouse=True)
def verified() -> Iterator[None]:
    """Fails if a kernel of the build was wrong: the interpreter would hide it from the tests."""
    yield
    with contextlib.suppress(ImportError):  # of a planted fault
        from bridge import _native

        assert _native.rejected_programs() == 0, "stderr names the kernel"


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Excludes objects of other files from garbage collections.

    With the frameworks' caches of programs, a collection would take seconds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's name: equal numbers in every run, others per test."""
    return np.random.default_rng(list(request.node.name.encode()))
