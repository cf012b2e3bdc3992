"""Figures of speed of ops, kernels and conversions, measured by bench and kernel_speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from scripts.figures.records import BENCHMARKS, ROOT, Report, machine_of, of_gpus, read, table
from tools.bench import targets
from tools.bench.summary import memory_lines

# Ops with a row in the table of docs/speed.md.
OPS = ("bias_gelu", "softmax", "bias_dropout_add")
PEERS = ("eager", "compile", "jit")
REPLACEMENTS = "cpu-huggingface.json"
SECOND_CPU = "cpu-catalogue-avx2.json"  # pages quote only figures that the first CPU lacks


def figures() -> str:
    """Returns a table of all ops, with the machine of the measurement."""
    report = read("cpu.json")
    rows = []
    for op in OPS:
        aims = [line for line in targets.table(report) if line.op == op]
        reached = f"{sum(line.met for line in aims)} of {len(aims)}" if aims else "not measured"
        rows.append([f"[{op}](ops/{op}.md)", *speedups(main_rows(report, op)), reached])
    header = ["op", *(f"over {targets.PEER_NAMES[peer]}" for peer in PEERS), "aims reached"]
    where = (
        "Geometric means of all shapes, dtypes and directions that `python -m bridge bench` "
        f"measures: {machine_of(report)}. Each op's page has its aims, reached or missed; "
        "every row, median and spread is in [docs/benchmarks/cpu.json](benchmarks/cpu.json), "
        "drawn in [cpu.svg](benchmarks/cpu.svg)."
    )
    return "\n".join([table(header, rows), "", where])


def speed(op: str) -> str:
    """Returns the measurements of an op on every machine, with its aims met and missed."""
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


def speed_on(op: str, report: Report, name: str) -> Iterator[str]:
    rows = main_rows(report, op)
    if not rows:
        yield f"Not yet in docs/benchmarks/{name}."
        return
    yield f"Measured on {machine_of(report)} ([every row](../benchmarks/{name}))."
    yield aims(report, op)
    for row in report["rows"]:
        if row["op"] == op and f"empty ×{targets.CHAIN}" in row["timings"]:  # not in older files
            ours, empty = (f"{targets.further_call(row, n) * 1e6:.2f}" for n in ("bridge", "empty"))
            yield (
                f"Of the {ours} µs of a further call inside one jit {empty} µs are XLA's own, "
                "measured with an empty handler."
            )
    yield "How many times as fast, in the geometric mean of the shapes:"
    yield means(rows)
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


def of_catalogue(page: str) -> str:
    """Returns the measurements of the functions in a page's title."""
    title = (ROOT / page).read_text().partition("\n")[0]
    return of_forms(title.removeprefix("# ").split(", "))


def of_forms(names: Sequence[str]) -> str:
    """Returns the measurements of forms with these first words, or these names."""
    parts, seen = [], set()
    for name, report in everything():
        rows = main_rows(report, "catalogue")
        rows = [r for r in rows if not {r["form"], r["form"].split()[0]}.isdisjoint(names)]
        if name == SECOND_CPU:
            rows = [r for r in rows if r["form"] not in seen]
        seen |= {row["form"] for row in rows}
        if not rows:
            continue
        shapes = sorted({tuple(row["shape"]) for row in rows})
        sizes = ", ".join("×".join(map(str, shape)) for shape in shapes)
        parts.append(
            f"Measured on {machine_of(report)} ([every row](../benchmarks/{name})). How many times "
            f"as fast, in the geometric mean of the shapes, {sizes}:"
        )
        parts.append(means(rows))
        parts += [f"Note of the run: {note}." for note in report["notes"]]
    return "\n\n".join(parts) or "Not measured yet."


def of_linear() -> str:
    """Returns the measurements of linear_cross_entropy."""
    op = "linear_cross_entropy"
    found = [(name, report) for name, report in everything() if main_rows(report, op)]
    parts = [part for name, report in found for part in speed_on(op, report, name)]
    return "\n\n".join(parts) or "Not measured yet."


def of_declarations() -> str:
    """Returns the means over the catalogue and over user-declared ops, with their aims."""
    parts = []
    for name, report in everything():
        for op, what in (("catalogue", "The ops of the catalogue"), ("declared", "Three others")):
            if main_rows(report, op):
                parts.append(f"{what}, on {machine_of(report)} ([every row](benchmarks/{name})):")
                parts.append(aims(report, op))
    return "\n\n".join(parts) or "Not measured yet."


def of_replacements() -> str:
    """Returns the gains of replaced models over the same models, from `bench --ops huggingface`."""
    if not (BENCHMARKS / REPLACEMENTS).exists():
        return "Not measured yet."
    report = read(REPLACEMENTS)
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row in report["rows"]:
        (peer, gain), times = next(iter(row["speedup"].items())), row["timings"]
        low, high = (
            times[peer][q] / times["bridge"][p] for q, p in (("low", "high"), ("high", "low"))
        )
        cell = f"{gain:.2f} ({low:.2f} to {high:.2f})"
        found.setdefault((row["form"], row["width"]), {})[f"{row['what']}, {peer}"] = cell
    columns = list(dict.fromkeys(column for cells in found.values() for column in cells))
    words = {"eager": "eager PyTorch", "compile": "torch.compile"}
    header = [
        "replaced",
        "width",
        *(f"{c.split(', ')[0]}, {words[c.split(', ')[1]]}" for c in columns),
    ]
    lines = [
        [form, str(width), *(cells.get(column, "") for column in columns)]
        for (form, width), cells in found.items()
    ]
    batch, positions = report["rows"][0]["shape"]
    where = (
        "Speed of a Llama of two layers with replaced layers over the original, both eager or "
        f"both compiled, in float32, for {batch} sequences of {positions} tokens. The width is the "
        "number of columns of the hidden states. Cells are quotients of medians, in parentheses "
        "those of opposite quartiles. "
        f"{machine_of(report)} ([every row](benchmarks/{REPLACEMENTS})). "
        "`python -m bridge bench --ops huggingface` measures it."
    )
    return "\n\n".join([where, table(header, lines)])


