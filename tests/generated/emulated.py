"""Generated CUDA kernels, compiled for the host emulator (tests/simt) with sanitizers.

They run under AddressSanitizer and UndefinedBehaviorSanitizer; each text is compiled once.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from bridge.generated.cache import cached, headers_digest
from bridge.generated.requests import Request
from bridge.lang.bytecode import words_of
from bridge.lang.dtypes import DTYPES, NUMBERS
from bridge.lang.emission.cuda import cuda_source_of

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++")

_FLAGS = [
    *("-std=c++17", "-O1", "-g1", "-w", "-ffp-contract=off", "-fvisibility=hidden", "-xc++"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    *(f"-I{ROOT / folder}" for folder in ("tests/simt", "cpp", "cpp/include")),
]


@contextmanager
def _lasting_cache() -> Iterator[None]:
    """Libraries compiled here are reused by later runs of the tests."""
    before = os.environ.get("BRIDGE_CACHE_DIR")
    os.environ["BRIDGE_CACHE_DIR"] = str(ROOT / "build" / "emulated")
    try:
        yield
    finally:
        if before is None:
            del os.environ["BRIDGE_CACHE_DIR"]
        else:
            os.environ["BRIDGE_CACHE_DIR"] = before


@functools.cache
def program_of_emulator() -> Path:
    """Builds tests/simt/generated_simt.cpp and returns its path.

    The build folder is the emulator's folder of `make check-cpp`.
    """
    folder = ROOT / "build" / "check-simt"
    folder.mkdir(parents=True, exist_ok=True)
    tools = str(Path(sys.executable).parent)  # cmake and ninja are packages of this environment
    environment = {**os.environ, "PATH": os.pathsep.join([tools, os.environ["PATH"]])}
    environment.pop("MAKEFLAGS", None)

    def cmake(*arguments: str) -> None:
        command = ["cmake", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"

    with FileLock(folder / "lock"):
        if not (folder / "build.ninja").is_file():
            options = ["-G", "Ninja", "-DBRIDGE_SIMT_SANITIZE=ON", "-DBRIDGE_SIMT_WITH_CPU=OFF"]
            cmake("-S", str(ROOT / "tests/simt"), "-B", str(folder), *options)
        cmake("--build", str(folder), "--target", "generated_simt")
    return folder / "generated_simt"


def described(request: Request) -> str:
    """Returns the line that describes a program to `generated_simt`, and compiles its kernels."""
    free = request.free()
    emitted = cuda_source_of(
        request.program, request.arithmetic, request.dtypes, request.has_start, free
    )

    def make(folder: Path) -> Path:
        text, made = folder / "program.cpp", folder / "program.so"
        text.write_text(emitted.source)
        command = [str(COMPILER), *_FLAGS, "-fPIC", "-shared", str(text), "-o", str(made)]
        subprocess.run(command, check=True, timeout=600)
        return made

    with _lasting_cache():
        library = cached([emitted.source, headers_digest(), *_FLAGS], ".so", make)
    words = np.frombuffer(words_of(request.program, request.has_start), np.int32)
    dtypes = [NUMBERS[dtype] for dtype in request.dtypes]
    numbers = [*astuple(emitted)[1:]]
    for some in (dtypes, free, words):
        numbers += [len(some), *some]
    return " ".join([str(library), *map(str, numbers)])


def described_by_hand(request: Request, parameters: int) -> str:
    """Returns the line that describes a program with kernels written by hand."""
    words = np.frombuffer(request.words(), np.int32)
    numbers: list[Any] = ["hand", 16 // DTYPES[request.dtypes[0]].bytes, 0, 0, 0, 0]
    for some in (request.dtype_numbers(), range(parameters), words):
        numbers += [len(some), *some]
    return " ".join(map(str, numbers))


def run(requests: list[Request], folder: Path, calls: int, seed: int) -> None:
    """Compares `calls` calls of each program with its definition, in all orders of threads."""
    run_described([described(request) for request in requests], requests, folder, calls, seed)


def run_described(
    lines: list[str], requests: list[Request], folder: Path, calls: int, seed: int
) -> None:
    description = folder / "description"
    description.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [str(program_of_emulator()), str(description), str(calls), str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )
    programs = "\n".join(str(request.program) for request in requests)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-4000:]}\n{programs}"
