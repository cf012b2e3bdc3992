"""Makes CPU kernels run on torch's own OpenMP threads.

After a matrix product torch's workers spin for milliseconds, waiting for the next job. A kernel on
other threads would share their cores and take twice as long.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from bridge import _native


def lend() -> None:
    """Gives torch's OpenMP runtime to the native module, if torch has one."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # RTLD_NOLOAD loads nothing new: the symbols are the ones that torch itself uses.
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        functions = loaded.GOMP_parallel, loaded.omp_get_thread_num
    except (OSError, AttributeError):  # another platform, or a torch with other threads
        return
    _native.use_openmp(*[ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions])
