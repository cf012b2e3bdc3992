"""What was found to be right: accuracy over all inputs, and the stages that ran on a GPU."""

from __future__ import annotations

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
