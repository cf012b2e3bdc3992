"""Figures of convolutions, batch norm, pools and resizing, from scripts/compare_vision.py."""

from __future__ import annotations

from scripts.figures.records import BENCHMARKS, machine_of, read, table

RECORD = "cpu-vision.json"
COLUMNS = {
    "torch, channels first": "over torch, channels first",
    "torch, channels last": "over torch, channels last",
    "jax": "over XLA",
}


def of_vision(*names: str) -> str:
    """Returns how many times as fast bridge is, in the rows of ops whose names begin so."""
    if not (BENCHMARKS / RECORD).exists():
        return "Not measured yet."
    report = read(RECORD)
    lines = []
    for row in report["rows"]:
        if not row["op"].startswith(names):
            continue
        times = (f"{row['times'][n]:.2f} (± {row['spread'][n] / 2:.2f})" for n in COLUMNS)
        lines.append([row["op"], row["what"], row["shape"], *times])
    if not lines:
        return "Not measured yet."
    means = [
        f"{op}: {', '.join(f'{mean[n]:.2f}' for n in COLUMNS)}"
        for op, mean in report["means"].items()
        if op.startswith(names)
    ]
    where = (
        "How many times as fast bridge is, medians of rounds in turn with half the distance of the "
        "quartiles. torch's time is that of its faster layout of the channels. Geometric means: "
        f"{'; '.join(means)}. Measured on {machine_of(report)}; every row is in "
        f"[docs/benchmarks/{RECORD}](../benchmarks/{RECORD}), written by "
        "`scripts/compare_vision.py`."
    )
    return f"{table(['op', 'pass', 'size', *COLUMNS.values()], lines)}\n\n{where}"
