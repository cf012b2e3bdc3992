"""Kernels on a CPU run on torch's own OpenMP threads.

After a matrix product torch's workers look out for their next job for milliseconds. A kernel on
other threads would share their cores and take twice as long.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from bridge import _native


def lend() -> None:
    """Gives the native module torch's OpenMP runtime, if there is one."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # Nothing new is loaded: the symbol is found as torch itself finds it.
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        functions = loaded.GOMP_parallel, loaded.omp_get_thread_num
    except (OSError, AttributeError):  # another platform, or a torch with other threads
        return
    _native.use_openmp(*[ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions])
