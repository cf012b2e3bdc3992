"""Writes bits.json from torch's results on this machine, or compares results with it.

python -m tests.golden
python -m tests.golden --check FRAMEWORK [--step N] [--json FILE]

With --check nothing but NumPy, ml_dtypes and the framework is needed: an installed wheel can be
compared where there is no pytest.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from bridge import _native
from tests.frameworks import FRAMEWORKS
from tests.golden.results import BITS, every, hashes, inputs_of


def write() -> None:
    kept = {
        name: hashes(FRAMEWORKS[0], case, inputs_of(case, dtypes)) for name, case, dtypes in every()
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(kept[name])}" for name in kept)
    BITS.write_text("{\n" + lines + "\n}\n")
    print(f"{len(kept)} cases in {BITS}")


def instruction_sets() -> list[str]:
    """Returns the instruction sets of the build that this processor runs."""
    usable = []
    for isa in _native.build_info()["cpu_isas"]:
        try:
            _native.set_cpu_isa(isa)
        except ValueError:
            continue
        usable.append(isa)
    return usable


def check(framework: Any, step: int) -> dict[str, Any]:
    """Compares every `step`-th case on each instruction set; returns the numbers of equal cases."""
    golden = json.loads(BITS.read_text())
    cases = [*every()][::step]
    equal, others = {}, []
    for isa in instruction_sets():
        _native.set_cpu_isa(isa)
        wrong = [
            f"{isa}: {name}"
            for name, case, dtypes in cases
            if hashes(framework, case, inputs_of(case, dtypes)) != golden[name]
        ]
        equal[isa] = len(cases) - len(wrong)
        others += wrong
    _native.set_cpu_isa(None)
    return {"framework": framework.name, "cases": len(cases), "equal": equal, "others": others}


def main() -> int:
    """Runs the command line; returns 1 if a result has other bits."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("--check", choices=[each.name for each in FRAMEWORKS])
    parser.add_argument("--step", type=int, default=1, help="compare every STEP-th case")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument("--emulator", help="the name of the processor's emulator, for the file")
    chosen = parser.parse_args()
    if chosen.check is None:
        write()
        return 0
    (framework,) = (each for each in FRAMEWORKS if each.name == chosen.check)
    machine = {"machine": platform.machine(), "compiler": _native.build_info()["compiler"]}
    if chosen.emulator is not None:
        machine["emulator"] = chosen.emulator
    found = machine | check(framework, chosen.step)
    print(json.dumps(found))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if found["others"] else 0


if __name__ == "__main__":
    sys.exit(main())
