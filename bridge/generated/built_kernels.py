"""CUDA kernels compiled ahead of time, by the build: the programs that training calls first.

They lie in an archive beside the CUDA library; cmake/write_ahead_of_time.py writes their sources.
The thread that calls the first program on a device adds all of them to it at once. Loading code may
wait for the device. At a later time that could be for ever, beside a collective that itself waits
for work this thread has yet to launch. Loading works during the capture of a stream: the library
allows this thread's unrelated calls meanwhile, and it compares kernels on a stream of its own.
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

from bridge import _cuda_files, _native
from bridge.lang.bytecode import HEADER_WORDS
from bridge.lang.dtypes import INTEGERS, NUMBERS, OF_8_BITS

ARCHIVE = "bridge_cuda_programs.zip"
INDEX = "index.json"

# Errors of the native module for kernels that a device cannot run, or not with the right bits.
REFUSED = (RuntimeError, ValueError, MemoryError)


class Kernels(NamedTuple):
    """Arguments of the native module for the kernels of a program; see `Request` and `Emitted`."""

    words: bytes
    dtypes: list[int]
    free: list[int]
    facts: list[int]  # vector, cells, held, kinds, staged
    image: bytes

    def add_to(self, device: int) -> bool:
        """Adds the kernels to a device; returns False if nothing uses the device yet."""
        words, dtypes, free, (vector, cells, held, kinds, staged), image = self
        return _native.add_generated_cuda(
            words, dtypes, free, device, image, vector, cells, held, kinds, staged
        )


Key = tuple[bytes, tuple[int, ...]]


def fixed_words(words: bytes, free: Sequence[int]) -> bytes:
    """Returns the bytecode with all bits set in place of the free constants.

    No constant is such a number.
    """
    fixed = bytearray(words)
    for number in free:
        start = 4 * (HEADER_WORDS + 2 * number)
        fixed[start : start + 8] = b"\xff" * 8
    return bytes(fixed)


def key_of(words: bytes, dtypes: Sequence[int], free: Sequence[int]) -> Key:
    """Returns the cache key of kernels, which read integers of any dtype: int64 stands for them.

    Numbers of 8 bits, int8 among them, are written by kernels, and keep their dtype.
    """
    own = {NUMBERS[name] for name in INTEGERS if name not in ("uint8", *OF_8_BITS)}
    kept = tuple([NUMBERS["int64"] if dtype in own else dtype for dtype in dtypes])
    return fixed_words(words, free), kept


def _archive() -> Path:
    folder, why = _cuda_files.find()
    if folder is None:
        raise FileNotFoundError(why)
    return folder / ARCHIVE


@functools.cache
def built_kernels(arch: str) -> dict[Key, Kernels]:
    """Loads the kernels for an architecture; returns none from a damaged archive."""
    import zipfile

    found = {}
    # A damaged archive raises many kinds of errors, for example by its checksums. Missing kernels
    # are compiled.
    with contextlib.suppress(Exception), zipfile.ZipFile(_archive()) as archive:
        for name, (words, dtypes, free, facts) in json.loads(archive.read(INDEX)).items():
            with contextlib.suppress(Exception):
                kernels = Kernels(
                    bytes.fromhex(words), dtypes, free, facts, archive.read(f"{name}.{arch}.cubin")
                )
                found[key_of(*kernels[:3])] = kernels
    return found


_lock = threading.Lock()  # a second thread waits until all kernels are added
_loaded: set[int] = set()


def load_built_kernels(*devices: int) -> None:
    """Adds the kernels to these devices, by default to all devices that the process uses.

    Kernels that a device refuses are left out. Nothing is added if BRIDGE_COMPILE is 0.
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
    for kernels in built_kernels(arch).values():
        with contextlib.suppress(*REFUSED):
            if not kernels.add_to(device):
                return False
    return arch != ""
