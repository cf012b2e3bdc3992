"""The terminal: where tables go, and the progress bar of the long commands beside them."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def terminal() -> Console:
    """Returns the console for tables; piped, it is wide enough for all of them."""
    console = Console()
    return console if console.is_terminal else Console(width=110)


def bar() -> Progress:
    """Returns a bar on stderr (a piped table stays clean) that disappears when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
