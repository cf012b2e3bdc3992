"""The terminal of commands: its width, its characters, and tables that show all values."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Collection, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bridge.cli.streams import plain

PIPED_WIDTH = 110  # wide enough for every table
FOLDED_WIDTH = 24  # of a column whose long words may be broken
# The replacement of SIMPLE_HEAD on terminals that lack its line character.
ASCII_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
NO_BREAK = "\N{NO-BREAK SPACE}"


class _Console(Console):
    """Replaces characters that the terminal lacks before the layout."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(plain(text, self.encoding), **how)


def terminal() -> Console:
    """Returns the console for tables, with the width of the terminal, or COLUMNS if set."""
    console = _Console()
    if console.is_terminal or os.environ.get("COLUMNS", "").strip("0").isdigit():
        return console
    return _Console(width=PIPED_WIDTH)


def print_cells(
    console: Console,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    wrap: Collection[int] = (0,),
    group: int = 0,
    ruled: bool = False,
    styles: Sequence[str] | None = None,
) -> None:
    """Prints rows of cells under a header; nothing if there are none.

    Args:
      left: columns that are aligned left; the others have numbers.
      wrap: columns that may be wrapped.
      group: the number of leading cells that are left blank if the row above has the same ones.
      ruled: True to draw a line between these groups.
      styles: a style for each row.
    """
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(header):
        justify: Literal["left", "right"] = "left" if i in left else "right"
        table.add_column(name, justify=justify, no_wrap=i not in wrap)
    above: Sequence[str] | None = None
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        first = row[:group]
        if ruled and above not in (None, first):
            table.add_section()
        table.add_row(*([""] * group if first == above else first), *row[group:], style=style)
        above = first
    print_table(console, table)


def print_method(console: Console, method: str, notes: Sequence[str]) -> None:
    """Prints the method of a report, and the notes on this one."""
    console.print(f"[dim]{method}[/]", highlight=False)
    for note in notes:
        console.print(f"[yellow]{note}[/]", highlight=False)


def print_table(console: Console, table: Table) -> None:
    """Prints a table with all of its values.

    A table that is too wide wraps its wrappable columns. If that is not enough, each row becomes a
    paragraph.
    """
    if console.options.ascii_only and table.box is box.SIMPLE_HEAD:
        table.box = ASCII_HEAD
    unlimited = console.options.update(width=10_000)
    least, most = [], []
    for column in table.columns:
        cells = [console.measure(c, options=unlimited) for c in (column.header, *column.cells)]
        most.append(max(cell.maximum for cell in cells))
        words = most[-1] if column.no_wrap else max(cell.minimum for cell in cells)
        least.append(min(words, FOLDED_WIDTH) if column.overflow == "fold" else words)
    frame = console.measure(table, options=unlimited).maximum - sum(most)
    spare = console.width - frame - sum(least)
    if spare < 0:
        _print_rows(console, table)
        return
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = min(low + spare, high)
        spare -= column.width - low
    console.print(table)


def _print_rows(console: Console, table: Table) -> None:
    """Prints a paragraph for each row: its leading words, then each value after its header."""
    width = max(console.width, 20)

    def text(cell: Any) -> str:
        assert isinstance(cell, str)
        return plain(Text.from_markup(cell).plain, console.encoding)

    def wrapped(words: str, begin: str, indent: str) -> list[str]:
        how: dict[str, Any] = {"initial_indent": begin, "subsequent_indent": indent}
        return textwrap.wrap(words, width, break_on_hyphens=False, **how)

    headers = [text(column.header).replace("\n", " ") for column in table.columns]
    texts = [column.justify == "left" for column in table.columns]
    first = texts.index(False) if False in texts else len(texts)
    if table.title is not None:
        console.print(table.title, style="table.title", highlight=False)
    rows = zip(*(map(text, column.cells) for column in table.columns), strict=True)
    for row, cells in zip(table.rows, rows, strict=True):
        label = " ".join(filter(None, cells[:first]))
        values = [
            f"{header} {cell}".strip()
            for header, cell in zip(headers[first:], cells[first:], strict=True)
            if cell
        ]
        lines = ["  ".join([label, *values])]
        if len(lines[0]) > width:
            indent = " " * (len(label) - len(label.lstrip()) + 2)
            whole = [
                v if len(v) > width - len(indent) else v.replace(" ", NO_BREAK) for v in values
            ]
            lines = wrapped(label, "", indent) + wrapped("  ".join(whole), indent, indent)
        for line in lines:
            shown = escape(line.replace(NO_BREAK, " "))
            console.print(shown, style=row.style, highlight=False, no_wrap=True, crop=False)
    console.print()
