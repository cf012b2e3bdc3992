#!/usr/bin/env python3
"""Runs everything without sampling, part by part, for hours: `make exhaustive`.

If a part fails, the others still run. The output of each part goes to a log file in
build/exhaustive/. A line for each, with its verdict and time, goes to the terminal and to
build/exhaustive/summary.txt. The exit status is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "exhaustive"
PYTHON = sys.executable
PARITY = (PYTHON, "-m", "bridge", "parity")
# A worker with its frameworks needs a gigabyte.
WORKERS = ("-n", "logical", "--maxprocesses", "4", "--dist", "worksteal")


@dataclass(frozen=True)
class Part:
    """A command with its own log.

    Attributes:
      about: its purpose, for --list.
      skips_with: exit statuses for a missing tool of the part.
    """

    about: str
    command: tuple[str, ...]
    skips_with: tuple[int, ...] = ()


def suite() -> dict[str, Part]:
    """Returns all cases of the suite, slow ones too: a part per folder, and one for other files."""
    tests = ROOT / "tests"
    paths = {f"tests-{path.name}": [path] for path in sorted(tests.iterdir()) if path.is_dir()}
    paths["tests"] = sorted(tests.glob("test_*.py"))
    command = (PYTHON, "-m", "pytest", "-q", *WORKERS, "-p", "no:cacheprovider")
    command += ("--sample", "0", "-m", "slow or not slow")
    found = {}
    for name, where in paths.items():
        if name == "tests" or any(where[0].rglob("test_*.py")):
            named = tuple(str(path.relative_to(ROOT)) for path in where)
            found[name] = Part(f"all cases of {name.replace('-', '/')}", (*command, *named))
    return found


def parts() -> dict[str, Part]:
    """Returns all parts by name, in the order of their execution."""
    of_script = {
        "random-calls": "random calls of the CPU's kernels, others each time",
        "emulator": "random calls of the CUDA kernels in the emulator, others each time",
        "accuracy-dropout": "the keep rate of dropout over 2^28 words",
        "accuracy-elementary": "every float32 through the elementary functions",
        "accuracy-gelu": "every 16-bit number and every float32 through the forms of GELU",
    }
    found = {
        "cpp": Part(
            "the C++ checks and the CUDA kernels in the emulator, under sanitizers",
            ("scripts/check_cpp.sh",),
        ),
    }
    for name, about in of_script.items():
        found[name] = Part(about, ("scripts/check_exhaustive.sh", name))
    found |= {
        "faults": Part("all planted faults", (PYTHON, "scripts/check_faults.py")),
        "cubin": Part(
            "machine code of the CUDA kernels",
            (PYTHON, "scripts/check_cubin.py", "--if-available"),
        ),
        "generated": Part(
            "machine code of the generated CUDA kernels",
            (PYTHON, "scripts/check_generated.py"),
            skips_with=(2,),
        ),
        "parity": Part(
            "the whole parity grid, under every instruction set",
            (*PARITY, "--all-isas"),
        ),
        "tables": Part(
            "the tables of hashes in docs/parity, under every instruction set",
            (*PARITY, "--against", "docs/parity/x86-64-v4.txt", "--all-isas"),
        ),
    }
    return found | suite()


def run(
    chosen: Mapping[str, Part], logs: Path = LOGS, variables: Mapping[str, str] | None = None
) -> int:
    """Runs parts one after another; returns 1 if one failed, else 0.

    Ctrl-C ends the running part, and the next ones do not begin.
    """
    logs.mkdir(parents=True, exist_ok=True)
    summary = logs / "summary.txt"
    summary.write_text("")
    failed, begin = [], time.monotonic()

    def tell(line: str) -> None:
        print(line, flush=True)
        with summary.open("a") as file:
            print(line, file=file)

    for name, part in chosen.items():
        log, since = logs / f"{name}.log", time.monotonic()
        verdict, reason = _verdict(part, log, variables)
        tell(f"{verdict:<8} {name:<24} {_duration(time.monotonic() - since):>9}{reason}")
        if verdict == "FAILED":
            failed.append(name)
            for line in _ends(log):
                print(f"         | {line}", flush=True)
        if verdict == "ended":
            break
    done = f"{len(failed)} FAILED ({', '.join(failed)})" if failed else "none failed"
    tell(f"{len(chosen)} parts in {_duration(time.monotonic() - begin)}: {done}")
    return 130 if chosen and verdict == "ended" else 1 if failed else 0


def _verdict(part: Part, log: Path, variables: Mapping[str, str] | None) -> tuple[str, str]:
    """Runs a part; returns its verdict and a reason, which may be empty."""
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                part.command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            file.write(f"{part.command[0]}: {error.strerror}\n".encode())
            return "FAILED", f"  {part.command[0]}: {error.strerror}"
        try:
            status = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            return "ended", "  by Ctrl-C"
    if status == 0:
        return "passed", ""
    if status in part.skips_with:
        return "skipped", f"  a tool is missing: {log}"
    return "FAILED", f"  exit status {status}: {log}"


def _ends(log: Path, count: int = 5) -> list[str]:
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", metavar="PART", default=[], help="these parts, or patterns: 'tests-*'"
    )
    parser.add_argument("--list", action="store_true", help="name the parts, run nothing")
    options = parser.parse_args(arguments)
    known = parts()
    chosen: dict[str, Part] = {}
    for name in options.only or known:
        matching = fnmatch.filter(known, name)
        if not matching:
            parser.error(f"--only {name}: expected one of {', '.join(known)}")
        chosen |= {n: known[n] for n in matching}
    if options.list:
        for name, part in chosen.items():
            print(f"{name:<24} {part.about}")
        return 0
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables["PATH"] = f"{Path(PYTHON).parent}{os.pathsep}{variables.get('PATH', '')}"
    return run(chosen, variables=variables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
