"""Figures of correctness: accuracy over all inputs, and the stages that ran on a GPU."""

from __future__ import annotations

import math
from typing import Any

from scripts.figures.records import of_gpus, read, table

Record = dict[str, Any]


def accuracy() -> str:
    """Returns the rows of the accuracy program."""
    rows = []
    for name in ("accuracy-single", "accuracy-half", "accuracy-double"):
        for row in read(f"{name}.json"):
            near = f"{row['window_abs']:.2g} within {row['window']:g}" if row["window"] else ""
            wrong = str(row["different"]) if row["different"] >= 0 else ""
            rows.append([row["name"], f"{row['max_ulp']:.3f}", near, wrong, f"{row['inputs']:,}"])
    header = ["function", "worst, units", "absolute, next to a zero", "not nearest", "inputs"]
    return table(header, rows)


def gpu_records() -> str:
    """Returns the table of steps that ran on a GPU."""
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


COLUMNS = (4096, 65536)  # lengths of rows with a table of their own
DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def _of_copy(reached: dict[str, Record], columns: int) -> str:
    """Returns speeds relative to a copy for rows of `columns` columns; "" if not measured."""
    ops = dict.fromkeys(key.rsplit(".", 3)[0] for key in reached if key.count(".") >= 3)
    kinds = [(what, dtype) for what in ("forward", "backward") for dtype in DTYPES]
    found = {
        op: [reached.get(f"{op}.{what}.{dtype}.{columns}") for what, dtype in kinds] for op in ops
    }
    there = [i for i in range(len(kinds)) if any(row[i] for row in found.values())]
    rows = []
    for op, cells in found.items():
        if any(cells):
            texts = [f"{100 * c['graph']['of_copy']:.0f}" if c else "" for c in cells]
            name = op.removeprefix("catalogue.").replace(".", ", ")
            rows.append([name, *(texts[i] for i in there)])
    header = [f"{kinds[i][0]} {DTYPES[kinds[i][1]]}" for i in there]
    return table([f"% of a copy, {columns} columns", *header], rows) if rows else ""


def gpu_kernels() -> str:
    """Returns the tables of speeds relative to a copy, by device."""
    parts = []
    for name, record in of_gpus().items():
        found = record.get("kernel_speed", {"rows": []})
        reached = {row["name"]: row for row in found["rows"] if "graph" in row}
        if not reached:
            continue
        size = max(math.prod(row["shape"]) for row in reached.values())
        parts.append(
            f"On {record['device']}, commit {found['commit'][:9]} "
            f"([every row](benchmarks/{name})), up to {size >> 20} Mi elements:"
        )
        parts += filter(None, (_of_copy(reached, columns) for columns in COLUMNS))
    return "\n\n".join(parts) or "Not measured yet."
