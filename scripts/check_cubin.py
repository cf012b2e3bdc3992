#!/usr/bin/env python3
"""Compiles the CUDA kernels and checks their machine code against limits.

Registers, stack and spills come from ptxas, instruction counts from the disassembly (nvdisasm of
the CUDA toolkit or of the PyPI package nvidia-cuda-nvdisasm). The count of a softmax kernel is
taken on a path through its code, the plain one and the longest (see row_path.py), for rows that
fill all vectors of their threads, and divided by the number of elements that the path writes.

The exit status is 1 if a kernel spills more than SPILL_LIMITS allows, or exceeds one of LIMITS.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from loop_share import multiply_add_share
from row_path import longest_way, plain_way

CPP = Path(__file__).resolve().parent.parent / "cpp"
SOURCES = [
    "interpreter/interpreter.cu",
    "drivers/columns/column_sums.cu",
    "convolution/convolution.cu",
    "convolution/tensor_convolution.cu",
    "embedding/embedding.cu",
    "selection/selection.cu",
    "hand_written/softmax.cu",
    "hand_written/jacobian.cu",
    "products/product.cu",
    "products/tensor_product.cu",
]
ARCHS = ["80", "90", "100"]
# The flags of cpp/cuda/CMakeLists.txt.
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"]

# Instructions per element, by architecture and kernel. At 3.0 TB/s an H100 has about 39 issue slots
# for each 16-bit element read and written, an H200 27; float32 has twice as many.
LIMITS = {
    ("90", "softmax bfloat16 to 32 columns"): 32.0,
    ("90", "softmax float16 to 32 columns"): 34.0,
} | {
    ("90", f"{op} {dtype} to {cols} columns"): limit
    for op, limits in {
        "softmax": {"bfloat16": 24.0, "float16": 24.0, "float32": 52.0},
        "jacobian": {"bfloat16": 26.0, "float16": 26.0, "float32": 30.0},
    }.items()
    for dtype, limit in limits.items()
    for cols in (128, 256, 512, 1024)
}
# The same limits with a mask and a causal rule that hide something in every vector.
LONGEST_LIMITS = {
    ("90", f"softmax {dtype} to {cols} columns"): limit
    for dtype, limit in (("bfloat16", 34.0), ("float16", 36.0))
    for cols in (128, 256, 512, 1024)
}

# The least share of multiply-adds among the instructions of a product's innermost loop. A warp's
# instruction for tensor cores has 2048 of them.
SHARES = {("90", "product float32, tiles of 128 x 128, vectors"): 0.85} | {
    ("90", f"tensor product {dtype}, tiles of 128 x 128, adjacent {a} and {b}"): 0.24
    for dtype in ("float16", "bfloat16")
    for a in ("terms", "lanes")
    for b in ("terms", "lanes")
}
# A convolution finds the place of each of its runs, as many instructions again.
SHARES |= {
    ("90", f"tensor convolution {dtype}, tiles of 128 x 128, adjacent {a} and {b}"): share
    for dtype in ("float16", "bfloat16")
    for a, b, share in (
        ("terms", "terms", 0.125),
        ("terms", "lanes", 0.11),
        ("lanes", "lanes", 0.095),
    )
}

# Bytes stored and loaded again, for kernels that may spill. The softmax: 1024 threads have 64
# registers each, and for sm_100 the compiler spills one value before the loops. The product:
# outside of the innermost loop, 20 values for 1,024 multiply-adds; with fewer terms there none is
# spilled, but its share of multiply-adds falls from 93 % to 90 %. The convolution: for arrays whose
# offsets need 64 bits, two values before its loops.
SPILL_LIMITS = (
    {("100", "softmax float32 to 32768 columns any alignment"): 8}
    | {(arch, "product float32, tiles of 128 x 128, vectors"): 320 for arch in ("80", "100")}
    | {
        ("90", f"tensor convolution {dtype}, tiles of 32 x 32, any layout and size"): 16
        for dtype in ("float16", "bfloat16")
    }
)

# The mangled form of a template argument, the dtype's name, its bytes.
DTYPES = {
    "d": ("float64", 8),
    "f": ("float32", 4),
    "bfloat16": ("bfloat16", 2),
    "float16": ("float16", 2),
}


@dataclass
class KernelReport:
    """The compiler's output for one kernel on one architecture."""

    arch: str
    kernel: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    loop_instructions: int | None = None
    loop_elements: int | None = None
    limit: float | None = None
    longest_instructions: int | None = None  # of the longest path
    longest_limit: float | None = None
    fma_share: float | None = None
    least_share: float | None = None

    @property
    def per_element(self) -> float | None:
        """Instructions of the plain path per element, None if none were counted."""
        if not self.loop_instructions or not self.loop_elements:
            return None
        return self.loop_instructions / self.loop_elements

    @property
    def longest_per_element(self) -> float | None:
        """Instructions of the longest path per element, None if none were counted."""
        if not self.longest_instructions or not self.loop_elements:
            return None
        return self.longest_instructions / self.loop_elements

    def faults(self) -> list[str]:
        """Returns descriptions of the limits that this kernel breaks."""
        found = []
        spilled = self.spill_store_bytes + self.spill_load_bytes
        if spilled > SPILL_LIMITS.get((self.arch, self.kernel), 0):
            found.append(f"spills {self.spill_store_bytes}+{self.spill_load_bytes} bytes")
        if self.limit is not None and self.per_element is None:
            found.append("no 16-byte stores found")
        if self.limit is not None and (self.per_element or 0.0) > self.limit:
            found.append(f"{self.per_element:.2f} instructions per element, limit {self.limit:g}")
        if (
            self.longest_limit is not None
            and (self.longest_per_element or 0.0) > self.longest_limit
        ):
            found.append(f"{self.longest_per_element:.2f} at most, limit {self.longest_limit:g}")
        if self.least_share is not None and (self.fma_share or 0.0) < self.least_share:
            found.append(
                f"{self.fma_share or 0:.0%} multiply-adds, at least {self.least_share:.0%}"
            )
        return found


