#!/usr/bin/env python3
"""Writes the figures of the README and of docs from the files that commands wrote.

Text between `<!-- figures -->` and `<!-- end of figures -->`, and the same with other marks, is
replaced. With --check nothing is written; exit status 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from count_adapter_lines import BESIDES, LIMIT, OPS, count, count_op

from tools.bench import targets
from tools.bench.summary import memory_lines
from tools.scaling import tables as scaling_tables

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks"
PEERS = ("eager", "compile", "jit")

Report = dict[str, Any]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read(name: str) -> Any:
    return json.loads((BENCHMARKS / name).read_text())


def machine_of(report: Report) -> str:
    machine, versions = report["machine"], report["versions"]
    where = f"{machine['processor']}, {report['options']['threads']} threads"
    if report["options"]["device"] == "cuda":
        where = machine["gpu"]
    commit = (report["commit"] or "not known")[:9]
    return f"{where}, torch {versions['torch']}, jax {versions['jax']}, commit {commit}"


def of_gpus() -> dict[str, Any]:
    """What scripts/check_gpu.sh brought back, by file."""
    records = {path.name: read(path.name) for path in sorted(BENCHMARKS.glob("*.json"))}
    return {
        name: record
        for name, record in records.items()
        if isinstance(record, dict) and record.get("command") == "check_gpu"
    }


def main_rows(report: Report, op: str) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["op"] == op and row.get("part", "main") == "main"]


def speedups(rows: list[dict[str, Any]]) -> list[str]:
    """How many times faster than each peer, in the geometric mean of the rows that have it."""
    means = [targets.geometric_mean(targets.speedups(rows, peer)) for peer in PEERS]
    return ["" if mean is None else f"{mean:.2f} ×" for mean in means]


def figures() -> str:
    """All ops in one table, with the machine that they were measured on."""
    report = read("cpu.json")
    rows = []
    for op in OPS:
        aims = [line for line in targets.table(report) if line.op == op]
        reached = f"{sum(line.met for line in aims)} of {len(aims)}" if aims else "not measured"
        rows.append([f"[{op}](docs/ops/{op}.md)", *speedups(main_rows(report, op)), reached])
    header = ["op", *(f"over {targets.PEER_NAMES[peer]}" for peer in PEERS), "aims reached"]
    where = (
        "Geometric means of all shapes, dtypes and directions that `python -m bridge bench` "
        f"measures: {machine_of(report)}. Each op's page has its aims, those that are missed too; "
        "every row, median and spread is in [docs/benchmarks/cpu.json](docs/benchmarks/cpu.json), "
        "drawn in [cpu.svg](docs/benchmarks/cpu.svg)."
    )
    return "\n".join([table(header, rows), "", where])


def speed(op: str) -> str:
    """What was measured of an op, on every machine, with its aims met and missed."""
    parts = list(speed_on(op, read("cpu.json"), "cpu.json"))
    gpus = of_gpus()
    for name, record in gpus.items():
        parts += kernels_on(op, record, name)
        for report in record["bench"].values():
            if main_rows(report, op):
                parts += speed_on(op, report, name)
    if not gpus:
        parts.append("On a GPU: not measured yet.")
    return "\n\n".join(parts)


def kernels_on(op: str, record: Report, name: str) -> Iterator[str]:
    """The op's kernels called through the C border, beside a copy of as many bytes."""
    measured = record.get("kernel_speed")
    rows = [] if measured is None else [r for r in measured["rows"] if r["op"].startswith(op)]
    if not rows:
        return
    yield (
        f"Kernels on {record['device']}, called one by one, beside a copy of as many bytes "
        f"([every row](../benchmarks/{name})):"
    )
    lines = []
    for row in rows:
        size = f"{row['batch'] * row['heads'] * row['queries']:,} × {row['cols']:,}"
        if "error" in row:
            lines.append([row["kind"], row["dtype"], size, row["error"], "", ""])
            continue
        times = row["one_by_one"]
        figures = [f"{times['seconds'] * 1e6:.1f}", f"{times['gb_per_second']:.0f}"]
        lines.append([row["kind"], row["dtype"], size, *figures, f"{100 * times['of_copy']:.0f} %"])
    yield table(["kernel", "dtype", "rows × columns", "µs", "GB/s", "of copy"], lines)


