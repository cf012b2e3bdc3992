"""Kernels that were generated for CUDA, compiled for the host emulator (tests/simt) under
AddressSanitizer and UndefinedBehaviorSanitizer: once for each text."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from bridge.generated.cache import cached, headers_digest
from bridge.generated.requests import _DTYPES, Request
from bridge.lang.bytecode import words_of
from bridge.lang.emission_cuda import cuda_source_of

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")

_FLAGS = [
    *("-std=c++17", "-O1", "-g1", "-w", "-ffp-contract=off", "-fvisibility=hidden", "-xc++"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    *(f"-I{ROOT / folder}" for folder in ("tests/simt", "cpp", "cpp/include")),
]
_SOURCES = [
    *("tests/simt/simt_emulator.cpp", "tests/simt/generated_simt.cpp", "cpp/cuda/last_error.cpp"),
    *(
        f"cpp/interpreter/{name}.cu"
        for name in ("interpreter", "generated_kernels", "generated_launch")
    ),
    *(f"cpp/interpreter/{name}.cpp" for name in ("packing", "program", "validate", "comparison")),
    "cpp/walks/columns/column_sums.cu",
]
# Headers of the tests, beside those of the kernels.
_HEADERS = [*(ROOT / "tests/simt").glob("*.h"), *(ROOT / "tests/cpp").glob("*.h")]


@contextmanager
def _lasting_cache() -> Iterator[None]:
    """What is compiled here serves later runs of the tests too."""
    before = os.environ.get("BRIDGE_CACHE_DIR")
    os.environ["BRIDGE_CACHE_DIR"] = str(ROOT / "build" / "emulated")
    try:
        yield
    finally:
        if before is None:
            del os.environ["BRIDGE_CACHE_DIR"]
        else:
            os.environ["BRIDGE_CACHE_DIR"] = before


def _compile(arguments: list[str]) -> None:
    subprocess.run([str(COMPILER), *arguments], check=True, timeout=600)


def program_of_emulator() -> Path:
    """tests/simt/generated_simt.cpp with all that it runs, compiled."""

    def make(folder: Path) -> Path:
        objects = []
        for number, source in enumerate(_SOURCES):
            objects.append(str(folder / f"{number}.o"))
            # The kernels find what the emulator offers them.
            flags = ["-fvisibility=default"] if "emulator" in source else []
            _compile([*_FLAGS, *flags, "-c", str(ROOT / source), "-o", objects[-1]])
        made = folder / "generated_simt"
        _compile(["-fsanitize=address,undefined", "-rdynamic", *objects, "-ldl", "-o", str(made)])
        return made

    texts = [(ROOT / source).read_text() for source in _SOURCES]
    texts += [path.read_text() for path in sorted(_HEADERS)]
    with _lasting_cache():
        return cached([*texts, headers_digest(), *_FLAGS], ".program", make)


def described(request: Request) -> str:
    """The line that tells `generated_simt` of a program, whose kernels are compiled."""
    free = request.free()
    emitted = cuda_source_of(
        request.program, request.arithmetic, request.dtypes, request.has_start, free
    )

    def make(folder: Path) -> Path:
        text, made = folder / "program.cpp", folder / "program.so"
        text.write_text(emitted.source)
        _compile([*_FLAGS, "-fPIC", "-shared", str(text), "-o", str(made)])
        return made

    with _lasting_cache():
        library = cached([emitted.source, headers_digest(), *_FLAGS], ".so", make)
    words = np.frombuffer(words_of(request.program, request.has_start), np.int32)
    dtypes = [_DTYPES.index(dtype) for dtype in request.dtypes]
    numbers = [*astuple(emitted)[1:]]
    for some in (dtypes, free, words):
        numbers += [len(some), *some]
    return " ".join([str(library), *map(str, numbers)])


def run(requests: list[Request], folder: Path, calls: int, seed: int) -> None:
    """Compares so many calls of each program with its definition, in all orders of threads."""
    description = folder / "description"
    description.write_text("\n".join(map(described, requests)) + "\n")
    done = subprocess.run(
        [str(program_of_emulator()), str(description), str(calls), str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    programs = "\n".join(str(request.program) for request in requests)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-4000:]}\n{programs}"
