#!/usr/bin/env python3
"""Compiles the catalogue's training programs for CUDA and checks their machine code against limits.

The script inspects the kernels of aligned rows: short rows (also rows that are all the vectors of
some threads), rows that stay in registers, one or several chunks in a warp, long rows, and kernels
that go down columns and add them up.

On the path of whole chunks no kernel may use local memory: nothing may be spilled there. Programs
with an entry in LIMITS may use a little where the last chunk of a row is partial.

Instructions per element are counted on the plain path through the code (see row_path.py), for rows
that fill all vectors:
- where columns are added up, for the 16 rows of a leaf of their tree, one after another, and down
  columns four at a time;
- for warps that go from chunk to chunk of a long row, for 16 chunks;
- for several warps that share a row, for the first warp, which alone does the work that is done
  once.

Reads in flight are the 16-byte loads of a thread before it uses the first one, times the threads
that fit on a multiprocessor by their registers. All numbers are computed from the code: nothing is
measured.

The exit status is 1 if a kernel exceeds one of LIMITS, and 2 if NVRTC and nvcc, or nvdisasm, are
missing.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import check_cubin
from row_path import inner_loops, loops, plain_places

from bridge.catalogue import ahead_of_time
from bridge.generated.cache import CompileError
from bridge.generated.cuda_compiler import cubin_of
from bridge.lang.emission.cuda import cuda_source_of

ARCH = "sm_90"
REGISTERS, THREADS, BLOCK = 65536, 2048, 256  # per multiprocessor of sm_90, and per block
KERNELS = (
    "bridge_short_aligned",
    "bridge_resident_aligned",
    "bridge_long_aligned",
    "bridge_columns_aligned",
    "bridge_wide_aligned",
    "bridge_short_whole",
)


@dataclass(frozen=True)
class Limits:
    """Limits of the kernels of a program.

    Attributes:
      instructions: per element, in any kernel.
      columns: in the kernel that goes down columns.
      resident: in the kernel whose rows stay in registers.
      long: in the kernel of long rows.
      wide: in the kernel with several chunks of a row in a warp.
      whole: in the kernel of short rows that are all the vectors of some threads.
      reads: reads in flight, in KiB per multiprocessor, in kernels for more than short rows.
      local_aside: instructions on local memory off the plain path.
    """

    instructions: float
    columns: float = math.inf
    resident: float = math.inf
    long: float = math.inf
    wide: float = math.inf
    whole: float = math.inf
    reads: float = 32.0
    local_aside: int = 0


# For training: the limits of the forward pass, which stores residuals, and of the backward pass.
LIMITS = {
    ("rms_norm", "float32"): (
        Limits(19.6, resident=12.6, long=10.4, whole=11.2),
        Limits(27.2, resident=21.2, long=20, whole=22),
    ),
    ("rms_norm", "bfloat16"): (
        Limits(15.2, resident=14.1, long=11, whole=10.7),
        Limits(23, long=22.5, whole=20.7),
    ),
    ("rms_norm + residual", "float32"): (
        Limits(29, resident=20.5, long=18.5, whole=19),
        Limits(31.3, resident=25, long=24, whole=27.2),
    ),
    ("rms_norm + residual", "bfloat16"): (
        Limits(19.5, resident=17.8, long=18.6, whole=13.5),
        Limits(26.7, resident=24.6, long=25.6, whole=24.4),
    ),
    ("layer_norm", "float32"): (
        Limits(34.4, resident=24.1, long=20, whole=19.5),
        Limits(38.1, resident=31.2, long=28.4, whole=32.7),
    ),
    ("layer_norm", "bfloat16"): (
        Limits(28.2, long=22.6, wide=20.7, whole=20, local_aside=28),
        Limits(33.4, resident=29.3, long=30.8, whole=30.2),
    ),
    ("swiglu packed", "float32"): (Limits(48, whole=42.3), Limits(125, whole=116.2)),
    ("swiglu packed", "bfloat16"): (Limits(27, whole=23.8), Limits(38, whole=33.9)),
    ("swiglu", "float32"): (Limits(48, whole=42.1), Limits(124, whole=115.8)),
    ("swiglu", "bfloat16"): (Limits(27, whole=23.7), Limits(38, whole=33.7)),
    ("cross_entropy", "float32"): (
        Limits(34.3, long=19.3, whole=23.6),
        Limits(34.3, long=22.1, whole=27),
    ),
    ("cross_entropy", "bfloat16"): (
        Limits(23.5, long=16.1, wide=15.9, whole=16.9),
        Limits(22.4, long=16.7, whole=18.6),
    ),
    ("bias_gelu tanh", "float32"): (Limits(52, 47, whole=45.4), Limits(84, 78, whole=77.6)),
    ("bias_gelu tanh", "bfloat16"): (Limits(26, 22, whole=22.7), Limits(35, 34, whole=32.7)),
    ("bias_gelu none", "float32"): (Limits(60, 55, whole=53.5), Limits(78, 72, whole=72.2)),
    ("bias_gelu none", "bfloat16"): (Limits(30, 28, whole=26.7), Limits(37, 34, whole=34.7)),
    ("bias_dropout_add", "float32"): (Limits(38, 18.3), Limits(38, 15)),
    ("bias_dropout_add", "bfloat16"): (Limits(28, 14), Limits(28, 10.31)),
    ("bias_dropout_add in evaluation", "float32"): (Limits(15, whole=8.6), Limits(7, whole=4)),
    ("bias_dropout_add in evaluation", "bfloat16"): (Limits(11, whole=7.9), Limits(5, whole=3.8)),
}


@dataclass(frozen=True)
class Report:
    """Statistics read from the machine code of one kernel."""

    op: str
    dtype: str
    is_backward: bool
    kernel: str
    registers: int
    local: int  # instructions on local memory, on the plain path
    local_aside: int  # the same off the plain path
    per_element: float
    reads: float  # KiB in flight

    def faults(self) -> list[str]:
        """Returns descriptions of the limits that the kernel breaks."""
        limits = LIMITS[self.op, self.dtype][self.is_backward]
        found = []
        if self.local or self.local_aside > limits.local_aside:
            found.append(f"{self.local} + {self.local_aside} instructions on local memory")
        if self.registers > 128:
            found.append(f"{self.registers} registers, of which two blocks have 128")
        most = limits.instructions
        for kind in ("columns", "resident", "long", "wide", "whole"):
            most = min(most, getattr(limits, kind) if kind in self.kernel else math.inf)
        if self.per_element > most:
            found.append(f"{self.per_element:.1f} instructions per element")
        if "short" not in self.kernel and self.reads < limits.reads:
            found.append(f"{self.reads:.0f} KiB in flight, expected {limits.reads:.0f}")
        return found


def _registers(instructions: list[str]) -> int:
    numbers = [int(n) for line in instructions for n in re.findall(r"\bR(\d+)\b", line)]
    # A 16-byte load names the first of its four registers.
    wide = [int(n) + 3 for line in instructions for n in re.findall(r"\.128 R(\d+)", line)]
    return 1 + max([*numbers, *wide])


def _local(instructions: list[str]) -> int:
    return sum(bool(re.match(r"(@!?U?P\d+\s+)?(LDL|STL)", line)) for line in instructions)


def loads_in_flight(way: list[str]) -> int:
    """Counts the 16-byte loads before the first use of one."""
    loaded: set[int] = set()
    count = 0
    for line in way:
        operands = line.split(None, 2 if line.startswith("@") else 1)[-1]
        load = re.match(r"R(\d+), desc", operands) if "LDG.E.128" in line else None
        read = {int(n) for n in re.findall(r"\bR(\d+)\b", operands.partition(",")[2])}
        if read & loaded:
            break
        if load:
            count += 1
            loaded |= set(range(int(load[1]), int(load[1]) + 4))
    return count


def reports(nvdisasm: str, op: str, dtype: str) -> Iterator[Report]:
    """Yields reports of the programs of an op's forward and backward pass in training.

    Raises:
      CompileError: if there is no CUDA compiler.
    """
    for is_backward, request in enumerate([*ahead_of_time.requests_of(op, dtype)][-2:]):
        emitted = cuda_source_of(
            request.program, request.arithmetic, request.dtypes, free=request.free()
        )
        adds_columns = "kColumnSums = 0;" not in emitted.source
        code = check_cubin.disassemble(nvdisasm, cubin_of(emitted.source, ARCH))
        for kernel in filter(code.__contains__, KERNELS):
            instructions, labels = code[kernel]
            elements = 4 * emitted.vector if "short" in kernel else 32  # per thread
            elements *= 4 if "wide" in kernel else 1
            elements *= 2 if "whole" in kernel and not adds_columns else 1
            places = plain_places(instructions, labels)
            way = [instructions[at] for at in places]
            repeated = [set(places) & loop for loop in loops(instructions, labels)]
            outer = max(repeated, key=len, default=set())
            inner = set(places) & (inner_loops(instructions, labels, outer) if outer else set())
            executed = len(way)
            of_row = way
            if "columns" in kernel:
                executed += 3 * len(inner)
                elements = 16 * emitted.vector
            elif adds_columns:
                executed += 15 * len(outer)
                elements *= 16
                of_row = [instructions[at] for at in places if at in outer]
                if "long" in kernel:
                    executed += 16 * 15 * len(inner)
                    elements *= 16
            elif "long" in kernel:
                executed += 15 * sum(map(len, repeated))
                elements *= 16
            registers = _registers(instructions)
            blocks = min(REGISTERS // ((registers + 7) // 8 * 8 * BLOCK), THREADS // BLOCK)
            yield Report(
                op,
                dtype,
                bool(is_backward),
                kernel,
                registers,
                (local := _local(way)),
                _local(instructions) - local,
                executed / elements,
                blocks * BLOCK * loads_in_flight(of_row) * 16 / 1024,
            )


def table(rows: list[Report]) -> str:
    """Returns the reports as a text table."""
    lines = [
        f"{'op':<19} {'dtype':<8} {'pass':<8} {'kernel':<23} registers  instr./element  "
        "KiB in flight"
    ]
    for r in rows:
        fault = "  <- " + ", ".join(r.faults()) if r.faults() else ""
        way = "backward" if r.is_backward else "forward"
        lines.append(
            f"{r.op:<19} {r.dtype:<8} {way:<8} {r.kernel:<23} {r.registers:>9}  "
            f"{r.per_element:>14.1f}  {r.reads:>13.0f}{fault}"
        )
    return "\n".join(lines)


def main() -> int:
    """Runs the command line."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    nvdisasm = check_cubin.find_nvdisasm("nvcc")
    if nvdisasm is None:
        print("check_generated: no nvdisasm (pip install nvidia-cuda-nvdisasm), nothing checked")
        return 2
    try:
        rows = [
            r
            for op in ahead_of_time.OPS
            for d in ahead_of_time.DTYPES
            for r in reports(nvdisasm, op, d)
        ]
    except CompileError as error:
        print(f"check_generated: {error}")
        return 2
    print(table(rows))
    return 1 if any(row.faults() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
