"""The environment of a run's numbers: versions, processor, commit."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import bridge
from bridge import _cuda_files
from bridge._installed import VERSIONS
from bridge.cli.errors import CommandError

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "ml_dtypes")


def require(package: str) -> ModuleType:
    """Imports a package.

    Raises:
      CommandError: if the package, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise lacks(error.name or package) from error


def lacks(package: str) -> CommandError:
    """Returns the error for a missing package, given its name or the name of a module in it."""
    package = package.partition(".")[0]
    wanted = f"'{package}{VERSIONS[package]}'" if package in VERSIONS else package
    return CommandError(
        f"this command needs {package}, which is not installed: pip install {wanted}"
    )


def versions() -> dict[str, str | None]:
    """Returns the versions of bridge and its packages, None for a missing package."""
    found: dict[str, str | None] = {
        "bridge": bridge.__version__,
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str | None:
    """Returns the commit of the source tree of this package, with "+" if it has changes."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()


def require_cuda() -> None:
    """Raises:
    CommandError: if bridge finds no CUDA device.
    """
    if not bridge.has_cuda():
        raise CommandError(f"--device cuda: {_cuda_files.why_not()}")


def load(doubtful: str) -> tuple[float, list[str]]:
    """Returns the machine's load, and a note if it makes the `doubtful` results unreliable."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if busy <= 0.5 * cores():
        return busy, []
    where = f"other work was running (load {busy:.1f} on {cores()} cores)"
    return busy, [f"{where}: {doubtful} not to be relied on"]


def describe() -> dict[str, Any]:
    """Returns the record that every JSON file of the command line contains."""
    build = bridge.build_info()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "gpu": gpu_name(),
        },
        "build": build,
    }


def gpu_name() -> str | None:
    """Returns the name of the first CUDA device, None if none answers."""
    if not bridge.has_cuda():
        return None
    try:
        import torch
    except ModuleNotFoundError:
        return "a CUDA device"
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "a CUDA device"
