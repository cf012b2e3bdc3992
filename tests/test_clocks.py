"""The suite reads no clock: tests count work, and `bench` measures times."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {
    "time": r"(time|perf_counter|monotonic|process_time|thread_time)(_ns)?|clock_gettime(_ns)?",
    "datetime": "now|utcnow|today",
    "date": "today",
    "timeit": r"\w+",
    "cProfile": r"\w+",
    "os": "times",
    "resource": "getrusage",
}
# Methods of any object: torch's CUDA events, and a module under another name.
METHODS = re.compile(rf"elapsed_time|{CLOCKS['time']}".replace("(time|", "("))
WRITTEN = re.compile(
    "|".join(rf"\b{module}\.(?:{names})\b" for module, names in CLOCKS.items())
    + rf"|\bfrom time import .*\b(?:{CLOCKS['time']})\b|\bimport (?:timeit|cProfile)\b"
)

# Files that may read the time, with the reason. None of them asserts on it.
ALLOWED = {
    "distributed/processes.py": "gives up a rank that does not answer, so that no test hangs",
    "lang/test_tracing.py": "declares an op while a profiler runs, and reads none of its times",
}


def is_clock(module: str, name: str) -> bool:
    return bool(re.fullmatch(CLOCKS.get(module, "(?!)"), name) or METHODS.fullmatch(name))


def clocks_in(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines that read a clock, also in scripts that are written as strings."""
    for node in ast.walk(ast.parse(text)):
        found = []
        if isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names if is_clock(node.module or "", alias.name)]
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
            found = [node.attr] if is_clock(owner, node.attr) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [match[0] for match in WRITTEN.finditer(node.value)]
        yield from ((node.lineno, name) for name in found)


def test_no_test_holds_a_clock() -> None:
    files = {str(path.relative_to(TESTS)): path for path in TESTS.rglob("*.py")}
    assert len(files) > 50
    found = {
        name: clocks
        for name, path in files.items()
        if path != Path(__file__) and (clocks := list(clocks_in(path.read_text())))
    }
    assert set(found) == set(ALLOWED), found


def test_no_check_in_cpp_holds_a_clock() -> None:
    checks = [*TESTS.glob("cpp/*_check.cpp"), *TESTS.glob("simt/*")]
    assert len(checks) > 5
    for path in checks:
        assert not re.search(r"<chrono>|<ctime>|timing\.h|clock_gettime", path.read_text()), path


@pytest.mark.parametrize(
    "line",
    [
        "timeit.timeit(run)",
        "from timeit import repeat",
        "from time import perf_counter",
        "from time import sleep, monotonic as now",
        "import time as t; t.perf_counter()",
        "import time; start = time.time()",
        "time.perf_counter_ns()",
        "clock = time.process_time",
        "datetime.datetime.now()",
        "start.elapsed_time(end)",
        "run('import time; print(time.monotonic())')",
        "run('from time import perf_counter')",
    ],
)
def test_the_search_finds_a_clock(line: str) -> None:
    assert list(clocks_in(line))


@pytest.mark.parametrize(
    "line",
    [
        "import time; time.sleep(1.0)",
        "from time import sleep",
        "datetime.timedelta(seconds=3)",
        "run('import time; time.sleep(1000)')",
        "'the time. Now it is measured by from_time'",
    ],
)
def test_the_search_finds_clocks_alone(line: str) -> None:
    assert not list(clocks_in(line))
