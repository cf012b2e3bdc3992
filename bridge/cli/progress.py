"""The progress bar of the long commands."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def bar() -> Progress:
    """Returns a bar on stderr (a piped table stays clean) that disappears at the end."""
    console = Console(stderr=True)
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),  # the last column is the one that is cut
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
