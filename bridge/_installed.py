"""Packages that a part of bridge needs, and the error for one that is not installed."""

from __future__ import annotations

import importlib
import re

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


def is_older(version: str, least: str) -> bool:
    """Returns True if a version such as "2.9.1+cpu" is below another; False for an unreadable one.

    A development version counts as the release that it leads to.
    """
    if not re.match(r"\d+\.\d+", version):
        return False
    found, wanted = ([*map(int, re.findall(r"\d+", text)[:3])] for text in (version, least))
    return found < wanted[: len(found)]
