"""The C++ compiler of this machine, and the cache of what it made."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bridge import _native

COMPILERS = ("g++", "clang++", "c++")
_SECONDS = 300  # more than any program takes


class CompileError(RuntimeError):
    """A program could not be compiled; calls go on by the interpreter."""


@functools.cache
def _headers() -> Path:
    """Where the headers of the kernels are: beside this package, or in the source tree."""
    package = Path(__file__).parent.parent
    for folder in (package / "cpp", package.parent / "cpp"):
        if (folder / "interpreter" / "generated.h").is_file():
            return folder
    raise CompileError(f"the headers of the kernels are neither in {package} nor beside it")


@functools.cache
def _headers_digest() -> bytes:
    digest = hashlib.sha256()
    folder = _headers()
    for path in sorted(folder.rglob("*.h")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.digest()


def find_compiler() -> list[str]:
    """The command: the environment variable CXX's, or the first of COMPILERS that is on the path.

    Raises:
      CompileError: if there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise CompileError(f"CXX is {shlex.join(named)!r}, which is not on the path")
        return named
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise CompileError(
        f"no C++ compiler: CXX is not set, and none of {', '.join(COMPILERS)} is on the path"
    )


@functools.lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{shlex.join(command)} --version failed: {error}") from error
    return done.stdout


def _flags(isa: str, version: str) -> list[str]:
    """As cpp/CMakeLists.txt has them: the bits of every result rest on these."""
    flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    flags += ["-fPIC", "-shared", "-fvisibility=hidden", "-DBRIDGE_ISA_NAMESPACE=generated", "-w"]
    if isa != "aarch64":
        flags.append(f"-march={isa}")
    if isa == "x86-64-v4":
        flags.append("-mprefer-vector-width=512")
    if "clang" not in version:
        # What a row has one of decides within loops, which stay loops without branches so.
        flags += ["-fno-tree-pre", "-fno-thread-jumps"]
    return flags


def cache_folder() -> Path:
    """Of what was compiled: BRIDGE_CACHE_DIR, or bridge in the user's cache folder."""
    if own := os.environ.get("BRIDGE_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bridge"


def library_of(source: str, isa: str) -> Path:
    """A library compiled from C++ for an instruction set, new or from the cache.

    Any number of processes may ask for it at once: what is written gets its name when it is whole.

    Raises:
      CompileError: if there is no compiler, or it fails, or the cache cannot be written.
    """
    command = find_compiler()
    version = _version(tuple(command))
    flags = _flags(isa, version)
    digest = hashlib.sha256(_headers_digest())
    for part in (source, version, *command, *flags, _native.build_info()["compiler"]):
        digest.update(part.encode() + b"\0")
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder / f"{digest.hexdigest()}.so"
        if _is_whole(found):
            return found
        with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as work:
            text = Path(work, "program.cpp")
            text.write_text(source)
            made = Path(work, "program.so")
            _run([*command, *flags, f"-I{_headers()}", f"-I{_headers() / 'include'}"], text, made)
            content = made.read_bytes()
            made.replace(found)
            checksum = Path(work, "checksum")
            checksum.write_text(hashlib.sha256(content).hexdigest())
            checksum.replace(found.with_suffix(".sha256"))
        return found
    except OSError as error:
        raise CompileError(f"the cache cannot be used: {error}; set BRIDGE_CACHE_DIR") from error


def _is_whole(library: Path) -> bool:
    """Whether a library is there as it was written: loading half of one would end the process."""
    with contextlib.suppress(OSError):
        checksum = library.with_suffix(".sha256").read_text()
        return hashlib.sha256(library.read_bytes()).hexdigest() == checksum
    return False


def forget(library: Path) -> None:
    """Removes a library from the cache."""
    for path in (library, library.with_suffix(".sha256")):
        with contextlib.suppress(OSError):
            path.unlink()


_running: set[subprocess.Popen[str]] = set()


def stop() -> None:
    """Ends compilers that run: the process they are for ends."""
    for process in list(_running):
        process.kill()


def _run(command: Sequence[str], source: Path, library: Path) -> None:
    whole = [*command, str(source), "-o", str(library)]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(whole, stdin=nothing, stdout=nothing, stderr=pipe, text=True) as run:
            _running.add(run)
            try:
                errors = run.communicate(timeout=_SECONDS)[1]
            except subprocess.TimeoutExpired:
                run.kill()
                raise
            finally:
                _running.discard(run)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{shlex.join(whole)} failed: {error}") from error
    if run.returncode != 0:
        raise CompileError(f"{shlex.join(whole)} failed:\n{errors[-2000:]}")
