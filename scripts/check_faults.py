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
SUITE = ["tests/test_values.py", "tests/test_bits.py"]
_BOUND = "  if (input.strides == nullptr) return {};\n"


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
        "  if (call->output.full.data != nullptr)\n"
        "    std::memset(call->output.full.data, 0,\n"
        "                (call->output.full.dtype > 2 ? 8 : 2 << (call->output.full.dtype / 2)) *\n"
        "                    call->batch * call->rows * call->cols);\n"
        "  call->output.full.data = nullptr;\n"
        "  if (call->output.row.data == nullptr) call->batch = 0;\n" + _BOUND,
    ),
    Fault(
        "bias ignored",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "  call->input.row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "bias gradient skipped",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "  if (call->output.full.data != nullptr) call->output.row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "derivative order swapped",
        "cpp/python/bias_gelu_call.cpp",
        "  call->order = order;\n",
        "  call->order = order == 1 ? 2 : order == 2 ? 1 : order;\n",
    ),
    Fault(
        "tangent of the bias ignored",
        "cpp/python/bias_gelu_call.cpp",
        _BOUND,
        "  if (call->factors > 0 && call->factor[0].full.data != nullptr)\n"
        "    call->factor[0].row = bridge_array{};\n" + _BOUND,
    ),
    Fault(
        "one lane of the reduction tree moved",
        "cpp/ops/bias_gelu.h",
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
