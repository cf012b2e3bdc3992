"""Packages that a part of bridge needs, and the error for one that is not installed."""

from __future__ import annotations

import importlib

# The versions that pyproject.toml names. An extra would need an index that has bridge.
VERSIONS = {"torch": ">=2.11,<2.16", "jax": ">=0.9.1,<0.13", "flax": ">=0.12.5"}


def need(name: str, package: str) -> None:
    """Imports a package for a module or function of bridge.

    Args:
      name: of the module or function, for the error.

    Raises:
      ModuleNotFoundError: if the package is not installed; `name` is the package. Another error of
        its import is left as it is.
    """
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"{name} needs {package}, which is not installed: "
            f"pip install '{package}{VERSIONS[package]}'",
            name=package,
        ) from None
