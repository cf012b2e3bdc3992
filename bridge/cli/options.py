"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Files that a command may write, with a word for their contents.
FILES = {"json": "report", "jsonl": "rows", "html": "page", "plot": "plot", "export": "table"}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_SHARED: dict[str, dict[str, Any]] = {
    "device": {"choices": ("cpu", "cuda"), "default": "cpu", "help": "cpu is the default"},
    "quick": {"action": "store_true"},
    "json": _FILE,
    "jsonl": _FILE | {"help": "write each row as soon as it is known"},
    "html": _FILE,
    "export": _FILE,
    "against": _FILE,
    "plot": _FILE | {"help": "write a plot (.svg, .png, .pdf)"},
    "seconds": {
        "type": float,
        "metavar": "N",
        "help": "begin no case after N seconds, not counting imports, and report",
    },
}


def add(parser: argparse.ArgumentParser, **words: str | None) -> None:
    """Adds shared options by name, in this order, with these help texts, or the default if None."""
    for name, text in words.items():
        how = _SHARED[name] if text is None else _SHARED[name] | {"help": text}
        parser.add_argument(f"--{name}", **how)


def add_choice(
    parser: argparse.ArgumentParser, name: str, known: Iterable[str], metavar: str, words: str
) -> None:
    """Adds an option that takes some of the known names; the default is all of them."""
    known = tuple(known)
    parser.add_argument(
        f"--{name}",
        nargs="+",
        choices=known,
        default=known,
        metavar=metavar,
        help=f"{words}: {', '.join(known)}",
    )
