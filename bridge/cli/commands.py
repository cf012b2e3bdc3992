"""The commands by name, and the location of their modules: the package or its source tree."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from bridge.cli import machine
from bridge.cli.errors import CommandError

COMMANDS = {
    "info": ("bridge.cli.info", "print versions, instruction sets, threads and CUDA"),
    "parity": ("bridge.cli.parity", "compare torch's bits with JAX's, and both with float64"),
    "compare": ("bridge.cli.compare", "name the lines where a JAX port differs from its original"),
    "bench": ("tools.bench", "measure the speed beside the frameworks' own ops"),
    "scaling": ("tools.scaling", "measure all-gather here, and model it to 65,536 devices"),
    "demo": ("tools.demo.main", "run real models in torch and JAX, and write a report"),
}
NOT_INSTALLED = "not installed with the library: run it from bridge's source tree, built by `make`"
SOURCES = Path(__file__).resolve().parents[2]


def is_here(path: str) -> bool:
    """True if the module is installed, or in the source tree that contains the package."""
    return path.startswith("bridge.") or (
        (SOURCES / "pyproject.toml").is_file() and (SOURCES / "tools" / "bench").is_dir()
    )


def load(path: str) -> ModuleType:
    """Imports the module of a command.

    Raises:
      CommandError: if the module, or a package that it needs, is missing.
    """
    if not path.startswith("bridge."):
        if not is_here(path):
            raise CommandError(NOT_INSTALLED)
        _let_tools_be_ours()
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("bridge", "tools"):
            raise
        raise machine.lacks(error.name) from error


def _let_tools_be_ours() -> None:
    """Puts the source tree first on the path, which child processes inherit.

    Raises:
      CommandError: if `tools` is still another package.
    """
    if sys.path[0] != str(SOURCES):
        sys.path.insert(0, str(SOURCES))
    found = importlib.util.find_spec("tools")
    origin = Path(found.origin or "a namespace").resolve() if found is not None else None
    if origin != SOURCES / "tools" / "__init__.py":
        raise CommandError(f"`import tools` finds another package than bridge's: {origin}")
