#!/usr/bin/env python3
"""Compile declared ops for CUDA and hold the machine code of their kernels to limits.

What is looked at are the kernels of aligned rows: short ones, those that stay in registers, and
long ones. They use no local memory, so that nothing is spilled. The instructions of an element are
those of the plain way through the code (see row_path.py) for rows that fill all vectors; reads in
flight are the 16-byte loads that a thread has under way before it uses the first, times the
threads that the registers leave room for on a multiprocessor. All of it is computed from the
code: nothing was measured.

Exit status 1 if a kernel exceeds one of LIMITS; 2 where NVRTC and nvcc, or nvdisasm, are missing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import check_cubin
from row_path import plain_way

import bridge
from bridge import lang as bl
from bridge.generated.ahead import usual_requests
from bridge.generated.cache import CompileError
from bridge.generated.cuda_compiler import cubin_of
from bridge.lang.emission_cuda import cuda_source_of
from bridge.ops.declared import traced

ARCH = "sm_90"
REGISTERS, THREADS, BLOCK = 65536, 2048, 256  # of a multiprocessor of sm_90, and of a block
KERNELS = ("bridge_short_aligned", "bridge_resident_aligned", "bridge_long_aligned")


@bridge.op
def rms_norm(x: bridge.Full, weight: bridge.Row, *, eps: float = 1e-6):
    return x * bl.rsqrt(bl.mean(x * x) + eps) * weight


@bridge.op
def layer_norm(x: bridge.Full, weight: bridge.Row, bias: bridge.Row, *, eps: float = 1e-5):
    centred = x - bl.mean(x)
    return centred * bl.rsqrt(bl.mean(centred * centred) + eps) * weight + bias


@bridge.op
def log_softmax(x: bridge.Full):
    return x - bl.logsumexp(x)


@bridge.op
def swish_gate(x: bridge.Halves, bias: bridge.Row):
    gate, up = x
    return bl.silu(gate + bias) * up


OPS = (rms_norm, layer_norm, log_softmax, swish_gate)


@dataclass(frozen=True)
class Limits:
    """Instructions of an element, in any kernel; reads in flight, in KiB for a multiprocessor, of
    the kernels for more than short rows."""

    instructions: float
    reads: float = 32.0


LIMITS = {
    ("rms_norm", "bfloat16"): Limits(21),
    ("rms_norm", "float32"): Limits(28),
    ("layer_norm", "bfloat16"): Limits(31),
    ("layer_norm", "float32"): Limits(40),
    ("log_softmax", "bfloat16"): Limits(52),
    ("log_softmax", "float32"): Limits(58),
    ("swish_gate", "bfloat16"): Limits(100),
    ("swish_gate", "float32"): Limits(108),
}


@dataclass(frozen=True)
class Report:
    """What the code of one kernel says."""

    op: str
    dtype: str
    kernel: str
    registers: int
    local: int  # instructions on local memory
    per_element: float
    reads: float  # KiB in flight

    def faults(self) -> list[str]:
        """The limits that the kernel breaks, in words."""
        limits = LIMITS[self.op, self.dtype]
        found = []
        if self.local:
            found.append(f"{self.local} instructions on local memory")
        if self.registers > 128:
            found.append(f"{self.registers} registers, of which two blocks have 128")
        if self.per_element > limits.instructions:
            found.append(f"{self.per_element:.1f} instructions per element")
        if "short" not in self.kernel and self.reads < limits.reads:
            found.append(f"{self.reads:.0f} KiB in flight, expected {limits.reads:.0f}")
        return found


def _registers(instructions: list[str]) -> int:
    numbers = [int(n) for line in instructions for n in re.findall(r"\bR(\d+)\b", line)]
    # A 16-byte load names the first of four.
    wide = [int(n) + 3 for line in instructions for n in re.findall(r"\.128 R(\d+)", line)]
    return 1 + max([*numbers, *wide])


def loads_in_flight(way: list[str]) -> int:
    """How many 16-byte loads stand before the first use of one."""
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


def report_of(op: str, dtype: str, kernel: str, code: check_cubin.Code, vector: int) -> Report:
    instructions, labels = code
    elements = 4 * vector if "short" in kernel else 32  # of a thread
    way = plain_way(instructions, labels)
    registers = _registers(instructions)
    rounded = (registers + 7) // 8 * 8
    blocks = min(REGISTERS // (rounded * BLOCK), THREADS // BLOCK)
    return Report(
        op,
        dtype,
        kernel,
        registers,
        sum(bool(re.match(r"(@!?U?P\d+\s+)?(LDL|STL)", line)) for line in instructions),
        len(way) / elements,
        blocks * BLOCK * loads_in_flight(way) * 16 / 1024,
    )


def reports(nvdisasm: str, op: Any, dtype: str) -> Iterator[Report]:
    """Those of an op's forward pass.

    Raises:
      CompileError: if there is no CUDA compiler.
    """
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    found = traced(declaration, present, *declaration.static.values())
    request = next(usual_requests(found, dtype))
    emitted = cuda_source_of(request.program, request.arithmetic, request.dtypes)
    code = check_cubin.disassemble(nvdisasm, cubin_of(emitted.source, ARCH))
    for kernel in KERNELS:
        if kernel in code:
            yield report_of(declaration.name, dtype, kernel, code[kernel], emitted.vector)


def table(rows: list[Report]) -> str:
    """The reports in columns."""
    lines = [f"{'op':<12} {'dtype':<9} {'kernel':<24} registers  instr./element  KiB in flight"]
    for r in rows:
        fault = "  <- " + ", ".join(r.faults()) if r.faults() else ""
        lines.append(
            f"{r.op:<12} {r.dtype:<9} {r.kernel:<24} {r.registers:>9}  {r.per_element:>14.1f}"
            f"  {r.reads:>13.0f}{fault}"
        )
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    nvdisasm = check_cubin.find_nvdisasm("nvcc")
    if nvdisasm is None:
        print("check_generated: no nvdisasm (pip install nvidia-cuda-nvdisasm), nothing checked")
        return 2
    try:
        rows = [r for op in OPS for d in ("bfloat16", "float32") for r in reports(nvdisasm, op, d)]
    except CompileError as error:
        print(f"check_generated: {error}")
        return 2
    print(table(rows))
    return 1 if any(row.faults() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
