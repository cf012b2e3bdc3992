"""A self-contained HTML page: one file, no scripts, plots inline."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """A heading and HTML under it."""

    title: str
    body: str


STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1b1f24;
  max-width: 66rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d0d7de;
  padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .5rem 0; max-width: 60rem; }
p.lead { font-size: 1.05rem; }
p.small, footer { color: #57606a; font-size: .85rem; }
table { border-collapse: collapse; font-size: .85rem; margin: .8rem 0; }
th, td { padding: .18rem .7rem; text-align: right; border-bottom: 1px solid #eaeef2;
  font-variant-numeric: tabular-nums; }
th { background: #f6f8fa; border-bottom: 1px solid #d0d7de; }
td.text, th.text { text-align: left; }
tr.failed td { background: #ffebe9; color: #a40e26; }
tr.good td { background: #f0faf3; }
figure { margin: 1rem 0; }
figure svg, figure img { max-width: 100%; height: auto; }
details > summary { cursor: pointer; color: #0550ae; }
"""


def write_page(path: Path, title: str, sections: Sequence[Section], lead: str = "") -> None:
    """Writes the page and makes its folder."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>{lead}",
        *(f"<h2>{html.escape(section.title)}</h2>{section.body}" for section in sections),
        "</html>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{html.escape(text)}</p>"


def heading(text: str) -> str:
    """Returns a heading inside a section."""
    return f"<h3>{html.escape(text)}</h3>"


def details(summary: str, body: str) -> str:
    """Returns a part that opens on a click."""
    return f"<details><summary>{html.escape(summary)}</summary>{body}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> str:
    """Returns a table; columns of text are aligned left."""
    text = [not _is_numeric([row[i] for row in rows]) for i in range(len(header))]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=text' if is_text else ''}>{html.escape(value)}</{tag}>"
            for value, is_text in zip(values, text, strict=True)
        )

    styles = styles or [""] * len(rows)
    body = "".join(
        f"<tr{f' class={style}' if style else ''}>{cells('td', row)}</tr>"
        for row, style in zip(rows, styles, strict=True)
    )
    return f"<table><thead><tr>{cells('th', header)}</tr></thead><tbody>{body}</tbody></table>"


# A number, with a unit or a percentage: 106,816 (100.0%), 9.0e-02, 3.2 ms.
_NUMBER = re.compile(r"[–−]?|[-+−]?\d[\d.,]*(e[-+]?\d+)?( ?\S{1,5}| \(.*\))?")


def _is_numeric(values: Sequence[str]) -> bool:
    """True if most cells are numbers; a hash among them is aligned as they are."""
    return 2 * sum(_NUMBER.fullmatch(value) is not None for value in values) > len(values)