def readable(symbol: str) -> tuple[str, int | None]:
    """Returns the kernel's readable name and its bytes per element (None for run-time dtypes)."""
    dtype_of = r"(?:([df])|N?S\d?_?N?S?\d*_?(?:4math)?\d*(bfloat16|float16)E)"
    rows = re.search(
        r"\d(softmax|jacobian)\d+(?:Rows|Jacobian)KernelINS_4rows\d+(Group|Block|Cluster)TeamI"
        + dtype_of
        + r"Li(\d+)E(?:Li(\d+)E)?.*?(Lb1E)?E+EvNT_6Params",
        symbol,
    )
    if rows:
        dtype, size = DTYPES[rows[3] or rows[4]]
        threads, vectors = int(rows[5]), int(rows[6] or 1)
        columns = threads * vectors * 16 // size if rows[2] == "Group" else threads * 1024
        to = f"to {columns} columns" if rows[2] != "Cluster" else "in clusters"
        kind = "" if rows[7] else " any alignment"
        name = f"{rows[1]} {dtype} {to}{kind}"
        return name, None if kind else size
    tile = re.search(r"ConvolutionKernelI([df])Li(\d+)ELi(\d+)E", symbol)
    if tile:
        rows, cols = 16 * int(tile[2]), 16 * int(tile[3])
        return f"convolution {DTYPES[tile[1]][0]}, tiles of {rows} x {cols}", None
    tile = re.search(r"TileKernelI([df])Li(\d+)ELi(\d+)ELb([01])E", symbol)
    if tile:
        rows, cols = 16 * int(tile[2]), 16 * int(tile[3])
        kind = "vectors" if tile[4] == "1" else "any layout"
        return f"product {DTYPES[tile[1]][0]}, tiles of {rows} x {cols}, {kind}", None
    tile = re.search(
        r"Tensor(Convolution)?KernelI([il])?"
        + dtype_of
        + r"L\w*?RunsE(\d)EL\w*?(\d)ELi(\d+)ELi(\d+)ELi(\d+)ELi(\d+)E",
        symbol,
    )
    if tile:
        of = "convolution" if tile[1] else "product"
        kinds = ("terms", "lanes")
        runs = "any layout" if tile[2] != "l" else "any layout and size"
        if tile[5] != "2":
            runs = f"adjacent {kinds[int(tile[5])]} and {kinds[int(tile[6])]}"
        rows, cols = int(tile[7]) * int(tile[9]), int(tile[8]) * int(tile[10])
        return f"tensor {of} {tile[4]}, tiles of {rows} x {cols}, {runs}", None
    program = re.search(r"ProgramKernelI([df])Li(\d+)E", symbol)
    if program:
        dtype = DTYPES[program[1]][0]
        return f"program {dtype} arithmetic, {program[2]} bytes of parameters", None
    chunks = re.search(r"ChunkSumsKernelI([df])", symbol)
    if chunks:
        return f"program's column sums {DTYPES[chunks[1]][0]}", None
    embedding = re.search(r"(Chunks|ChunkTree)KernelI" + dtype_of, symbol)
    if embedding:
        kind = "chunks" if embedding[1] == "Chunks" else "tree"
        return f"embedding's {kind} {DTYPES[embedding[2] or embedding[3]][0]}", None
    selection = re.search(r"SelectionKernelI" + dtype_of + r"Li(\d+)E", symbol)
    if selection:
        dtype = DTYPES[selection[1] or selection[2]][0]
        return f"selection {dtype}, {selection[3]} warps a row", None
    if "StartsKernel" in symbol:
        return "embedding's starts", None
    tree = re.search(r"TreeKernelI([df])", symbol)
    if tree:
        return f"column sums {DTYPES[tree[1]][0]}", None
    return symbol, None


