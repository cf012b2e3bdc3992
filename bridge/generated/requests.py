"""Requests to compile programs, and the thread that compiles them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

from bridge import _native
from bridge.generated.built_kernels import (
    REFUSED,
    Kernels,
    built_kernels,
    fixed_words,
    key_of,
    load_built_kernels,
)
from bridge.generated.cache import RejectedError, forget, give_way, log, stop
from bridge.generated.compiler import library_of
from bridge.generated.cuda_compiler import cubin_of
from bridge.lang.bytecode import words_of
from bridge.lang.dtypes import NUMBERS
from bridge.lang.emission.cpu import free_constants, source_of
from bridge.lang.emission.cuda import Emitted, cuda_source_of
from bridge.lang.program import Program

_Key = tuple[bytes, tuple[str, ...], str]


@dataclass(frozen=True)
class Request:
    """A program on arrays of given dtypes.

    Attributes:
      arithmetic: "float32" or "float64".
      dtypes: of its operands, then of its results.
      has_start: as in `words_of`.
      arch: the target architecture of GPUs, such as "sm_90"; "" for this processor.
      function: the public function that was called, for messages; "" for the program's own name.
    """

    program: Program
    arithmetic: str
    dtypes: tuple[str, ...]
    has_start: bool = False
    arch: str = ""
    function: str = ""

    def __str__(self) -> str:
        count = len(self.dtypes) - len(self.program.results)
        takes, gives = ", ".join(self.dtypes[:count]), ", ".join(self.dtypes[count:])
        return f"{self.name} ({takes} to {gives}) for {self.arch or _native.cpu_isa()}"

    @property
    def name(self) -> str:
        """The program's name with the public function's in it, such as "vjp of swiglu"."""
        derivative, of, own = self.program.name.rpartition(" of ")
        return f"{derivative}{of}{self.function or own}"

    @property
    def platform(self) -> str:
        return "cuda" if self.arch else "cpu"

    def words(self) -> bytes:
        return words_of(self.program, self.has_start)

    def dtype_numbers(self) -> list[int]:
        return [NUMBERS[dtype] for dtype in self.dtypes]

    def free(self) -> list[int]:
        """Returns the numbers of the free constants, which are read from the bytecode of each call.

        So one kernel runs programs that differ in them, such as in a parameter that changes with
        every step.
        """
        return free_constants(self.program, self.has_start)

    @functools.cached_property
    def key(self) -> _Key:
        """The cache key of machine code in the native module."""
        return fixed_words(self.words(), self.free()), self.dtypes, self.arch

    def compile(self) -> None:
        """Compiles the program, or finds it in the cache, and adds it to the native module.

        CUDA kernels are added on each device in use of the architecture. Machine code that the
        native module has already, from its own build or from before, is left alone.

        Raises:
          CompileError: if compiling or adding fails.
        """
        if self.is_there() or self.add_built_kernels():
            return
        path, add = self._for_cuda() if self.arch else self._for_cpu()
        try:
            add(self.words(), self.dtype_numbers())
        except REFUSED as error:
            if path is not None:
                forget(path)
            raise RejectedError(f"{self.program.name}: {error}") from error
        log.debug("loaded %s from %s", self, path or "memory")

    def lost(self, error: Exception, is_alone: bool) -> None:
        """Warns that calls stay in the interpreter; `is_alone` if only those of this program do."""
        if is_alone:
            what = f"{self.name} runs"
        else:
            # A derivative is called through its function.
            name = self.name.rpartition(" of ")[2]
            what = f"{name} and all programs that the build has not compiled run"
        where = " on CUDA" if self.arch else ""
        with contextlib.suppress(Warning):  # no caller could catch it as an error
            warnings.warn(
                f"{what} in bridge's interpreter{where}, several times slower than "
                f"compiled: {error} (BRIDGE_COMPILE=0 turns compiling and this warning off)",
                RuntimeWarning,
                stacklevel=3,
            )

    def is_there(self) -> bool:
        """True if this processor has the kernel, from the build or compiled before."""
        return not self.arch and _native.has_generated(
            self.words(), self.dtype_numbers(), _native.cpu_isa()
        )

    def _for_cpu(self) -> tuple[Path, Callable[[bytes, list[int]], None]]:
        isa, free = _native.cpu_isa(), self.free()
        source = source_of(self.program, self.arithmetic, self.dtypes, self.has_start, free)
        library = library_of(source, isa, str(self))

        def add(words: bytes, dtypes: list[int]) -> None:
            _native.add_generated(words, dtypes, free, isa, str(library))

        return library, add

    def add_built_kernels(self) -> bool:
        """Adds CUDA kernels compiled ahead of time, without a compiler or the cache.

        Returns:
          True if there are kernels for the program and no device refused them.
        """
        if not self.arch:
            return False
        key = key_of(self.words(), self.dtype_numbers(), self.free())
        if (found := built_kernels(self.arch).get(key)) is None:
            return False
        with contextlib.suppress(*REFUSED):
            self._add_to_devices(found.facts, found.image)
            log.debug("loaded %s, which came with the build", self)
            return True
        return False

    def emitted(self) -> Emitted:
        """Returns the CUDA C++ of the program, the same for every architecture."""
        of = self.program, self.arithmetic, self.dtypes, self.has_start
        return cuda_source_of(*of, self.free())

    def _add_to_devices(self, facts: list[int], image: bytes) -> None:
        kernels = Kernels(self.words(), self.dtype_numbers(), self.free(), facts, image)
        devices = range(_native.cuda_device_count())
        own = [device for device in devices if _native.cuda_arch(device) == self.arch]
        if all([kernels.add_to(device) for device in own]):
            _worker.partly.pop(self.key, None)
        else:
            _worker.partly[self.key] = kernels

    def _for_cuda(self) -> tuple[Path | None, Callable[[bytes, list[int]], None]]:
        if (known := _worker.partly.get(self.key)) is not None:
            return None, lambda words, dtypes: self._add_to_devices(known.facts, known.image)
        emitted = self.emitted()
        cubin = cubin_of(emitted.source, self.arch, str(self))
        facts = [*astuple(emitted)[1:]]
        return cubin, lambda words, dtypes: self._add_to_devices(facts, cubin.read_bytes())


class Job(Protocol):
    """The work of a worker thread: a `Request`, or another class like it."""

    @property
    def key(self) -> Any: ...

    @property
    def platform(self) -> str: ...

    def compile(self) -> None: ...

    def lost(self, error: Exception, is_alone: bool) -> None:
        """Reports an error, the first of its platform."""


# After so many rejected kernels of a platform, nothing more is compiled for it.
_MOST_REJECTED = 3


class _Worker:
    """Compiles one request after the other, in a thread that begins with the first request."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.idle = threading.Condition(self.lock)
        self.seen: set[Any] = set()
        self.partly: dict[_Key, Kernels] = {}  # not yet added on devices that were not in use
        self.waiting = 0
        self.failed: set[str] = set()  # platforms
        self.rejected: Counter[str] = Counter()  # the number of programs, by platform
        self.thread: threading.Thread | None = None
        self.has_ended = False

    def ask(self, request: Job) -> None:
        with self.lock:
            if self.has_ended or request.key in self.seen or request.platform in self.failed:
                return
            self.seen.add(request.key)
            self.waiting += 1
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="bridge", daemon=True)
                self.thread.start()
        self.requests.put(request)

    def now(self, request: Job) -> None:
        with self.lock:
            if request.key in self.seen or request.platform in self.failed:
                return
            self.seen.add(request.key)
        self._attempt(request)

    def wait(self, seconds: float | None) -> bool:
        with self.idle:
            return self.idle.wait_for(lambda: self.waiting == 0, seconds)

    def end(self) -> None:
        """Stops compiling; leaves no partial file behind."""
        with self.lock:
            self.failed |= {"cpu", "cuda"}  # no warning if a compiler fails from now on
            self.has_ended = True  # a call in a later exit function starts no thread
        if self.thread is not None:
            stop()
            self.wait(5)

    def _run(self) -> None:
        give_way()
        while True:
            request = self.requests.get()
            try:
                if request.platform not in self.failed:
                    self._attempt(request)
            finally:
                with self.idle:
                    self.waiting -= 1
                    self.idle.notify_all()

    def _attempt(self, request: Job) -> None:
        try:
            request.compile()
        except Exception as error:  # calls stay in the interpreter, whatever the error
            with self.lock:
                self.rejected[request.platform] += 1
                # A rejected kernel says little about other programs; a missing compiler does.
                rejected = self.rejected[request.platform] < _MOST_REJECTED
                is_alone = isinstance(error, RejectedError) and rejected
                is_first = request.platform not in self.failed
                if not is_alone:
                    self.failed.add(request.platform)
            if is_first:
                request.lost(error, is_alone)


