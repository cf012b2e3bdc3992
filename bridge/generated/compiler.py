"""The C++ compiler of this machine, and the libraries it compiles for its processor."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from bridge import _native
from bridge.generated.cache import (
    CompileError,
    cached,
    headers,
    headers_digest,
    run,
    version_of,
)

COMPILERS = ("g++", "clang++", "c++")


def find_compiler() -> list[str]:
    """Returns the compiler command: CXX of the environment, or the first of COMPILERS on the path.

    Raises:
      CompileError: if there is none.
    """
    try:
        named = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise CompileError(f"CXX is {os.environ['CXX']!r}: {error}") from error
    if named:
        if (found := shutil.which(named[0])) is None:
            raise CompileError(f"CXX is {shlex.join(named)!r}, which is not on the path")
        return [found, *named[1:]]  # absolute: the path may change, and versions are cached
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise CompileError(
        f"no C++ compiler: CXX is not set, and none of {', '.join(COMPILERS)} is on the path"
    )


def _flags(isa: str, version: str) -> list[str]:
    """Returns the flags, as in cpp/CMakeLists.txt: the bits of every result depend on them."""
    flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    flags += ["-fPIC", "-shared", "-fvisibility=hidden", "-DBRIDGE_ISA_NAMESPACE=generated", "-w"]
    if isa != "aarch64":
        flags.append(f"-march={isa}")
    if isa == "x86-64-v4":
        flags.append("-mprefer-vector-width=512")
    if "clang" not in version:
        # Per-row values select within loops; with these flags such loops stay free of branches.
        flags += ["-fno-tree-pre", "-fno-thread-jumps"]
    return flags


def library_of(source: str, isa: str, what: str = "a program") -> Path:
    """Returns a library compiled from C++ for an instruction set, new or from the cache.

    `what` is its name in the log.

    Raises:
      CompileError: if there is no compiler, or it fails, or the cache cannot be written.
    """
    command = find_compiler()
    version = version_of(tuple(command))
    flags = _flags(isa, version)

    def make(folder: Path) -> Path:
        text, made = folder / "program.cpp", folder / "program.so"
        text.write_text(source)
        run([*command, *flags, f"-I{headers()}", f"-I{headers() / 'include'}"], text, made)
        return made

    ours = headers_digest(), _native.build_info()["compiler"]
    return cached((source, version, *command, *flags, *ours), ".so", make, what=what)
