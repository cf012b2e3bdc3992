"""A summary of the rows of all shapes: the table in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bridge.cli import page
from bridge.cli.page import Section, heading, paragraph, table
from bridge.cli.parity.judge import BOUNDS_IN_WORDS
from bridge.cli.parity.quantities import words
from bridge.cli.rows import unfinished
from bridge.cli.terminal import print_cells

BY_QUANTITY = ("op", "dtypes", "form", "quantity")
BY_FORM = ("op", "form", "dtypes")


def aggregate(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record per quantity, form and dtype: sums of counts, largest errors."""
    return merge((_record(row) for row in rows), BY_QUANTITY)


def merge(records: Iterable[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Merges records that agree in `keys`."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in records:
        key = tuple(record[name] for name in keys)
        if key not in merged:
            merged[key] = {name: record[name] for name in (*keys, *_COMBINE)}
            continue
        into = merged[key]
        for name, combine in _COMBINE.items():
            present = [v for v in (into[name], record[name]) if v is not None]
            into[name] = combine(present) if present else None
    return list(merged.values())


_COMBINE: dict[str, Callable[[Any], Any]] = {
    "cases": sum,
    "elements": sum,
    "differing": sum,
    "variants": sum,
    "variants_differing": sum,
    "ulp": max,
    "of_bound": max,
    "wrong": sum,
    "own_torch_ulp": max,
    "own_torch_wrong": sum,
    "own_jax_ulp": max,
    "own_jax_wrong": sum,
    "passed": all,
}


def _record(row: dict[str, Any]) -> dict[str, Any]:
    both = (row["torch"], row["jax"])
    record = {name: row[name] for name in (*BY_QUANTITY, "elements", "differing", "passed")}
    record |= {
        "cases": 1,
        "variants": len(row["variants"]),
        "variants_differing": sum(row["variants"].values()),
        "ulp": max(errors["ulp"] for errors in both),
        "of_bound": max(errors["of_bound"] for errors in both),
        "wrong": sum(errors["wrong"] for errors in both),
    }
    for name in ("own_torch", "own_jax"):
        errors = row[name] or {}
        record |= {f"{name}_{key}": errors.get(key) for key in ("ulp", "wrong")}
    return record


COLUMNS = {
    "dtypes": "dtype",
    "form": "form",
    "quantity": "quantity",
    "differing": "≠",
    "variants_differing": "runs ≠",
    "ulp": "bridge",
    "of_bound": "bound",
    "own_torch_ulp": "torch",
    "own_jax_ulp": "JAX",
    "passed": "",
}
NOTE = (
    "≠ counts the elements whose bits differ between torch and JAX, both through bridge; runs ≠ "
    "counts those between other ways to run. bridge, torch and JAX are the largest errors of "
    "bridge and of the frameworks' own ops against float64. The unit is an ULP of the result's "
    "dtype, or the arithmetic's own rounding, carried through the formula, if "
    "it is larger. bound is the error as a part of the allowed error. An error of 2²⁴ ≈ 1.7e+07 "
    "(float32), 2¹¹ ≈ 2000 (float16) or 2⁸ = 256 (bfloat16) means no correct digit, such as a tail "
    "that came out as 0. In float64 the reference's own rounding is part of every error. The "
    "frameworks' own ops are measured on ordinary values alone, bridge on every shape and value."
)


def by_op(report: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the records of each op, by quantity."""
    records = report["summary"]
    for op in dict.fromkeys(record["op"] for record in records):
        yield op, [record for record in records if record["op"] == op]


# The table for a terminal, which is narrow: a line for each form and dtype.
SHORT = ("form", "dtype", "≠", "value", "torch", "JAX", "gradients", "torch", "JAX", "bound", "")
SHORT_NOTE = (
    "≠ counts the elements whose bits differ between torch and JAX, both through bridge, or "
    "between other ways to run. value and gradients are bridge's largest errors against float64; "
    "torch and JAX beside them are the errors of the frameworks' own ops. The unit is an ULP of "
    "the result's dtype, or the arithmetic's own rounding, carried through the "
    "formula, if it is larger. bound is the largest error as a part of the allowed error. An error "
    "of 2²⁴ ≈ 1.7e+07 (float32), 2¹¹ ≈ 2000 (float16) or 2⁸ = 256 (bfloat16) means no correct "
    "digit, such as a tail that came out as 0. The frameworks' own ops are measured on ordinary "
    "values alone, bridge on every shape and value. --html and --json have every quantity by "
    "itself."
)


def _by_form(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record per form and dtype, grouped by form."""
    forms = [*dict.fromkeys(record["form"] for record in records)]
    return sorted(merge(records, BY_FORM), key=lambda record: forms.index(record["form"]))


def short_cells(records: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the lines of an op's table from its records by quantity."""
    lines = []
    for whole in _by_form(records):
        own = [r for r in records if all(r[name] == whole[name] for name in BY_FORM)]
        line = [whole["form"], short(whole["dtypes"])]
        line.append(str(whole["differing"] + whole["variants_differing"]))
        for is_of in (_is_value, _is_gradient):
            found = merge((r for r in own if is_of(r["quantity"])), BY_FORM)
            names = ("ulp", "own_torch_ulp", "own_jax_ulp")
            line += [_cell(name, found[0]) if found else "–" for name in names]
        lines.append([*line, _cell("of_bound", whole), _cell("passed", whole)])
    return lines


def _is_value(quantity: str) -> bool:
    return quantity == "forward"


def _is_gradient(quantity: str) -> bool:
    return quantity.startswith("d") and not quantity.startswith("d2")


def show(report: dict[str, Any], console: Console) -> None:
    """Prints a table for each op, the failures, and the verdict."""
    console.print("torch and JAX through bridge, and against float64", style="italic")
    for op, records in by_op(report):
        styles = _styles(_by_form(records), "red")
        how: dict[str, Any] = {"left": (0, 1), "wrap": (), "group": 1, "ruled": True}
        print_cells(console, op, SHORT, short_cells(records), styles=styles, **how)
    if report["summary"]:
        console.print(f"[dim]{SHORT_NOTE}[/]", highlight=False)
    for name, part in _parts(report):
        records = part.aggregate(report[name])
        rows = [part.cells(record) for record in records]
        how = {"left": part.TEXTS, "wrap": range(len(part.HEADER))}
        print_cells(console, name, part.HEADER, rows, styles=_styles(records, "red"), **how)
        console.print(f"[dim]{part.NOTE}[/]", highlight=False)
    style = "bold red" if not report["passed"] else "green" if report["complete"] else "yellow"
    console.print(verdict(report), style=style)
    for line in failures(report):
        console.print(line, style="red", highlight=False)


def _parts(report: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the parts of the report besides ops; each has its own table."""
    from bridge.cli.parity import border, invariance

    parts = {"invariance": invariance, "border": border}
    return ((name, part) for name, part in parts.items() if report[name])


def short(dtypes: str) -> str:
    return dtypes.replace("bfloat", "bf").replace("float", "f")


def _styles(records: list[dict[str, Any]], failed: str) -> list[str]:
    return ["" if record["passed"] else failed for record in records]


def verdict(report: dict[str, Any]) -> str:
    """Returns one sentence about the extent and the outcome of the comparison."""
    rows = [*report["rows"], *report["invariance"], *report["border"]]
    elements = sum(row["elements"] for row in rows)
    failed = sum(not row["passed"] for row in rows)
    options = report["options"]
    how = f"{options['device']}, {options['isa']}, {_threads(options['threads'])}"
    what = f"{len(rows)} rows, {elements / 1e6:.1f} million elements ({how}; {report['seconds']} s)"
    found = f"passed {report['cases_passed']} of {report['cases']} cases"
    if failed:
        found += f", {failed} rows FAILED"
    elif report["complete"]:
        found = "all passed"
    return "; ".join(filter(None, (f"{what}: {found}", unfinished(report), _left_out(report))))


def _left_out(report: dict[str, Any]) -> str | None:
    """Returns a sentence with the forms or parts that have no case in a partial report."""
    reached = {row["form"] for row in report["rows"]} | {name for name, _ in _parts(report)}
    left = [name for name in report["cases_of"] if name not in reached]
    return f"no case of {', '.join(left)}" if left else None


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def failures(report: dict[str, Any], most: int = 12) -> list[str]:
    """Returns descriptions of the worst failed rows."""
    failed = [row for row in report["rows"] if not row["passed"]]
    failed.sort(key=lambda row: -max(row["torch"]["of_bound"], row["jax"]["of_bound"]))
    lines = []
    for row in failed[:most]:
        reasons = []
        if row["differing"]:
            reasons.append(f"{row['differing']} elements differ between torch and JAX")
        reasons += [f"{count} differ ({how})" for how, count in row["variants"].items() if count]
        for name in ("torch", "jax"):
            errors = row[name]
            if errors["wrong"]:
                reasons.append(
                    f"{name}: {errors['wrong']} are not finite, or not 0, as they should be"
                )
            if errors["of_bound"] > 1:
                reasons.append(
                    f"{name}: {errors['ulp']:.3g} ULP, {errors['of_bound']:.3g} of the bound"
                )
        where = f"{row['op']} {row['dtypes']} {row['form']} {row['quantity']} {row['shape']}"
        lines.append(f"{where} {row['layout']}, {row['values']}: {'; '.join(reasons)}")
    if len(failed) > most:
        lines.append(f"… and {len(failed) - most} more")
    others = [row for row in report["invariance"] if not row["passed"]]
    lines += [
        f"invariance, {row['name']} {row['dtype']}, {row['how']}: {row['differing']} of "
        f"{row['elements']} elements differ"
        for row in others[:most]
    ]
    crossed = [row for row in report["border"] if not row["passed"]]
    lines += [
        f"border, {row['direction']}, {row['dtype']} {row['layout']}, copy={row['copy']}: "
        f"{row['differing']} elements differ, memory {'' if row['shared'] else 'not '}shared"
        f"{', refused' if row['refused'] else ''}"
        for row in crossed[:most]
    ]
    return lines


def sections(report: dict[str, Any], brief: bool = False) -> list[Section]:
    """Returns sections of a page with every quantity, or, if brief, the terminal's tables."""
    body = paragraph(verdict(report))
    body += "".join(paragraph(line) for line in failures(report))
    for op, records in by_op(report):
        if brief:
            styles = _styles(_by_form(records), "failed")
            body += heading(op) + table(SHORT, short_cells(records), styles)
            continue
        header, rows = _cells(records)
        for cells, record in zip(rows, records, strict=True):
            cells[header.index("quantity")] = words(record["quantity"])
        body += heading(op) + table(header, rows, _styles(records, "failed"))
    if brief:
        return [Section("Parity", body + paragraph(SHORT_NOTE, "small"))]
    body += paragraph(BOUNDS_IN_WORDS, "small") + paragraph(NOTE, "small")
    for name, part in _parts(report):
        records = part.aggregate(report[name])
        rows = [part.cells(record) for record in records]
        body += heading(name) + table(part.HEADER, rows, _styles(records, "failed"))
        body += paragraph(part.NOTE, "small")
    return [Section("Parity", body)]


def write_page(report: dict[str, Any], path: Path) -> None:
    page.write_page(path, "bridge: parity", sections(report))


def _cells(records: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and a row for each record."""
    hidden = set()
    if not any(record["variants"] for record in records):
        hidden.add("variants_differing")
    hidden |= {
        name
        for name in ("own_torch_ulp", "own_jax_ulp")
        if all(record[name] is None for record in records)
    }
    columns = [name for name in COLUMNS if name not in hidden]
    rows = [[_cell(name, record) for name in columns] for record in records]
    return [COLUMNS[name] for name in columns], rows


def _cell(name: str, record: dict[str, Any]) -> str:
    value = record[name]
    if name == "passed":
        return "pass" if value else "FAIL"
    if value is None:
        return "–"
    if name == "of_bound":
        return f"{value:.0%}" if value < 100 else f"{value:.1e} ×"
    if name.endswith("ulp"):
        wrong = record.get("wrong" if name == "ulp" else name.replace("_ulp", "_wrong"))
        text = f"{value:.2f}" if value < 100 else f"{value:.0f}" if value < 1e5 else f"{value:.1e}"
        return f"{text} ({wrong} wrong)" if wrong else text
    return str(value)
