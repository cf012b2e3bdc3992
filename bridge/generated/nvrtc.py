"""NVRTC, NVIDIA's compiler as a library, called by its C functions; it needs no GPU or toolkit.

The CUDA builds of torch and jax bring it as a wheel, in a folder `nvidia`. It compiles in a process
of its own, whose program is this file: a process that exits while NVRTC compiles would crash, and a
process told to exit would have to wait.

    python nvrtc.py LIBRARY OPTION ... SOURCE -o MADE
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Paths of the library in the wheels, of any version, and in a toolkit.
_IN_WHEELS = ("nvidia/*/lib/libnvrtc.so.*", "nvidia/*/lib64/libnvrtc.so.*")
_IN_TOOLKITS = ("lib64/libnvrtc.so*", "lib/libnvrtc.so*", "targets/*/lib/libnvrtc.so*")
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_NAMES = ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")


class NvrtcError(RuntimeError):
    """An error of NVRTC, with its message."""


def places() -> list[str]:
    """Describes the places where the library is looked for."""
    return [
        "the folders nvidia beside Python's packages",
        " and ".join(_TOOLKITS),
        f"the loader's path ({', '.join(_NAMES)})",
    ]


def _candidates() -> Iterator[str]:
    for folder in dict.fromkeys(sys.path):
        for pattern in _IN_WHEELS if folder else ():
            with contextlib.suppress(OSError):
                yield from sorted(map(str, Path(folder).glob(pattern)), reverse=True)
    for variable in _TOOLKITS:
        for pattern in _IN_TOOLKITS if os.environ.get(variable) else ():
            yield from sorted(map(str, Path(os.environ[variable]).glob(pattern)), reverse=True)
    yield from _NAMES


class Nvrtc:
    """The opened library.

    Attributes:
      version: such as (13, 0) for CUDA 13.0.
      command: the command that compiles in another process; options and files follow it.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.command = (sys.executable, "-I", "-S", str(Path(__file__).resolve()), path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = self._library.nvrtcGetErrorString
            text.restype = ctypes.c_char_p
            raise NvrtcError(f"{name}: {text(code).decode()}")

    def cubin(self, source: str, options: Sequence[str]) -> bytes:
        """Compiles a source to machine code.

        Raises:
          NvrtcError: with NVRTC's message, if the source cannot be compiled.
        """
        program = ctypes.c_void_p()
        name = b"program.cu"
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), name, 0, None, None
        )
        try:
            texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            try:
                self._call("nvrtcCompileProgram", program, len(options), texts)
            except NvrtcError as error:
                log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode()
                raise NvrtcError(f"{error}\n{log[-2000:]}") from None
            return self._bytes("nvrtcGetCUBIN", program)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _bytes(self, name: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(name, program, content)
        return content.raw


def _opened(path: str) -> Nvrtc:
    # NVRTC loads its builtins by name alone, which finds a library that is open already.
    for beside in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if "/" in path else ():
        ctypes.CDLL(str(beside))
    return Nvrtc(path)


@functools.cache
def find_nvrtc() -> Nvrtc | None:
    """Opens NVRTC from the wheels, a toolkit or the loader's path; None if there is none."""
    for path in _candidates():
        with contextlib.suppress(OSError, AttributeError, NvrtcError):
            return _opened(path)
    return None


def _main() -> None:
    library, *options, source, _, made = sys.argv[1:]
    try:
        cubin = _opened(library).cubin(Path(source).read_text(), options)
    except NvrtcError as error:
        sys.exit(str(error))
    Path(made).write_bytes(cubin)


if __name__ == "__main__":
    _main()
