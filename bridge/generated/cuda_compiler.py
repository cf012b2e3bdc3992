"""CUDA kernels compiled for an architecture by NVRTC or nvcc; no GPU is needed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bridge.generated.cache import CompileError, cached, headers, headers_digest, run, version_of
from bridge.generated.nvrtc import find_nvrtc, places

# The flags of cpp/cuda/CMakeLists.txt: the bits of every result depend on them.
_FLAGS = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
_ARCH = re.compile(r"sm_\d{2,3}[af]?")


def cubin_of(source: str, arch: str, what: str = "a program") -> Path:
    """Returns machine code compiled from CUDA C++ for an architecture, new or from the cache.

    Args:
      source: the output of `lang.emission.cuda`.
      arch: such as "sm_90".
      what: the program's name in the log.

    Raises:
      ValueError: if `arch` is not the name of an architecture.
      CompileError: if there is neither NVRTC nor nvcc, or it fails, or the cache cannot be written.
    """
    if not _ARCH.fullmatch(arch):
        raise ValueError(f"arch is {arch!r}, expected the name of an architecture as 'sm_90'")
    nvrtc = find_nvrtc()
    if nvrtc is not None:
        # The headers also have host functions; NVRTC compiles them for the device.
        options = ["-std=c++17", f"-arch={arch}", "-default-device", *_FLAGS]

        def make(folder: Path) -> Path:
            found = headers()
            paths = [f"-I{path}" for path in (found, found / "include", found / "cuda" / "nvrtc")]
            text, made = folder / "program.cu", folder / "program.cubin"
            text.write_text(source)
            try:
                run([*nvrtc.command, *options, *paths], text, made)
            except CompileError as error:
                raise CompileError(f"NVRTC {nvrtc.version} failed for {arch}: {error}") from error
            return made

        parts = source, headers_digest(), f"NVRTC {nvrtc.version}", *options
        return cached(parts, ".cubin", make, what=what)
    command = shutil.which("nvcc")
    if command is None:
        raise CompileError(
            f"no CUDA compiler: NVRTC is in none of {'; '.join(places())}, and nvcc is not on the "
            "path"
        )
    version = version_of((command,))
    options = ["-std=c++17", "-O3", "-cubin", f"-arch={arch}", *_FLAGS]

    def compile_by_nvcc(folder: Path) -> Path:
        text, made = folder / "program.cu", folder / "program.cubin"
        text.write_text(source)
        run([command, *options, f"-I{headers()}", f"-I{headers() / 'include'}"], text, made)
        return made

    parts = source, headers_digest(), version, command, *options
    return cached(parts, ".cubin", compile_by_nvcc, what=what)
