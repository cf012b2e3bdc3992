"""Runs a stage of scripts/check_gpu.sh; the exit status is 1 if one of its steps failed."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from scripts.gpu.libraries import AHEAD, ROOT, commit
from scripts.gpu.stage import Stage
from scripts.gpu.steps import BUDGETS, REHEARSAL_SLOWER, groups_of

FOLDER = ROOT / "build" / "check_gpu"
REHEARSING = "BRIDGE_REHEARSAL"  # set in the Python of a rehearsal


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check_gpu.sh", description=__doc__)
    parser.add_argument("stage", nargs="?", choices=tuple(BUDGETS))
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="without a GPU: print steps that need one, run the rest",
    )
    parser.add_argument("--seconds", type=float, help="a shorter time limit for a stage")
    options = parser.parse_args()
    if options.stage is None and not options.rehearse:
        parser.error(f"name a stage: {', '.join(BUDGETS)}")
    if options.rehearse and REHEARSING not in os.environ:
        from scripts.gpu.environment import rehearsal_python

        python = str(rehearsal_python())
        command = [python, "-m", "scripts.gpu.check", *sys.argv[1:]]
        os.execve(python, command, {**os.environ, REHEARSING: "1"})
    # An editable install resolves `bridge` before the path is searched.
    if any("ScikitBuildRedirecting" in type(finder).__name__ for finder in sys.meta_path):
        print(
            "check_gpu: this Python has bridge-ops installed, which would be imported "
            "instead of the build here: pip uninstall bridge-ops, or name another interpreter "
            "in PYTHON",
            file=sys.stderr,
        )
        return 2
    stages = [options.stage] if options.stage else list(BUDGETS)
    passed = [run(name, options.rehearse, options.seconds) for name in stages]
    return 0 if all(passed) else 1


def run(name: str, rehearse: bool, seconds: float | None = None) -> bool:
    """Runs one stage; returns True if all steps that ran passed."""
    budget = BUDGETS[name] if seconds is None else seconds
    logs = FOLDER / name
    shutil.rmtree(logs, ignore_errors=True)
    out = Path(os.environ.get("OUT") or FOLDER / "out")
    earlier = [FOLDER / other / "summary.txt" for other in BUDGETS if other != name]
    cores = os.cpu_count() or 1
    stage = Stage(
        name=name,
        device=device_name(),
        logs=logs,
        out=out,
        budget=budget * (REHEARSAL_SLOWER if rehearse else 1.0),
        at_once=cores,
        rehearse=rehearse,
        before="".join(path.read_text() for path in earlier if path.exists()),
        commit=commit(),
        environment=environment(rehearse),
    )

    def end(*_: object) -> None:
        stage.stop()
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    workers = max(2, cores - 6)  # six processes compare at the same time as the suite
    share = min(1.0, budget / BUDGETS[name])
    passed = stage.run(groups_of(name, logs, workers, rehearse, share))
    print((out / "summary.txt").read_text(), end="", flush=True)
    return passed


def environment(rehearse: bool) -> dict[str, str]:
    return {
        # Tests use the default device, the CPU, unless they name one, and find the GPU by name.
        "JAX_PLATFORMS": "cpu" if rehearse else "cpu,cuda",
        # Otherwise jax would take three quarters of the GPU's memory, which torch shares.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Programs load the package's CUDA library, wherever they were built.
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [str(ROOT / "bridge"), os.environ.get("LD_LIBRARY_PATH")])
        ),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "BRIDGE_TESTS_FROM_TREE": "1",
        "BRIDGE_CACHE_DIR": str(AHEAD),
        "PATH": os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin"]),
    }


def device_name() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "no GPU"
    return found.split("\n")[0].strip() or "no GPU"


if __name__ == "__main__":
    sys.exit(main())