def reports() -> list[tuple[str, Report]]:
    """Returns the records of bench on every machine, each with the name of its file."""
    return [found for found in everything() if found[0] != SECOND_CPU]


def everything() -> list[tuple[str, Report]]:
    """Returns the same records, and those of a second CPU."""
    on_cpus = [(name, read(name)) for name in ("cpu.json", "cpu-catalogue.json", SECOND_CPU)]
    on_gpus = [(name, r) for name, record in of_gpus().items() for r in record["bench"].values()]
    return [*on_cpus, *on_gpus]


def aims(report: Report, op: str) -> str:
    """Returns a table of an op's aims, met and missed."""
    return table(
        ["speed", "measured", "aim", "reached"],
        [
            [line.what, line.measured, line.aim, "yes" if line.met else "**no**"]
            for line in targets.table(report)
            if line.op == op
        ],
    )


def means(rows: list[dict[str, Any]]) -> str:
    """Returns the speed relative to each peer, over all shapes."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        form = row.get("form", row.get("approximate"))
        groups.setdefault((form, row["what"], row["dtype"]), []).append(row)
    return table(
        ["form", "pass", "dtype", *(targets.PEER_NAMES[peer] for peer in PEERS)],
        [[*group, *found] for group, rows in groups.items() if any(found := speedups(rows))],
    )


def kernels_on(op: str, record: Report, name: str) -> Iterator[str]:
    """Yields the speed of the op's kernels, compared with a copy of as many bytes."""
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
        *rows_of, columns = row["shape"]
        size = f"{math.prod(rows_of):,} × {columns:,}"
        if "error" in row:
            lines.append([row["kind"], row["dtype"], size, row["error"], "", ""])
            continue
        times = row["one_by_one"]
        figures = [f"{times['seconds'] * 1e6:.1f}", f"{times['gb_per_second']:.0f}"]
        lines.append([row["kind"], row["dtype"], size, *figures, f"{100 * times['of_copy']:.0f} %"])
    yield table(["kernel", "dtype", "rows × columns", "µs", "GB/s", "of copy"], lines)


def main_rows(report: Report, op: str) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["op"] == op and row.get("part", "main") == "main"]


def speedups(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the geometric mean of the speed relative to each peer, over rows with that peer."""
    means = [targets.geometric_mean(targets.speedups(rows, peer)) for peer in PEERS]
    return ["" if mean is None else f"{mean:.2f} ×" for mean in means]


def growth_table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in ("bridge", "eager", "copy") if name in rows[0]["timings"]]
    lines = []
    for row in rows:
        nanoseconds = 1e9 / math.prod(row["shape"])
        values = [row["timings"][name]["median"] * nanoseconds for name in names]
        lines.append([f"{row['shape'][-1]:,}", *(f"{value:.2f}" for value in values)])
    header = [f"{targets.PEER_NAMES.get(name, name)}, ns an element" for name in names]
    return table(["columns", *header], lines)


def crossings() -> str:
    """Returns the cost of to_torch and to_jax on every measured machine."""
    parts, devices = [], set()
    for name, report in reports():
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
        devices.add(report["options"]["device"])
        where = report["machine"]["gpu" if report["options"]["device"] == "cuda" else "processor"]
        parts.append(
            f"Medians of a call on {where}, torch {versions['torch']}, jax {versions['jax']} "
            f"([every figure](benchmarks/{name})); beside it the framework's own `from_dlpack`, "
            "for a tree called on each leaf."
        )
        parts.append(table(["", "bridge, µs", "from_dlpack, µs", "faster"], rows))
        parts += [f"Note of the run: {note}." for note in report["notes"]]
    if "cuda" not in devices:
        parts.append("On a GPU: not measured yet.")
    return "\n\n".join(parts)


def of_products() -> str:
    """Returns the speed of products over torch's and XLA's, from scripts/compare_products.py."""
    report = read("cpu-products.json")
    header = ["m × k × n", "bridge, GFLOP/s", "over torch", "over XLA"]
    lines = [
        [
            f"{row['m']} × {row['k']} × {row['n']}{', b transposed' if row['transposed'] else ''}",
            f"{row['bridge gflops']:.0f}",
            *(
                f"{row[f'times {o}']:.2f} (± {row[f'spread {o}'] / 2:.2f})"
                for o in ("torch", "xla")
            ),
        ]
        for row in report["rows"]
    ]
    means = report["means"]
    where = (
        f"Speed of float32 products over torch's and XLA's, medians "
        f"of rounds with half the distance of the quartiles: geometric means {means['torch']:.2f} "
        f"and {means['xla']:.2f}. {machine_of(report)}."
    )
    return f"{where}\n\n{table(header, lines)}"