def find_nvdisasm(nvcc: str) -> str | None:
    """Finds the disassembler: on the path, beside nvcc, or in the PyPI package."""
    beside = Path(nvcc).resolve().parent / "nvdisasm"
    found = shutil.which("nvdisasm") or (str(beside) if beside.exists() else None)
    if found:
        return found
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        return None
    return next((str(f.locate()) for f in files if f.name == "nvdisasm"), None)


Code = tuple[list[str], dict[str, int]]  # the instructions, and the index of each label in them


def disassemble(nvdisasm: str, cubin: Path) -> dict[str, Code]:
    """Returns the code of every kernel by its symbol."""
    text = subprocess.run(
        [nvdisasm, "-c", str(cubin)], check=True, capture_output=True, text=True
    ).stdout
    code = {}
    for section in re.split(r"\n(?=\s*\.section\s+\.text\.)", text):
        header = re.match(r"\s*\.section\s+\.text\.([^,\s]+)", section)
        if not header:
            continue
        instructions: list[str] = []
        labels: dict[str, int] = {}
        for line in section.splitlines():
            if label := re.match(r"(\.L_\S+):", line):
                labels[label[1]] = len(instructions)
            elif text_of := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
                instructions.append(text_of[1])
        code[header[1]] = (instructions, labels)
    return code


