"""The report in the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from bridge.cli.terminal import print_cells, print_method
from tools.scaling.tables import tables

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
    """Prints the report."""
    for table in tables(report):
        title = f"[{STYLES[table.kind]}]{table.kind.capitalize()}[/]: {escape(table.title)}"
        header = [name.replace(", ", ",\n") for name in table.header]
        sources = [i for i, name in enumerate(header) if name == "source"]
        rows = [list(map(escape, row)) for row in table.rows]
        left = (*range(table.texts), *sources)
        # Cells that equal the row above are left blank.
        print_cells(console, title, header, rows, left=left, wrap=sources, group=1)
        if table.note:
            console.print(f"[dim]{escape(table.note)}[/]\n", highlight=False)
    print_method(console, report["method"], report["notes"])
    made = report["machine"]
    console.print(f"{made['processor']}, {made['cores']} cores, {report['seconds']} s", style="dim")