def speed_on(op: str, report: Report, name: str) -> Iterator[str]:
    rows = main_rows(report, op)
    if not rows:
        yield f"Not yet in docs/benchmarks/{name}."
        return
    yield f"Measured on {machine_of(report)} ([every row](../benchmarks/{name}))."
    yield table(
        ["speed", "measured", "aim", "reached"],
        [
            [line.what, line.measured, line.aim, "yes" if line.met else "**no**"]
            for line in targets.table(report)
            if line.op == op
        ],
    )
    for row in report["rows"]:
        if row["op"] == op and f"empty ×{targets.CHAIN}" in row["timings"]:  # not in older files
            ours, empty = (f"{targets.further_call(row, n) * 1e6:.2f}" for n in ("bridge", "empty"))
            yield (
                f"Of the {ours} µs of a further call inside one jit {empty} µs are XLA's own, "
                "those of a handler that does nothing."
            )
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        form = row.get("form", row.get("approximate"))
        groups.setdefault((form, row["what"], row["dtype"]), []).append(row)
    yield "How many times as fast, in the geometric mean of the shapes:"
    yield table(
        ["form", "pass", "dtype", *(targets.PEER_NAMES[peer] for peer in PEERS)],
        [[*group, *found] for group, rows in groups.items() if any(found := speedups(rows))],
    )
    growth = [row for row in report["rows"] if row["op"] == op and row.get("part") == "growth"]
    if growth:
        yield f"{growth[0]['what'].capitalize()} of as many elements in rows of other lengths:"
        yield growth_table(growth)
    memory = [line for line in memory_lines(report) if line[0].startswith(f"{op} ")]
    if memory:
        yield f"Memory besides the operands, of {memory[0][0].removeprefix(f'{op} ')}:"
        first = memory[0][0]
        yield table(
            ["computed by", "MiB at the peak", "MiB kept for the backward pass"],
            [line[1:] for line in memory if line[0] == first],
        )
    for note in report["notes"]:
        yield f"Note of the run: {note}."


def growth_table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in ("bridge", "eager", "copy") if name in rows[0]["timings"]]
    lines = []
    for row in rows:
        nanoseconds = 1e9 / math.prod(row["shape"])
        values = [row["timings"][name]["median"] * nanoseconds for name in names]
        lines.append([f"{row['shape'][-1]:,}", *(f"{value:.2f}" for value in values)])
    header = [f"{targets.PEER_NAMES.get(name, name)}, ns an element" for name in names]
    return table(["columns", *header], lines)


def accuracy() -> str:
    """The accuracy program's rows."""
    rows = []
    for name in ("accuracy-single", "accuracy-half", "accuracy-double"):
        for row in read(f"{name}.json"):
            near = f"{row['window_abs']:.2g} within {row['window']:g}" if row["window"] else ""
            wrong = str(row["different"]) if row["different"] >= 0 else ""
            rows.append([row["name"], f"{row['max_ulp']:.3f}", near, wrong, f"{row['inputs']:,}"])
    header = ["function", "worst, units", "absolute, next to a zero", "not nearest", "inputs"]
    return table(header, rows)


def is_quoted(op: str, kernel: dict[str, Any]) -> bool:
    """Whether it is a hot kernel of the op for sm_90, in bfloat16 or float32."""
    words = kernel["kernel"].split()
    if kernel["arch"] != "90" or kernel["instructions_per_element"] is None:
        return False
    if words[0].removesuffix("_derivative") != op or words[1] not in ("bfloat16", "float32"):
        return False
    if op == "bias_gelu":
        return words[2] == "tanh"
    return "any" not in words


