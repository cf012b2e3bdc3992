#!/usr/bin/env python3
"""Plants faults in a copy of the sources, one at a time, and asks whether the suite sees them.

A fault is an edit of one place, which must be found exactly once: when the code moves, this script
says so. Exit status 1 if a fault survives or its place is gone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = ["tests/test_values.py", "tests/test_bits.py", "tests/test_native.py"]
_BOUND = "    if (call.results_are_fresh || call.operands[0].strides == nullptr) return true;\n"
_MASK = "    call.mask.col_stride = binding.col_stride(1);\n"


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    original: str
    planted: str


# The binding of a call is where both front doors meet: what is dropped there is dropped in torch
# and in JAX alike, so that only a comparison with the reference can tell.
FAULTS = [
    Fault(
        "output zeroed",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "    if (out->output.full.data != nullptr)\n"
        "      __builtin_memset(out->output.full.data, 0, item_bytes(out->output.full.dtype) *\n"
        "                       out->batch * out->rows * out->cols);\n"
        "    out->output.full.data = nullptr;\n"
        "    if (out->output.row.data == nullptr) out->batch = 0;\n" + _BOUND,
    ),
    Fault(
        "bias ignored",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "    out->input.row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "bias gradient skipped",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "    if (out->output.full.data != nullptr) out->output.row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "derivative order swapped",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "    if (out->order == 1 || out->order == 2) out->order = 3 - out->order;\n" + _BOUND,
    ),
    Fault(
        "tangent of the bias ignored",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "    if (out->factors > 0 && out->factor[0].full.data != nullptr)\n"
        "      out->factor[0].row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "mask dropped",
        "cpp/python/softmax_call.cpp",
        _MASK,
        "    call.mask.data = nullptr;\n" + _MASK,
    ),
    Fault(
        "scale dropped",
        "cpp/python/softmax_call.cpp",
        _MASK,
        "    call.scale = 1.0;\n" + _MASK,
    ),
    Fault(
        "causal rule dropped",
        "cpp/python/softmax_call.cpp",
        _MASK,
        "    call.space.causal = 0;\n" + _MASK,
    ),
    Fault(
        "a mask of one batch indexed by batch",
        "cpp/python/row_space.cpp",
        "operand.shape[own] == 1) continue;",
        "false) continue;",
    ),
    Fault(
        "residual ignored",
        "cpp/python/bias_dropout_add_call.cpp",
        "    if (out->index_cols == 0)",
        "    out->residual = bridge_array{};\n    if (out->index_cols == 0)",
    ),
    Fault(
        "seeds of the batches mixed up",
        "cpp/python/bias_dropout_add_call.cpp",
        "    if (out->index_cols == 0)",
        "    out->seed.batch_stride = 0;\n    if (out->index_cols == 0)",
    ),
    Fault(
        "one lane of the reduction tree moved",
        "cpp/ops/column_sum_tree.h",
        "constexpr int64_t kLaneRows = 16;",
        "constexpr int64_t kLaneRows = 32;",
    ),
    Fault(
        "MXCSR guard removed",
        "cpp/cpu/float_environment.h",
        "if (saved_ != kIeee) _mm_setcsr(kIeee);",
        "",
    ),
]


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, **options)  # type: ignore[call-overload]


def copy_if_changed(source: str, target: str) -> None:
    """Copies a file, with the present time where it differs and untouched where it does not.

    A copied time would be older than an object that was compiled with a fault in the file.
    """
    if not Path(target).exists() or Path(source).read_bytes() != Path(target).read_bytes():
        shutil.copyfile(source, target)


def build(tree: Path) -> None:
    result = run(["cmake", "--build", str(tree / "build"), "--target", "_native"])
    if result.returncode != 0:
        sys.exit(f"the faulty tree does not compile:\n{result.stdout[-3000:]}")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shutil.copy2(tree / "build" / f"_native{suffix}", tree / "bridge" / f"_native{suffix}")


def suite_is_red(tree: Path) -> tuple[bool, str]:
    """Whether tests fail (and nothing worse), and the line that says so."""
    # Ahead of an editable install, whose finder would otherwise bring in the sound package.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.run_from_tree", "-x", "-q", "-p", "no:cacheprovider"]
    result = run([*command, *SUITE], cwd=tree, env=environment)
    lines = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    if result.returncode not in (0, 1):
        sys.exit(f"pytest did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return result.returncode == 1, lines[0][:110] if lines else "all tests passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="plant only faults whose name contains this")
    options = parser.parse_args()
    tree = ROOT / "build" / "faults"
    for folder in ("cpp", "cmake", "bridge", "tests"):
        shutil.copytree(
            ROOT / folder,
            tree / folder,
            dirs_exist_ok=True,
            copy_function=copy_if_changed,
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
    for file in ("CMakeLists.txt", "pyproject.toml"):
        copy_if_changed(str(ROOT / file), str(tree / file))
    configure = ["cmake", "-S", str(tree), "-B", str(tree / "build"), "-G", "Ninja"]
    configure += ["-DBRIDGE_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += ["-DCMAKE_BUILD_TYPE=Release"]
    result = run(configure)
    if result.returncode != 0:
        sys.exit(result.stdout + result.stderr)
    build(tree)
    red, line = suite_is_red(tree)
    if red:
        sys.exit(f"the suite fails without any fault: {line}")
    survived = 0
    for fault in FAULTS:
        if options.only and options.only not in fault.name:
            continue
        start = time.monotonic()
        path = tree / fault.file
        sound = path.read_text()
        if sound.count(fault.original) != 1:
            print(f"{fault.name}: its place in {fault.file} is gone")
            survived += 1
            continue
        path.write_text(sound.replace(fault.original, fault.planted))
        try:
            build(tree)
            red, line = suite_is_red(tree)
        finally:
            path.write_text(sound)
        survived += not red
        verdict = "seen" if red else "SURVIVED"
        print(f"{fault.name}: {verdict} ({line}; {time.monotonic() - start:.0f} s)", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
