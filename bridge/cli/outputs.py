"""The files that a command writes: tried before it measures, for minutes, what they are to hold."""

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
    """Makes what the system refuses a CommandError that names option and path."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"--{option} {path}: {error.strerror or error}") from error


def check(options: argparse.Namespace) -> None:
    """Makes the folders of the files that are asked for.

    Raises:
      CommandError: if one of the files cannot be written, or a plot not in its format.
    """
    for option in FILES:
        path: Path | None = getattr(options, option, None)
        if path is None:
            continue
        with naming(option, path):
            with contextlib.suppress(FileExistsError):  # a file; `open` says it better
                path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            if not existed or path.is_file() or path.is_dir():  # a pipe is not opened twice
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
    """Writes the files that are asked for, before anything is printed: the terminal may be gone.

    Args:
      writers: by option, what writes a file other than the report in JSON.
    """
    for option, writer in {"json": _write_json, **writers}.items():
        if (path := getattr(options, option)) is not None:
            with naming(option, path):
                writer(report, path)


def _write_json(report: Report, path: Path) -> None:
    path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")


def name(options: argparse.Namespace, console: Console) -> None:
    """Prints which files there are."""
    for option, what in FILES.items():
        if (path := getattr(options, option, None)) is not None:
            console.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