def in_order(kernel: dict[str, Any]) -> list[tuple[bool, int, str]]:
    """Sorts names as text, and numbers in them as numbers."""
    words = kernel["kernel"].split()
    return [(not word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]


def machine_code(op: str) -> str:
    """What the compiled kernels of sm_90 cost, counted in the cubin."""
    kernels = [kernel for kernel in read("cubin.json")["kernels"] if is_quoted(op, kernel)]
    if not kernels:
        return "Not yet in docs/benchmarks/cubin.json."
    with_longest = any(kernel.get("longest_instructions") for kernel in kernels)
    rows = []
    for kernel in sorted(kernels, key=in_order):
        row = [kernel["kernel"], counted(kernel["instructions_per_element"], kernel["limit"])]
        if with_longest:
            most = kernel["longest_instructions"] / kernel["loop_elements"]
            row.append(counted(most, kernel["longest_limit"]))
        spills = kernel["spill_store_bytes"] + kernel["spill_load_bytes"]
        rows.append([*row, str(kernel["registers"]), str(spills)])
    header = ["kernel, sm_90", "instructions an element"]
    header += ["on the longest way"] if with_longest else []
    return table([*header, "registers", "bytes spilled"], rows)


def counted(count: float, limit: float | None) -> str:
    return f"{count:.1f}" if limit is None else f"{count:.1f} (limit {limit:g})"


def code_lines() -> str:
    """What an op takes in the adapters."""
    ops = [[op, *map(str, count_op(op))] for op in OPS]
    besides = [[f"`bridge/{file}`", what, str(count(file)[0])] for file, what in BESIDES.items()]
    header = ["op", "torch", "JAX", f"both (fewer than {LIMIT})", "import lines of both"]
    return "\n\n".join(
        [table(header, ops), "Besides:", table(["file", "what is in it", "lines"], besides)]
    )


def crossings() -> str:
    """What to_torch and to_jax cost, on every machine that was measured."""
    parts = []
    reports = [("cpu.json", read("cpu.json"))]
    gpus = of_gpus()
    for name, record in gpus.items():
        reports += [(name, report) for report in record["bench"].values()]
    for name, report in reports:
        rows = [
            [
                f"`{row['what']}`" if "," not in row["what"] else row["what"],
                f"{row['timings']['bridge']['median'] * 1e6:.1f}",
                f"{row['timings']['from_dlpack']['median'] * 1e6:.1f}",
                f"{row['speedup']['from_dlpack']:.1f} ×",
            ]
            for row in report["rows"]
            if row["op"] == "border" and "from_dlpack" in row["timings"]
        ]
        if not rows:
            continue
        versions = report["versions"]
        where = report["machine"]["gpu" if report["options"]["device"] == "cuda" else "processor"]
        parts.append(
            f"Medians of a call on {where}, torch {versions['torch']}, jax {versions['jax']} "
            f"([every figure](benchmarks/{name})); beside it the framework's own `from_dlpack`, "
            "for a tree called on each leaf."
        )
        parts.append(table(["", "bridge, µs", "from_dlpack, µs", "faster"], rows))
        parts += [f"Note of the run: {note}." for note in report["notes"]]
    if not gpus:
        parts.append("On a GPU: not measured yet.")
    return "\n\n".join(parts)


def gpu_records() -> str:
    """What ran on a GPU, step by step."""
    rows = [
        [
            f"[{record['device']}](benchmarks/{name})",
            f"{stage}, {(ran['commit'] or 'commit not known')[:9]}",
            str(sum(result["word"] == "passed" for result in ran["results"])),
            ", ".join(r["step"] for r in ran["results"] if r["word"] == "FAILED") or "none",
            ", ".join(r["step"] for r in ran["results"] if r["word"] == "skipped") or "none",
        ]
        for name, record in of_gpus().items()
        for stage, ran in record["stages"].items()
    ]
    if not rows:
        return "No stage has run on a GPU yet."
    return table(["device", "stage", "steps passed", "failed", "skipped"], rows)


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
    """A table of docs/scaling.md, its kind first."""
    quoted = scaling_tables.MAKERS[name](read("scaling-cpu.json"))
    rows = [[cell.strip() for cell in row] for row in quoted.rows]
    parts = [f"**{quoted.kind.capitalize()}**: {quoted.title}", table(quoted.header, rows)]
    return "\n\n".join([*parts, *([quoted.note] if quoted.note else [])])


# What calls are named in the file, and in the table.
_GATHERS = {
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
    """Medians with the quickest tenth, and how far ours is from the framework's own."""
    rows = []
    names = _GATHERS[kind]
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


PAGES: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("README.md", "figures", figures),
    ("docs/architecture.md", "code lines", code_lines),
    ("docs/numerics.md", "accuracy", accuracy),
    ("docs/exchange.md", "crossings", crossings),
    ("docs/gpu.md", "gpu records", gpu_records),
    *((f"docs/ops/{op}.md", "speed", partial(speed, op)) for op in OPS),
    *((f"docs/ops/{op}.md", "machine code", partial(machine_code, op)) for op in OPS),
    *(("docs/all_gather.md", f"all_gather {k}", partial(all_gather_times, k)) for k in _GATHERS),
    ("docs/all_gather.md", "all_gather memory", all_gather_memory),
    ("docs/scaling.md", "scaling machine", scaling_machine),
    *(("docs/scaling.md", f"scaling {n}", partial(scaling, n)) for n in scaling_tables.MAKERS),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for name, mark, write in PAGES:
        page = ROOT / name
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        text = page.read_text()
        before, rest = text.split(begin)
        quoted = f"{before}{begin}{write()}\n{end}{rest.split(end)[1]}"
        if quoted == text:
            continue
        stale += 1
        if check:
            print(f"{name} does not quote what docs/benchmarks holds: run scripts/quote_figures.py")
        else:
            page.write_text(quoted)
            print(f"{name} updated")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
