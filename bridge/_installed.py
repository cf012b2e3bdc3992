"""The parts that an installation of bridge needs, and the error for a missing one."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

# The versions that pyproject.toml names. An extra would need an index that has bridge.
VERSIONS = {"torch": ">=2.11,<2.16", "jax": ">=0.9.1,<0.13", "flax": ">=0.12.5"}


def need(name: str, package: str) -> None:
    """Imports a package for a module or function of bridge.

    Args:
      name: of the module or function, for the error.

    Raises:
      ModuleNotFoundError: if the package is not installed; `name` is the package. Another error of
        its import is left as it is.
      ImportError: if the package is older than bridge supports. A newer one is tried: bridge names
        what has moved in it.
    """
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {package}, which is not installed: "
            f"pip install '{package}{VERSIONS[package]}'",
            name=package,
        ) from None
    installed = getattr(module, "__version__", "")
    if is_older(installed, VERSIONS[package].removeprefix(">=").partition(",")[0]):
        raise ImportError(
            f"{name} needs {package}{VERSIONS[package]}, and {package} {installed} is installed: "
            f"pip install '{package}{VERSIONS[package]}'",
            name=package,
        )


def why_no_native_module(error: ImportError, folder: Path | None = None) -> str:
    """Says in one line why the native module cannot be imported, and what to do.

    Args:
      error: of its import.
      folder: of the package; None for this one.
    """
    folder = Path(__file__).parent if folder is None else folder
    if not folder.is_dir():
        return (
            f"bridge cannot run from an archive, which {folder.parent} is: its native module is a "
            "shared library. Install it into a folder: pip install --target FOLDER bridge-ops"
        )
    if str(error.path).endswith(".so"):
        return (
            f"bridge's native module cannot be loaded: {error}. Install the wheel for this "
            "system: pip install --force-reinstall bridge-ops"
        )
    there = sorted(path.name for path in folder.glob("_native.*") if path.suffix != ".pyi")
    if there:
        version = ".".join(map(str, sys.version_info[:3]))
        tag = f"{sys.implementation.cache_tag}{sys.abiflags}"
        own = f"Python {version} ({tag}, {os.uname().machine})"
        return (
            f"bridge is installed for another Python: it has {', '.join(there)}, and this is "
            f"{own}. Install it with the pip of this Python: python -m pip install bridge-ops"
        )
    return (
        "bridge's native module is missing: this is the source folder, not an installed package. "
        "Run `make` or `pip install -e .` first, or leave the source folder."
    )


def is_older(version: str, least: str) -> bool:
    """Returns True if a version such as "2.9.1+cpu" is below another; False for an unreadable one.

    A development version counts as the release that it leads to.
    """
    if not re.match(r"\d+\.\d+", version):
        return False
    found, wanted = ([*map(int, re.findall(r"\d+", text)[:3])] for text in (version, least))
    return found < wanted[: len(found)]
