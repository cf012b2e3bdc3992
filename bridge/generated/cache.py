"""The cache of compiled kernels, and the runner of compilers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_SECONDS = 3600  # more than any program takes, even beside other busy processes
_NICENESS = 10
_DAY = 86400  # seconds

log = logging.getLogger("bridge")


class CompileError(RuntimeError):
    """A program could not be compiled; calls stay in the interpreter."""


class RejectedError(CompileError):
    """Compiled code cannot be loaded, or gives other bits than the interpreter."""


@functools.cache
def headers() -> Path:
    """Returns the folder of the kernels' headers: beside this package, or in the source tree."""
    package = Path(__file__).parent.parent
    for folder in (package / "cpp", package.parent / "cpp"):
        if (folder / "generated" / "cpu" / "row_driver.h").is_file():
            return folder
    raise CompileError(f"the headers of the kernels are neither in {package} nor beside it")


def _is_header(path: Path) -> bool:
    return path.suffix in (".h", ".cuh") or path.parent.name == "nvrtc"


@functools.cache
def headers_digest() -> str:
    """Returns a hash of all headers that programs include."""
    digest = hashlib.sha256()
    folder = headers()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and _is_header(path)):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    """Returns the cache folder: BRIDGE_CACHE_DIR, or bridge in the user's cache folder."""
    if own := os.environ.get("BRIDGE_CACHE_DIR"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bridge"


def cached(
    parts: Iterable[str],
    suffix: str,
    make: Callable[[Path], Path] | None,
    again: bool | None = None,
    what: str = "a program",
) -> Path:
    """Returns a file in the cache determined by `parts`, new or from before.

    Any number of processes may ask for it at once: a file gets its name when it is complete.

    Args:
      parts: everything that the file's contents depend on.
      suffix: of its name.
      make: make(folder) writes the file into an empty folder and returns its path; None only to
        look for the file.
      again: False to raise the error of a failure within the last day, in any process, True to
        try again; None if failures are not remembered.
      what: the name of the file's contents in the log.

    Raises:
      CompileError: if `make` fails or failed, if the cache cannot be written, or if the file is
        missing and `make` is None.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder / f"{digest.hexdigest()}{suffix}"
        if _is_whole(found):
            return found
        failure = found.with_suffix(".failed")
        if again is False and _is_of_today(failure):
            raise CompileError(
                f"{failure.read_text(errors='replace')}\nRemove {failure} to try again"
            )
        if make is None:
            raise CompileError("not compiled yet")
        _remove_abandoned(folder)
        start = time.monotonic()
        # No TemporaryDirectory: at exit it would be removed before its user stops.
        work = Path(tempfile.mkdtemp(dir=folder, prefix="new-"))
        try:
            try:
                made = make(work)
            except CompileError as error:
                if again is not None and not _is_ending.is_set():  # else it was stopped
                    failure.write_text(str(error))
                raise
            failure.unlink(missing_ok=True)
            content = made.read_bytes()
            made.replace(found)
            checksum = work / "checksum"
            checksum.write_text(hashlib.sha256(content).hexdigest())
            checksum.replace(found.with_suffix(".sha256"))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        log.info("compiled %s in %.1f s: %s", what, time.monotonic() - start, found)
        return found
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        if isinstance(error, CompileError):
            raise
        raise CompileError(
            f"the cache cannot be used: {error}; set BRIDGE_CACHE_DIR to a folder that this user "
            "can write"
        ) from error


@functools.cache
def _remove_abandoned(folder: Path) -> None:
    """Removes folders of killed processes after a day; no compiler runs that long."""
    for left in folder.glob("new-*"):
        if not _is_of_today(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_of_today(path: Path) -> bool:
    """True if the file exists and was written within a day."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime <= _DAY
    return False


def _is_whole(library: Path) -> bool:
    """True if a file has its checksum: loading a partial library would crash the process."""
    with contextlib.suppress(OSError):
        checksum = library.with_suffix(".sha256").read_bytes()
        return hashlib.sha256(library.read_bytes()).hexdigest().encode() == checksum
    return False


def forget(library: Path) -> None:
    """Removes a file from the cache."""
    for path in (library, library.with_suffix(".sha256")):
        with contextlib.suppress(OSError):
            path.unlink()


_own = threading.local()  # gives_way: the thread's compilers run at low priority
_running: set[subprocess.Popen[str]] = set()
_is_ending = threading.Event()


def stop() -> None:
    """Kills running compilers and those that start later, because the process ends."""
    _is_ending.set()
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a compiler and its children, whose pipes `communicate` waits for."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


@functools.lru_cache(maxsize=8)
def version_of(command: tuple[str, ...]) -> str:
    whole = [*command, "--version"]
    status, printed, errors = _finished(whole, 60)
    if status != 0:
        raise CompileError(f"{shlex.join(whole)} failed:\n{errors[-2000:]}")
    return printed


def check(command: list[str]) -> None:
    """Runs a command to its end.

    Raises:
      CompileError: if it fails.
    """
    status, _, errors = _finished(command, _SECONDS)
    if status != 0:
        raise CompileError(f"{shlex.join(command)} failed:\n{errors[-2000:]}")


def run(command: Sequence[str], source: Path, made: Path, linked: Sequence[str] = ()) -> None:
    """Runs a compiler that makes one file of another, and of libraries.

    Raises:
      CompileError: if it fails.
    """
    whole = [*command, str(source), "-o", str(made), *linked]
    check(whole)
    if not made.is_file():
        raise CompileError(f"{shlex.join(whole)} failed: it wrote nothing")


def give_way() -> None:
    """Lowers the priority of the compilers that this thread starts: nobody waits for them."""
    _own.gives_way = True


def _finished(command: list[str], seconds: float) -> tuple[int, str, str]:
    """Returns status, output and errors of a compiler, which does not outlive this process.

    Raises:
      CompileError: if it cannot be started, or takes longer.
    """
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            errors="replace",
            # No session of its own: Linux gives each session the same share of the processor,
            # whatever the niceness of its processes.
            process_group=0,
        ) as run:
            _running.add(run)
            try:
                if _is_ending.is_set():
                    _kill(run)
                # The group, because the compiler may have started child processes by now.
                if getattr(_own, "gives_way", False):
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PGRP, run.pid, _NICENESS)
                printed, errors = run.communicate(timeout=seconds)
            except BaseException:
                _kill(run)
                raise
            finally:
                _running.discard(run)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompileError(f"{shlex.join(command)} failed: {error}") from error
    return run.returncode, printed, errors
