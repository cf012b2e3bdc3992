"""The comparison of this machine's hashes with a table, in data and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from bridge.cli.parity.choice import FORMS
from bridge.cli.parity.hashes import OPERANDS, cases_with_hashes
from bridge.cli.parity.table import Key, Table
from bridge.cli.rows import unfinished
from bridge.cli.terminal import print_cells

MOST = 12  # of the printed rows of a kind
_NAMES = ("form", "dtypes", "place", "quantity")


def key_of(row: dict[str, Any]) -> Key:
    form, dtypes, place, quantity = (row[name] for name in _NAMES)
    return form, dtypes, place, quantity


def find(report: dict[str, Any], other: Table) -> dict[str, Any]:
    """Returns the comparison of a report with a table, in JSON's types.

    Results are compared where the operands have the table's bits. `only_there` has the rows that
    this version does not know, `only_here` the rows of the chosen grid that the table lacks;
    `left_out` counts the results of the table that were not chosen, or not reached in time.
    """
    here = {key_of(row): row["hashes"] for row in report["rows"]}
    options = report["options"]
    is_narrowed = options["quick"] or tuple(options["forms"]) != FORMS
    known = {*_keys()}
    moved = {
        key[:3]
        for key, found in other.rows.items()
        if key[3] == OPERANDS and key in here and {*here[key].values()} != {found}
    }
    found: dict[str, Any] = {
        "facts": dict(other.facts),
        "results": sum(key[3] != OPERANDS for key in other.rows),
        "equal": 0,
        "differing": [],
        "operands": [],
        "only_there": [],
        "only_here": [
            _named(key)
            for key in _keys(options["quick"], tuple(options["forms"]))
            if key not in other.rows
        ],
        "left_out": 0,
    }
    for key, theirs in other.rows.items():
        is_result = key[3] != OPERANDS
        row = _named(key) | {"table": theirs, "hashes": here.get(key, {})}
        if key not in here:
            if key in known or is_narrowed:
                found["left_out"] += is_result
            else:
                found["only_there"].append(_named(key))
        elif key[:3] in moved:
            if not is_result:
                found["operands"].append(row)
        elif {*here[key].values()} == {theirs}:
            found["equal"] += is_result
        else:
            found["differing"].append(row)
    return found


def _keys(quick: bool = False, forms: tuple[str, ...] = FORMS) -> Iterator[Key]:
    for case in cases_with_hashes(quick, forms):
        for quantity in (OPERANDS, *case.quantities):
            yield case.form, case.dtypes, str(case.place), quantity


def _named(key: Key) -> dict[str, Any]:
    return dict(zip(_NAMES, key, strict=True))


def reasons(report: dict[str, Any]) -> list[str]:
    """Returns a sentence for each kind of failure, followed by its first rows."""
    lines = _part(
        report["disagreeing"],
        "different ways to compute have different bits in {}",
        lambda row: _hashes(row["hashes"]),
    )
    against = report.get("against")
    if against is None:
        return lines
    lines += _part(
        against["differing"],
        "this machine has other bits than the table in {}",
        lambda row: f"table {row['table']}, here {_hashes(row['hashes'])}",
    )
    lines += _part(
        against["operands"],
        "other operands were drawn in {}, without a call of bridge: their results are not "
        "compared; look at the versions of numpy and ml_dtypes",
        lambda row: f"table {row['table']}, here {_hashes(row['hashes'])}",
    )
    return lines + _part(
        against["only_there"], "this version of bridge does not have {} of the table", None
    )


def _part(
    rows: Sequence[dict[str, Any]],
    sentence: str,
    words: Callable[[dict[str, Any]], str] | None,
) -> list[str]:
    if not rows:
        return []
    lines = [sentence.format(_rows(rows))]
    for row in rows[:MOST]:
        lines.append("  " + ", ".join(row[name] for name in _NAMES))
        if words is not None:
            lines[-1] += f": {words(row)}"
    if len(rows) > MOST:
        lines.append(f"  … and {len(rows) - MOST} more; --json has all")
    return lines


def _rows(rows: Sequence[Any]) -> str:
    return f"{len(rows)} row{'s' if len(rows) > 1 else ''}"


def _hashes(found: dict[str, str]) -> str:
    """Returns each hash with the ways that have it; the hash alone if all have the same."""
    by_hash: dict[str, list[str]] = {}
    for way, value in found.items():
        by_hash.setdefault(value, []).append(way)
    if len(by_hash) == 1:
        return next(iter(by_hash))
    return ", ".join(f"{value} ({'; '.join(ways)})" for value, ways in by_hash.items())


def notes(report: dict[str, Any], facts: dict[str, str]) -> list[str]:
    """Returns sentences about differences that are no failure; `facts` are of this machine."""
    against, lines = report.get("against"), []
    if partial := unfinished(report):
        lines.append(partial)
    if against is None:
        return lines
    if against["left_out"]:
        lines.append(f"{against['left_out']} results of the table were not chosen, or not reached")
    if only := against["only_here"]:
        forms = [*dict.fromkeys(row["form"] for row in only)]
        others = f" and {len(forms) - 3} others" if len(forms) > 3 else ""
        lines.append(f"the table lacks {_rows(only)} of {', '.join(forms[:3])}{others}")
    for name in ("bridge", "programs"):
        if against["facts"].get(name) != facts[name]:
            lines.append(
                f"{name}: {against['facts'].get(name)} in the table, {facts[name]} here; a minor "
                "version may change bits, and its upgrade notes say which"
            )
    return lines


def show(report: dict[str, Any], facts: dict[str, str], console: Console) -> None:
    """Prints both machines, the differences and the verdict."""
    against, failures = report.get("against"), reasons(report)
    if against is not None:
        pairs = [[name, against["facts"].get(name, "–"), fact] for name, fact in facts.items()]
        header, every = ("", "table", "here"), (0, 1, 2)
        print_cells(console, against["file"], header, pairs, left=every, wrap=every[1:])
    for line in failures:
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    for line in notes(report, facts):
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    count = sum(row["quantity"] != OPERANDS for row in report["rows"])
    verdict = f"{count} results of {report['cases_done']} cases ({report['seconds']} s)"
    if against is not None:
        compared = against["results"] - against["left_out"]
        verdict += f"; {against['equal']} of {compared} have the bits of the table"
    elif failures:
        verdict += "; no table is written"
    console.print(verdict, style="bold red" if failures else "green", highlight=False)
