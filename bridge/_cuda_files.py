"""The files of the CUDA kernels: beside the native module, or in the package of bridge-ops-cuda13.

A build with nvcc puts them beside the native module. Wheels of the core have none;
`pip install 'bridge-ops[cuda13]'` adds the distribution that has them.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from bridge import _native
from bridge._version import __version__

LIBRARY = "libbridge_cuda.so"
PACKAGE = "bridge_ops_cuda13"
INSTALL = f"pip install 'bridge-ops[cuda13]=={__version__}'"
DRIVER = Path("/proc/driver/nvidia/version")


@functools.cache
def find() -> tuple[Path | None, str]:
    """Returns the folder of the files, or None and the reason why there is none to use."""
    beside = Path(_native.__file__).parent
    if (beside / LIBRARY).is_file():
        return beside, ""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if folder is None:
        return None, f"no CUDA kernels are installed: {INSTALL}, or a build with nvcc"
    version = _version_in(folder)
    if version != __version__:
        return None, f"bridge-ops-cuda13 has version {version}, bridge {__version__}: {INSTALL}"
    if not (folder / LIBRARY).is_file():
        return None, f"{folder} has no {LIBRARY}: {INSTALL} --force-reinstall"
    return folder, ""


def _version_in(folder: Path) -> str:
    """Returns the version that a copy of _version.py in a folder states."""
    try:
        found = re.search(r'__version__ = "(.*)"', (folder / "_version.py").read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"


def misfit(arch: str, compiled: Sequence[str]) -> bool:
    """Returns True if no kernel runs on an architecture.

    Args:
      arch: of a device, as in "sm_90".
      compiled: the architectures of the library, as in ["80", "90", "90-virtual"]. Machine code
        runs on later devices of the same major number, PTX on all later ones.
    """
    device = int(arch.removeprefix("sm_"))
    for text in compiled:
        number = int(text.removesuffix("-virtual"))
        same = text.endswith("-virtual") or number // 10 == device // 10
        if same and number <= device:
            return False
    return True


def why_not() -> str | None:
    """Says in one line why CUDA cannot be used, and what to do; None if it can."""
    if why := _native.cuda_unavailable():
        folder, missing = find()
        if missing:
            return why
        is_own = folder == Path(_native.__file__).parent
        return f"{why}: {'build bridge again' if is_own else f'{INSTALL} --force-reinstall'}"
    count = _native.cuda_device_count()
    if count == 0 and not DRIVER.exists():
        return "there is no NVIDIA driver: install one that runs CUDA 13 (580 or newer)"
    if count == 0:
        return (
            "no device answers: CUDA_VISIBLE_DEVICES may hide them, or the driver may be older "
            "than CUDA 13 needs (580)"
        )
    compiled = _native.cuda_archs().split(",")
    for device in range(count):
        if (arch := _native.cuda_arch(device)) and misfit(arch, compiled):
            return (
                f"device {device} is {arch}, and the kernels are compiled for "
                f"{', '.join(compiled)}: build bridge from source with "
                f"BRIDGE_CUDA_ARCHS={arch.removeprefix('sm_')}"
            )
    return None
