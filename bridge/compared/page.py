"""The report as one HTML file."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any, TypeAlias

# Types of bridge.compared.report, which imports this module: an import would be a circle.
Report: TypeAlias = Any
Place: TypeAlias = Any
Row: TypeAlias = Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --red: #c62828; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1180px; padding: 16px; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
code, .place { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
.part { border-left: 4px solid var(--red); padding: 4px 12px; margin: 12px 0; }
.part b { color: var(--red); } .place { display: block; margin-top: 6px; }
.place code { display: block; background: var(--soft); padding: 2px 6px; }
.values { display: grid; grid-template-columns: 1fr 1fr; border-top: 1px solid var(--line); }
.values > div { border-bottom: 1px solid var(--line); padding: 2px 8px; min-width: 0; }
.values .torch { border-right: 1px solid var(--line); }
.red { background: #c6282838; }
.alone { opacity: 0.65; }
summary { font-weight: 600; margin: 2em 0 0.5em; cursor: pointer; }
.values small { display: block; overflow-wrap: anywhere; }
.head { font-weight: 600; position: sticky; top: 0; background: Canvas; }
@media (max-width: 640px) { body { padding: 8px; font-size: 14px; }
  .values > div { padding: 2px 4px; }
  code, .place, .values small { font-size: 11px; } }
"""


def write(report: Report, path: Any) -> None:
    """Writes the page.

    Raises:
      ValueError: the folder of the path does not exist.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"path is {str(path)!r}; its folder does not exist")
    path.write_text(_page(report), encoding="utf-8")


def _page(report: Report) -> str:
    title = (
        report.agreement
        if not report.parts
        else f"The models part at {len(report.parts)} line{'s' * (len(report.parts) > 1)}"
    )
    facts = (
        f"{report.paired} of {report.values} values are paired. The outputs differ by "
        f"{report.error:.1e} in float64 and by {report.own_error:.1e} in the models' own dtype, "
        + ("where all bits are equal." if report.same_bits else
           f"where {report.differing} of {report.outputs} numbers differ.")
    )  # fmt: skip
    body = [f"<h1>{_text(title)}</h1>", f"<p>{_text(facts)}</p>"]
    body += [f"<p><b>{_text(warning)}</b></p>" for warning in [*report.warnings, *report.tokens]]
    for part in report.parts:
        times = f", {part.count} times" if part.count > 1 else ""
        cause = f"; {part.cause}" if part.cause else ""
        body.append(
            f'<div class="part"><b>{_text(part.name or "model")}</b>: {_text(part.size)}'
            f"{times}{_text(cause)}.{_place('torch', part.torch)}{_place('JAX', part.jax)}</div>"
        )
    notes = [*report.notes, *(f"no gradient in JAX equals that of {n}" for n in report.gradients)]
    if notes:
        body.append("<h2>Notes</h2><ul>")
        body += [f"<li>{_text(note)}</li>" for note in notes]
        body.append("</ul>")
    body.append("<h2>Values in the order of execution</h2>")
    body.append("<p>Values beside each other hold the same numbers.</p>")
    body.append(
        '<div class="values"><div class="torch head">torch</div><div class="head">JAX</div>'
    )
    body += _columns([row for row in report.rows if row.op != "leaf"])
    body.append("</div>")
    leaves = [row for row in report.rows if row.op == "leaf"]
    if leaves:
        body.append("<details><summary>Parameters, inputs and constants</summary>")
        body += ['<div class="values">', *_columns(leaves), "</div></details>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _place(side: str, place: Place) -> str:
    if not place.op:
        return ""
    where = " ".join(word for word in (place.op, place.source, place.module) if word)
    code = f"<code>{_text(place.code)}</code>" if place.code else ""
    return f'<span class="place">{side}: {_text(where)}{code}</span>'


def _columns(rows: list[Row]) -> list[str]:
    """Returns the cells of both columns: paired values share a row, in torch's order."""
    theirs = {row.index: row for row in rows if row.side == "jax"}
    waiting = sorted(theirs)
    cells: list[str] = []
    shown: set[int] = set()

    def alone(until: int) -> None:
        """Shows the values of JAX that came before, which torch does not have."""
        while waiting and waiting[0] < until:
            index = waiting.pop(0)
            row = theirs[index]
            if index not in shown and row.partner < 0:
                cells.append(f'<div class="torch"></div>{_cell(row, False)}')
                shown.add(index)

    for row in rows:
        if row.side != "torch":
            continue
        partner = theirs.get(row.partner)
        if partner is not None and partner.index not in shown:
            alone(partner.index)
            shown.add(partner.index)
            cells.append(_cell(row, True) + _cell(partner, True))
        else:
            words = "" if row.partner < 0 else "paired with a rearranged value"
            if partner is not None:
                words = "paired with a value above"
            small = f'<small class="alone">{words}</small>'
            cells.append(_cell(row, row.partner >= 0) + f"<div>{small if words else ''}</div>")
    alone(1 << 60)
    return cells


def _cell(row: Row, is_joined: bool) -> str:
    classes = [row.side]
    if row.is_part:
        classes.append("red")
    elif not is_joined:
        classes.append("alone")
    shape = "×".join(map(str, row.shape)) or "number"
    code = f"<small><code>{_text(row.code)}</code></small>" if row.code else ""
    return (
        f'<div class="{" ".join(classes)}"><code>{_text(row.op)}</code> {shape}'
        f"<small>{_text(row.source)}</small>{code}</div>"
    )


def _text(text: str) -> str:
    return html.escape(text)