_worker = _Worker()
_other = _Worker()  # for other jobs than programs, which take long


def _begin_again() -> None:
    """Replaces the workers in a forked process, which has no threads; compiled kernels stay."""
    global _worker, _other
    _worker, _other = _Worker(), _Worker()


def _end() -> None:
    _worker.end()
    _other.end()


os.register_at_fork(after_in_child=_begin_again)
atexit.register(_end)


def archs_of(platform: str) -> list[str]:
    """Returns the architectures to compile for; "" stands for this processor."""
    if platform == "cpu":
        return [""]
    archs = [_native.cuda_arch(device) for device in range(_native.cuda_device_count())]
    return [arch for arch in dict.fromkeys(archs) if arch]


@functools.cache  # warns once
def _mode(said: str) -> str:
    if said in ("background", "now", "0"):
        return said
    if said:
        with contextlib.suppress(Warning):  # no caller could catch it as an error
            warnings.warn(
                f"BRIDGE_COMPILE is {said!r}, expected 'background', 'now' or '0': programs are "
                "compiled in the background",
                RuntimeWarning,
                stacklevel=2,
            )
    return "background"


def asked_for(
    program: Program,
    arithmetic: str,
    dtypes: Sequence[str],
    has_start: bool = False,
    platform: str = "cpu",
    function: str = "",
) -> None:
    """Requests a kernel for a program, unless BRIDGE_COMPILE is "0"; waits only if it is "now".

    `function` is the public function that was called, if known.
    """
    mode = _mode(os.environ.get("BRIDGE_COMPILE", ""))
    if mode == "0":
        return
    if platform == "cuda":
        load_built_kernels()
    for arch in archs_of(platform):
        request = Request(program, arithmetic, tuple(dtypes), has_start, arch, function)
        if request.key in _worker.partly:  # perhaps this call uses a further device
            _worker.seen.discard(request.key)
        if request.key in _worker.seen:
            continue
        if request.is_there():
            log.debug("%s is compiled: by the build, or before in this process", request)
        elif request.add_built_kernels():
            _worker.seen.add(request.key)
        elif mode == "now":
            _worker.now(request)
        else:
            log.debug("%s runs in the interpreter until it is compiled", request)
            _worker.ask(request)


def in_background(job: Job) -> None:
    """Runs another job under the same rules of BRIDGE_COMPILE as programs."""
    mode = _mode(os.environ.get("BRIDGE_COMPILE", ""))
    if mode == "now":
        _other.now(job)
    elif mode == "background":
        _other.ask(job)


def wait(timeout: float | None = None) -> bool:
    """Waits until nothing is being compiled in the background.

    This covers the programs of ops called so far, and the autograd recording of torch calls. Later
    calls of the same kind run the compiled code, or the code from before if compiling failed. Call
    it before measuring time and before a process forks.

    Args:
      timeout: the most seconds to wait; None for no limit.

    Returns:
      True if nothing is being compiled any more, False if the time is over before that.
    """
    start = time.monotonic()
    if not _worker.wait(timeout):
        return False
    return _other.wait(None if timeout is None else timeout - (time.monotonic() - start))
