"""What is to be compiled, and the thread that has it done."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from bridge import _native
from bridge.generated.compiler import CompileError, forget, library_of, stop
from bridge.lang.bytecode import words_of
from bridge.lang.emission import source_of
from bridge.lang.program import Program

# As numbered in cpp/include/bridge/bridge.h.
_DTYPES = (
    *("float16", "bfloat16", "float32", "float64"),
    *("bool", "uint8", "int64", "uint32", "int8", "int16", "int32", "uint16", "uint64"),
)


@dataclass(frozen=True)
class Request:
    """A program on arrays of some dtypes.

    Attributes:
      arithmetic: "float32" or "float64".
      dtypes: of its operands, then of its results.
      has_start: as in `words_of`.
    """

    program: Program
    arithmetic: str
    dtypes: tuple[str, ...]
    has_start: bool = False

    def words(self) -> bytes:
        return words_of(self.program, self.has_start)

    def dtype_numbers(self) -> list[int]:
        return [_DTYPES.index(dtype) for dtype in self.dtypes]

    def compile(self) -> None:
        """Compiles it, or finds it in the cache, and hands it to the native module.

        What the native module has, from its own build or from before, is left alone.

        Raises:
          CompileError: if either fails.
        """
        isa, words, numbers = _native.cpu_isa(), self.words(), self.dtype_numbers()
        if _native.has_generated(words, numbers, isa):
            return
        source = source_of(self.program, self.arithmetic, self.dtypes, self.has_start)
        library = library_of(source, isa)
        try:
            _native.add_generated(words, numbers, isa, str(library))
        except (RuntimeError, ValueError, MemoryError) as error:
            forget(library)
            raise CompileError(f"{self.program.name}: {error}") from error


class _Worker:
    """Compiles one request after the other, in a thread that begins with the first."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.idle = threading.Condition(self.lock)
        self.seen: set[Request] = set()
        self.waiting = 0
        self.has_failed = False
        self.thread: threading.Thread | None = None

    def ask(self, request: Request) -> None:
        with self.lock:
            if request in self.seen or self.has_failed:
                return
            self.seen.add(request)
            self.waiting += 1
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="bridge", daemon=True)
                self.thread.start()
        self.requests.put(request)

    def now(self, request: Request) -> None:
        with self.lock:
            if request in self.seen or self.has_failed:
                return
            self.seen.add(request)
        self._attempt(request)

    def wait(self, seconds: float | None) -> bool:
        with self.idle:
            return self.idle.wait_for(lambda: self.waiting == 0, seconds)

    def end(self) -> None:
        """Stops compiling, and leaves no half of anything behind."""
        with self.lock:
            self.has_failed = True  # what fails now is not warned of
        if self.thread is not None:
            stop()
            self.wait(5)

    def _run(self) -> None:
        while True:
            request = self.requests.get()
            try:
                if not self.has_failed:
                    self._attempt(request)
            finally:
                with self.idle:
                    self.waiting -= 1
                    self.idle.notify_all()

    def _attempt(self, request: Request) -> None:
        try:
            request.compile()
        except CompileError as error:
            with self.lock:
                is_first, self.has_failed = not self.has_failed, True
            if is_first:
                with contextlib.suppress(Warning):  # as an error it has nobody to reach
                    warnings.warn(
                        f"declared ops run by bridge's interpreter, several times slower than "
                        f"compiled: {error} (BRIDGE_COMPILE=0 says that this is as it should be)",
                        RuntimeWarning,
                        stacklevel=2,
                    )


_worker = _Worker()


def _begin_again() -> None:
    """In a forked process the thread is gone; what was compiled is there."""
    global _worker
    _worker = _Worker()


os.register_at_fork(after_in_child=_begin_again)
atexit.register(lambda: _worker.end())


def asked_for(
    program: Program, arithmetic: str, dtypes: Sequence[str], has_start: bool = False
) -> None:
    """Has a program compiled, if BRIDGE_COMPILE lets it, and does not wait unless it says so."""
    mode = os.environ.get("BRIDGE_COMPILE", "background")
    if mode == "0":
        return
    request = Request(program, arithmetic, tuple(dtypes), has_start)
    if mode == "now":
        _worker.now(request)
    else:
        _worker.ask(request)


def compiled_now(program: Program, arithmetic: str, dtypes: Sequence[str]) -> None:
    """Has a program compiled, whatever BRIDGE_COMPILE says.

    Raises:
      CompileError: if that is not possible.
    """
    Request(program, arithmetic, tuple(dtypes)).compile()


def finished(seconds: float | None = None) -> bool:
    """Waits until all that was asked for is compiled; whether it is, after so many seconds."""
    return _worker.wait(seconds)
