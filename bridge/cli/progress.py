"""The progress bar of the long commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def bar() -> Progress:
    """Returns a bar on stderr (a piped table stays clean) that disappears when it is done."""
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),  # last: the one to be cut
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
