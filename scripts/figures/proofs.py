"""What was found to be right: accuracy over all inputs, and the stages that ran on a GPU."""

from __future__ import annotations

import math

from scripts.figures.records import of_gpus, read, table


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


COLUMNS = 4096
DTYPES = ("bfloat16", "float16", "float32")


def gpu_kernels() -> str:
    """What every op reaches of a copy, by device."""
    parts = []
    for name, record in of_gpus().items():
        found = record.get("kernel_speed", {"rows": []})
        reached = {row["name"]: row for row in found["rows"] if "graph" in row}
        ops = dict.fromkeys(key.rsplit(".", 3)[0] for key in reached if key.count(".") >= 3)
        rows = []
        for op in ops:
            cells = []
            for what in ("forward", "backward"):
                for dtype in DTYPES:
                    row = reached.get(f"{op}.{what}.{dtype}.{COLUMNS}")
                    cells.append(f"{100 * row['graph']['of_copy']:.0f}" if row else "")
            if any(cells):
                rows.append([op.removeprefix("catalogue.").replace(".", ", "), *cells])
        if not rows:
            continue
        size = max(math.prod(row["shape"]) for row in reached.values())
        parts.append(
            f"On {record['device']}, commit {found['commit'][:9]} "
            f"([every row](benchmarks/{name})), rows of {COLUMNS} columns, up to "
            f"{size >> 20} Mi elements:"
        )
        short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
        header = [f"{what} {short[d]}" for what in ("forward", "backward") for d in DTYPES]
        parts.append(table(["% of a copy", *header], rows))
    return "\n\n".join(parts) or "Not measured yet."