def compile_cubin(nvcc: str, source: str, arch: str, folder: Path) -> tuple[Path, str]:
    """Compiles one source; returns its cubin and the output of ptxas."""
    cubin = folder / f"{Path(source).stem}_{arch}.cubin"
    command = [nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-cubin"]
    command += [f"-I{CPP}", f"-I{CPP / 'include'}", f"-I{CPP / 'cuda'}", "-Xptxas=-v"]
    done = subprocess.run(
        [*command, str(CPP / source), "-o", str(cubin)], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"nvcc failed on {source} for sm_{arch}:\n{done.stderr}")
    return cubin, done.stderr


def inspect(
    nvcc: str, nvdisasm: str | None, source: str, arch: str, folder: Path
) -> list[KernelReport]:
    """Returns the reports of every kernel of one source for one architecture."""
    cubin, log = compile_cubin(nvcc, source, arch, folder)
    code = disassemble(nvdisasm, cubin) if nvdisasm else {}
    reports = []
    pattern = (
        r"Compiling entry function '(\S+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers"
    )
    for match in re.finditer(pattern, log, re.DOTALL):
        name, size = readable(match[1])
        report = KernelReport(
            arch, name, int(match[5]), int(match[2]), int(match[3]), int(match[4])
        )
        instructions, labels = code.get(match[1], ([], {}))
        if name.startswith(("softmax", "jacobian")):
            way = plain_way(instructions, labels)
            report.longest_instructions = len(longest_way(instructions, labels))
            if way and size:
                report.loop_instructions = len(way)
                stores = sum("STG.E.128" in line for line in way)
                report.loop_elements = stores * (16 // size)
        if nvdisasm and name.startswith(("product", "tensor")):
            report.fma_share = multiply_add_share(instructions, labels)
            report.least_share = SHARES.get((arch, name))
        if nvdisasm:
            report.limit = LIMITS.get((arch, name))
            report.longest_limit = LONGEST_LIMITS.get((arch, name))
        reports.append(report)
    return sorted(reports, key=lambda report: report.kernel)


def table(reports: list[KernelReport]) -> str:
    """Returns the reports as a text table."""
    width = max(len(report.kernel) for report in reports)
    lines = [f"{'arch':>5}  {'kernel':<{width}}  registers  stack  spills  instructions/element"]
    for r in reports:
        count = "" if r.per_element is None else f"{r.per_element:.2f}"
        limit = "" if r.limit is None else f" (limit {r.limit:g})"
        if r.longest_per_element is not None:
            limit += f", at most {r.longest_per_element:.2f}"
        if r.fma_share is not None:
            limit += f"{r.fma_share:.1%} multiply-adds in the innermost loop"
        fault = "  <- " + ", ".join(r.faults()) if r.faults() else ""
        spills = r.spill_store_bytes + r.spill_load_bytes
        lines.append(
            f"sm_{r.arch:<3} {r.kernel:<{width}}  {r.registers:>9}  {r.stack_bytes:>5}"
            f"  {spills:>6}  {count:>8}{limit}{fault}"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--archs", default=",".join(ARCHS), help="comma-separated, 90 for sm_90")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there too")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument(
        "--if-available",
        action="store_true",
        help="exit with status 0 and a message if there is no nvcc",
    )
    arguments = parser.parse_args()
    nvcc = shutil.which(arguments.nvcc)
    if nvcc is None:
        print(f"check_cubin: no {arguments.nvcc} on this machine, nothing checked")
        return 0 if arguments.if_available else 1
    archs = arguments.archs.split(",")
    nvdisasm = find_nvdisasm(nvcc)
    if nvdisasm is None:
        print(
            "check_cubin: no nvdisasm (pip install nvidia-cuda-nvdisasm): instructions not counted"
        )

    jobs = [(source, arch) for arch in archs for source in SOURCES]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda job: inspect(nvcc, nvdisasm, *job, Path(folder)), jobs)
        reports = [report for part in parts for report in part]

    print(table(reports))
    faults = [report for report in reports if report.faults()]
    known = {(report.arch, report.kernel) for report in reports}
    missing = [
        f"sm_{arch} {kernel}"
        for arch, kernel in [*LIMITS, *SHARES]
        if arch in archs and (arch, kernel) not in known
    ]
    for kernel in missing:
        print(f"check_cubin: {kernel} has a limit but is not among the kernels")
    print(f"{len(reports)} kernels, {len(faults) + len(missing)} beyond their limits")
    if arguments.json:
        rows = [asdict(r) | {"instructions_per_element": r.per_element} for r in reports]
        arguments.json.write_text(
            json.dumps({"nvdisasm": bool(nvdisasm), "kernels": rows}, indent=1)
        )
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main())
