"""The files that a command writes; checked before a measurement that may take minutes."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bridge.cli.errors import CommandError
from bridge.cli.options import FILES

Report = dict[str, Any]


@contextlib.contextmanager
def naming(option: str, path: Path) -> Iterator[None]:
    """Turns an OSError into a CommandError that names option and path."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"--{option} {path}: {error.strerror or error}") from error


def check(options: argparse.Namespace) -> None:
    """Makes the folders of the requested files.

    Raises:
      CommandError: if a file cannot be written, or a plot has an unknown format.
    """
    for option in FILES:
        path: Path | None = getattr(options, option, None)
        if path is None:
            continue
        with naming(option, path):
            with contextlib.suppress(FileExistsError):  # a file; the error of `open` is clearer
                path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            if not existed or path.is_file() or path.is_dir():  # a pipe must not be opened twice
                path.open("ab").close()
            if not existed:
                path.unlink()
        if option == "plot":
            _check_format(path)


def _check_format(path: Path) -> None:
    from bridge.cli import machine

    machine.require("matplotlib")
    from matplotlib.figure import Figure

    known = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        names = ", ".join(f".{name}" for name in known)
        raise CommandError(f"--plot {path}: no picture format, expected {names}")


def write(
    options: argparse.Namespace, report: Report, **writers: Callable[[Report, Path], None]
) -> None:
    """Writes the requested files before anything is printed, because the terminal may be gone.

    Args:
      writers: for each option, the function that writes its file; JSON has a default.
    """
    for option, writer in {"json": _write_json, **writers}.items():
        if (path := getattr(options, option)) is not None:
            with naming(option, path):
                writer(report, path)


def _write_json(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


def name(options: argparse.Namespace, console: Console) -> None:
    """Prints the paths of the written files."""
    for option, what in FILES.items():
        if (path := getattr(options, option, None)) is not None:
            console.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
