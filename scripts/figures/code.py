"""The code of an op in figures: machine instructions of its kernels, lines of its adapters."""

from __future__ import annotations

from math import exp, log
from typing import Any

from scripts.count_adapter_lines import BESIDES, FAMILIES, LIMIT, count, count_family
from scripts.figures.records import read, table

# Pages with kernels in cubin.json.
WITH_KERNELS = {"softmax": ("softmax", "jacobian")}


def machine_code(op: str) -> str:
    """Returns the table of instruction counts of the sm_90 kernels, read from the cubin."""
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
    header += ["on the longest path"] if with_longest else []
    return table([*header, "registers", "bytes spilled"], rows)


def is_quoted(op: str, kernel: dict[str, Any]) -> bool:
    """True for an ahead-of-time kernel of the op for sm_90, in bfloat16 or float32."""
    words = kernel["kernel"].split()
    if kernel["arch"] != "90" or kernel["instructions_per_element"] is None:
        return False
    if words[0] not in WITH_KERNELS[op] or words[1] not in ("bfloat16", "float32"):
        return False
    return "any" not in words


def in_order(kernel: dict[str, Any]) -> list[tuple[bool, int, str]]:
    """Returns a sort key that compares names as text, and numbers in them as numbers."""
    words = kernel["kernel"].split()
    return [(not word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]


def counted(count: float, limit: float | None) -> str:
    return f"{count:.1f}" if limit is None else f"{count:.1f} (limit {limit:g})"


def code_lines() -> str:
    """Returns the table of lines of each family in the adapters."""
    families = [[family, *map(str, count_family(family))] for family in FAMILIES]
    besides = [[f"`bridge/{file}`", what, str(count(file)[0])] for file, what in BESIDES.items()]
    header = ["family", "torch", "JAX", f"both (fewer than {LIMIT})", "import lines of both"]
    return "\n\n".join(
        [table(header, families), "Besides:", table(["file", "content", "lines"], besides)]
    )


def by_hand() -> str:
    """Returns the table of generated time over time by hand, from compare_hand_written.py."""
    record = read("hand-written-cpu.json")
    found: dict[str, dict[str, list[float]]] = {}
    for name, row in record["rows"].items():
        kernel, dtype, _ = name.split(", ")
        found.setdefault(kernel, {}).setdefault(dtype, []).append(row["ratio"])
    dtypes = [*next(iter(found.values()))]
    rows = []
    for kernel, ratios in found.items():
        cells = []
        for dtype in dtypes:
            mean = exp(sum(map(log, ratios[dtype])) / len(ratios[dtype]))
            cells.append(f"{mean:.2f} ({min(ratios[dtype]):.2f} to {max(ratios[dtype]):.2f})")
        rows.append([kernel, *cells])
    shapes = ", ".join(dict.fromkeys(name.rpartition(", ")[2] for name in record["rows"]))
    text = (
        f"Time of the generated kernel over the time of the kernel by hand, on one thread of an "
        f"{record['processor']}: geometric mean, least and largest of {shapes}."
    )
    return f"{text}\n\n{table(['program', *dtypes], rows)}"
