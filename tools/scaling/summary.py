"""The report in the terminal."""

from __future__ import annotations

from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from bridge.cli.terminal import print_table
from tools.scaling.tables import Table, tables

METHOD = (
    "Measured: torch.distributed's collectives over Gloo on loopback, float32, one thread for each "
    "process, into memory that is there. Cases take turns in rounds; between barriers each rank "
    "makes as many calls as fill its share, the slowest rank counts, the median of the rounds is "
    "shown. Bytes are those the kernel counted on rank 0's sockets. Fitted: T = c + κ·part + "
    "(n−1)·s·(α + part·β), s = max(1, n ÷ cores), coefficients ≥ 0 of the least squares of "
    "(T − t) ÷ t. Modelled: alpha-beta formulas with published peaks; nothing of it was run."
)
STYLES = {"measured": "green", "fitted": "cyan", "modelled": "yellow", "published": "magenta"}


def show(report: dict[str, Any], console: Console) -> None:
    """Prints everything."""
    for table in tables(report):
        print_table(console, _rich(table))
        if table.note:
            console.print(f"[dim]{escape(table.note)}[/]\n", highlight=False)
    console.print(f"[dim]{report['method']}[/]", highlight=False)
    for note in report["notes"]:
        console.print(f"[yellow]{note}[/]", highlight=False)
    made = report["machine"]
    console.print(f"{made['processor']}, {made['cores']} cores, {report['seconds']} s", style="dim")


def _rich(table: Table) -> RichTable:
    style = STYLES[table.kind]
    title = f"[{style}]{table.kind.capitalize()}[/]: {escape(table.title)}"
    made = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.header):
        is_source = name == "source"
        justify: Literal["left", "right"] = "left" if i < table.texts or is_source else "right"
        made.add_column(name.replace(", ", ",\n"), justify=justify, no_wrap=not is_source)
    previous = None
    for row in table.rows:
        # What the row above says is not said again.
        first = "" if row[0] == previous else row[0]
        made.add_row(*map(escape, (first, *row[1:])))
        previous = row[0]
    return made
