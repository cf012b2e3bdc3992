"""Figures of products, attention and training steps, from scripts/compare_models.py."""

from __future__ import annotations

from scripts.figures.records import BENCHMARKS, machine_of, read, table

RECORD = "cpu-models.json"
COLUMNS = {"torch": "torch", "torch.compile": "torch.compile", "jax": "jax.jit"}


def of_models() -> str:
    """Returns the time of each row with bridge, and how many times as fast it is."""
    if not (BENCHMARKS / RECORD).exists():
        return "Not measured yet."
    report = read(RECORD)
    header = ["", "size", "bridge in torch, JAX", *(f"over {name}" for name in COLUMNS.values())]
    lines = []
    for row in report["rows"]:
        own = (row["milliseconds"][f"bridge in {name}"] for name in ("torch", "jax"))
        over = (f"{row['times'][name]:.2f} (± {row['spread'][name] / 2:.2f})" for name in COLUMNS)
        lines.append([row["op"], row["shape"], " / ".join(f"{ms:.3g} ms" for ms in own), *over])
    where = (
        "Median times of rounds in turn, and how many times as fast bridge is in the same "
        f"framework, with half the distance of the quartiles: {machine_of(report)}. Every row is "
        f"in [docs/benchmarks/{RECORD}](benchmarks/{RECORD})."
    )
    return f"{table(header, lines)}\n\n{where}"
