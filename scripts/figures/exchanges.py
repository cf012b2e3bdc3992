"""Figures of communication: the scaling model, and the times of all_gather."""

from __future__ import annotations

from scripts.figures.records import read, table
from tools.scaling import tables as scaling_tables

MAKERS = scaling_tables.MAKERS


def scaling_machine() -> str:
    report = read("scaling-cpu.json")
    notes = [f"Note of the run: {note}." for note in report["notes"]]
    machine, torch = report["machine"], report["versions"]["torch"]
    where = (
        f"Measured on {machine['processor']}, {machine['cores']} cores, a thread for each process, "
        f"torch {torch}, commit {report['commit'][:9]} "
        "([every number](benchmarks/scaling-cpu.json))."
    )
    return "\n\n".join([where, *notes])


def scaling(name: str) -> str:
    """Returns a table of docs/scaling.md, with its kind first."""
    quoted = scaling_tables.MAKERS[name](read("scaling-cpu.json"))
    rows = [[cell.strip() for cell in row] for row in quoted.rows]
    parts = [f"**{quoted.kind.capitalize()}**: {quoted.title}", table(quoted.header, rows)]
    return "\n\n".join([*parts, *([quoted.note] if quoted.note else [])])


# Names of calls in the file, and in the table.
GATHERS = {
    "time": {
        "torch": "torch",
        "torch functional": "its functional form",
        "bridge": "bridge",
        "bridge with gradient": "with gradient",
        "bridge checked": "checked",
    },
    "jax time": {"jax": "JAX", "bridge": "bridge", "bridge checked": "checked"},
}


def all_gather_times(kind: str) -> str:
    """Returns medians, the fastest tenth, and the ratio to the framework's own collective."""
    rows = []
    names = GATHERS[kind]
    peer_name = next(iter(names))
    for row in read("all_gather.json")[kind]:
        times = [f"{row[n]['median'] * 1e6:.0f} ({row[n]['tenth'] * 1e6:.0f})" for n in names]
        own, peer = row["bridge"], row[peer_name]
        apart = [
            f"{(own[kind] - peer[kind]) * 1e6:+.0f} µs, {100 * (own[kind] / peer[kind] - 1):+.0f} %"
            for kind in ("median", "tenth")
        ]
        rows.append([f"{row['bytes']:,}", *times, f"{apart[0]} ({apart[1]})"])
    return table(["bytes", *names.values(), f"bridge − {names[peer_name]}"], rows)


def all_gather_memory() -> str:
    rows = []
    for row in read("all_gather.json")["memory"]:
        for name, value in row.items():
            if name not in ("bytes", "ranks"):
                rows.append([str(row["ranks"]), name, f"{value / 2**20:.0f}"])
    return table(["ranks", "call", "MiB"], rows)
