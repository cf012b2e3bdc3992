"""Writes a local repository of Hugging Face's kernel hub."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bridge._version import __version__
from bridge.torch._drop_ins.huggingface import hub_layers

# One for each build of torch; both run the installed bridge.
_BACKENDS = ("cpu", "cuda")
_NAME = "bridge"
_MODULE = f'''"""The layers of bridge {__version__}, which must be installed."""

from {hub_layers.__name__.rpartition(".")[0]} import hub_layers as layers
'''


def write_kernels(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Writes a local repository of Hugging Face's kernel hub, for `kernels.kernelize`.

    The repository has no kernels of its own: its modules import the installed bridge. Write it
    again after an upgrade of bridge.

    Args:
      path: a folder that is new, empty or an earlier repository of bridge.

    Returns:
      The names of its layers, for `kernels.LocalLayerRepository(layer_name=...)`.

    Raises:
      FileExistsError: the path is a file, or a folder with other files; nothing is written then.

    Example:
      >>> import tempfile
      >>> "RMSNorm" in write_kernels(tempfile.mkdtemp())
      True
    """
    folder = Path(path)
    if folder.exists() and not _is_free(folder):
        raise FileExistsError(
            f"write_kernels: path is {os.fspath(path)!r}, which has other files, expected a new or "
            "empty folder, or a kernel repository of bridge"
        )
    for backend in _BACKENDS:
        variant = folder / "build" / f"torch-{backend}"
        variant.mkdir(parents=True, exist_ok=True)
        metadata = {
            "name": _NAME,
            "id": f"{_NAME}_{backend}_{__version__.replace('.', '_')}",
            "version": 1,
            "license": "Apache-2.0",
            "python-depends": [],
            "backend": {"type": backend},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
        (variant / "__init__.py").write_text(_MODULE)
    return hub_layers.NAMES


def _is_free(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    if all(each.is_dir() and not each.is_symlink() for each in folder.rglob("*")):
        return True  # empty, or an earlier call ended before its first file
    try:
        metadata = json.loads((folder / "build" / "torch-cpu" / "metadata.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("name") == _NAME
