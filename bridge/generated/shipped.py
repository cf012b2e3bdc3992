"""CUDA kernels that came with the build: machine code of programs that training calls first.

They lie in an archive beside the native module; cmake/write_hot_programs.py writes what they are
compiled from. A device has all of them added at once, by the thread that calls the first program
there. Loading code may wait for the device: later that could be for ever, beside a collective which
itself waits for what this thread has yet to launch. That a stream is being captured is no obstacle:
while it loads, the library declares that the thread means no such stream, and it compares on a
stream of its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bridge import _native
from bridge.lang.bytecode import HEADER_WORDS

ARCHIVE = "bridge_cuda_programs.zip"
INDEX = "index.json"

# What the native module raises of kernels that a device cannot run, or not with the right bits.
REFUSED = (RuntimeError, ValueError, MemoryError)


class Kernels(NamedTuple):
    """What the native module is given of a program; see `Request` and `Emitted`."""

    words: bytes
    dtypes: list[int]
    free: list[int]
    facts: list[int]  # vector, cells, held, kinds, staged
    image: bytes

    def add_to(self, device: int) -> bool:
        """False if nothing uses the device yet."""
        words, dtypes, free, (vector, cells, held, kinds, staged), image = self
        return _native.add_generated_cuda(
            words, dtypes, free, device, image, vector, cells, held, kinds, staged
        )


Key = tuple[bytes, tuple[int, ...]]

_INT64 = 6  # as numbered in cpp/include/bridge/bridge.h: behind it are the other integers


def fixed_words(words: bytes, free: Sequence[int]) -> bytes:
    """A program without the constants that are read from a call's words, all bits of which are set:
    no constant is such a number."""
    fixed = bytearray(words)
    for number in free:
        start = 4 * (HEADER_WORDS + 2 * number)
        fixed[start : start + 8] = b"\xff" * 8
    return bytes(fixed)


def key_of(words: bytes, dtypes: Sequence[int], free: Sequence[int]) -> Key:
    """What kernels are made for, which read integers of any dtype."""
    return fixed_words(words, free), tuple([min(dtype, _INT64) for dtype in dtypes])


def _archive() -> Path:
    return Path(_native.__file__).with_name(ARCHIVE)


@functools.cache
def shipped(arch: str) -> dict[Key, Kernels]:
    """What came for an architecture; nothing of a damaged archive."""
    import zipfile

    found = {}
    # Whatever a damaged archive raises, among much else by its checksums: what is missing is
    # compiled.
    with contextlib.suppress(Exception), zipfile.ZipFile(_archive()) as archive:
        for name, (words, dtypes, free, facts) in json.loads(archive.read(INDEX)).items():
            with contextlib.suppress(Exception):
                kernels = Kernels(
                    bytes.fromhex(words), dtypes, free, facts, archive.read(f"{name}.{arch}.cubin")
                )
                found[key_of(*kernels[:3])] = kernels
    return found


_lock = threading.Lock()  # who comes second calls nothing before all is added
_loaded: set[int] = set()


def load_shipped(*devices: int) -> None:
    """Adds all that came for them to devices that the process uses: to these, or to any.

    What a device refuses is left out, and nothing is added where BRIDGE_COMPILE is 0.
    """
    wanted = set(devices or range(_native.cuda_device_count())) - _loaded
    if not wanted or os.environ.get("BRIDGE_COMPILE") == "0":
        return
    with _lock:
        for device in sorted(wanted - _loaded):
            if _add_all(device):
                _loaded.add(device)


def _add_all(device: int) -> bool:
    arch = _native.cuda_arch(device)
    for kernels in shipped(arch).values():
        with contextlib.suppress(*REFUSED):
            if not kernels.add_to(device):
                return False
    return arch != ""
