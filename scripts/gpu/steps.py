"""The steps of each stage, in groups that run one after another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from scripts.gpu.libraries import KERNELS, PROGRAMS
from scripts.gpu.stage import Step

# The seconds that each stage may take on a GPU.
BUDGETS = {"truth": 300.0, "speed": 420.0, "depth": 540.0}
# nvidia-smi runs first with these fields, so that without a GPU a stage ends at once with a reason.
DEVICE_FIELDS = "name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.memory"


# Nsight Compute profiles the important kernels; the clocks are not changed.
COUNTERS = """
command -v ncu || { echo "no ncu"; exit 1; }
"$@" --list-profile | while read -r row; do
  echo "-- $row"
  ncu --profile-from-start off --clock-control none --set full --page details \\
    "$@" --profile "$row" || exit 1
done
"""
# Families of ops with a module in bench and rows in parity, and other parts of parity.
OPS = ("bias_dropout_add", "bias_gelu", "softmax")
OTHERS = ("catalogue", "invariance")
MEASURED = ("catalogue", *OPS, "declared", "linear_cross_entropy")
TABLE = "docs/parity/x86-64-v4.txt"  # hashes of a CPU
# A rehearsal runs slowly on two cores the work of a GPU machine with sixteen cores; measurements
# and comparisons end earlier, by their own limit.
REHEARSAL_SLOWER = 8.0
REHEARSAL_SECONDS = 60.0


def groups_of(
    stage: str, logs: Path, workers: int, rehearse: bool, share: float = 1.0
) -> list[list[Step]]:
    """The groups of a stage.

    Args:
      stage: truth, speed or depth.
      logs: the folder for files written by steps.
      workers: processes of the suite in `depth`.
      rehearse: True to run steps on the CPU, shortened, if possible.
      share: the fraction of each step's time in `speed`, which measures as much as it has time for.
    """
    make = _Steps(logs, workers, rehearse, share if stage == "speed" else 1.0)
    groups = {"truth": make.truth, "speed": make.speed, "depth": make.depth}[stage]
    return [*make.beginning(), *groups()]


class _Steps:
    def __init__(self, logs: Path, workers: int, rehearse: bool, share: float) -> None:
        self.logs, self.workers, self.rehearse, self.share = logs, workers, rehearse, share

    def step(self, name: str, *command: str, seconds: float, **options: Any) -> Step:
        slower = REHEARSAL_SLOWER if self.rehearse else 1.0
        return Step(name, command, seconds * slower, **options)

    def bridge(self, name: str, command: str, *arguments: str, seconds: float) -> Step:
        """Returns a command of `python -m bridge` that writes row by row, with an earlier limit."""
        own = seconds - 30  # imports do not count towards it
        device: tuple[str, ...] = ("--device", "cuda")
        if self.rehearse:
            own = min(own, REHEARSAL_SECONDS)
            device = ("--device", "cpu", *(() if "--quick" in arguments else ("--quick",)))
        rows = ("--jsonl", str(self.logs / f"{name}.jsonl"), "--seconds", str(own))
        run = (sys.executable, "-m", "bridge", command, *device, *arguments, *rows)
        return self.step(name, *run, seconds=seconds)

    def suite(self, name: str, *arguments: str, seconds: float, device: bool = False) -> Step:
        # If pytest-benchmark is installed, it warns about xdist, and warnings are errors.
        without = ("-p", "no:cacheprovider", "-p", "no:benchmark")
        pytest = (sys.executable, "-m", "pytest", "-q", *without)
        return self.step(name, *pytest, *arguments, seconds=seconds, needs_device=device)

    def beginning(self) -> list[list[Step]]:
        look = ("nvidia-smi", f"--query-gpu={DEVICE_FIELDS}", "--format=csv")
        libraries = (sys.executable, "-m", "scripts.gpu.libraries")
        answers = "import bridge, sys; sys.exit(not bridge.has_cuda())"
        return [
            [self.step("device", *look, seconds=30, needs_device=True, needed=True)],
            [self.step("libraries", *libraries, seconds=240, needed=True)],
            [self.step("info", sys.executable, "-m", "bridge", "info", "--json", seconds=60)],
            [
                self.step(
                    "device-answers",
                    *(sys.executable, "-c", answers),
                    seconds=60,
                    needs_device=True,
                    needed=True,
                )
            ],
        ]

    def truth(self) -> list[list[Step]]:
        border = self.bridge("parity-border", "parity", "--ops", "border", seconds=60)
        side_by_side = [
            # In several processes: compiling its kernels takes minutes of processor time.
            self.suite("cuda-cases", "-n", "8", "tests/cuda", seconds=150, device=True),
            self.suite(
                "races", "-m", "slow or not slow", "tests/exchange/test_streams.py", seconds=150
            ),
            self.suite("nccl", "tests/distributed/test_nccl.py", seconds=100, device=True),
        ]
        for name in KERNELS:
            program = str(PROGRAMS / f"{name}_gpu")
            side_by_side.append(
                self.step(f"kernels-{name}", program, seconds=150, needs_device=True)
            )
        for op in (*OPS, *OTHERS):
            side_by_side.append(
                self.bridge(f"parity-{op}", "parity", "--quick", "--ops", op, seconds=150)
            )
        return [[border], side_by_side]

    def speed(self) -> list[list[Step]]:
        program = (sys.executable, "-m", "scripts.gpu.kernel_speed")
        rows = ("--jsonl", str(self.logs / "kernel_speed.jsonl"))
        measure = 90 * self.share
        steps = [
            self.step(
                "kernel_speed",
                *(*program, *rows, "--seconds", str(measure)),
                seconds=measure + 20,
                needs_device=True,
            ),
        ]
        for framework, seconds in (("torch", 120), ("jax", 90)):
            large = ("--large", "--framework", framework, "--ops", *MEASURED)
            name, limit = f"bench-large-{framework}", seconds * self.share + 15
            steps.append(self.bridge(name, "bench", *large, seconds=limit))
        if self.share > 0.5:  # the time of a profile cannot be shortened
            counters = ("bash", "-o", "pipefail", "-c", COUNTERS, "bash", *program)
            # Some machines forbid reading the counters.
            steps.append(
                self.step("counters", *counters, seconds=60, needs_device=True, fails_with=())
            )
        return [[step] for step in steps]

    def depth(self) -> list[list[Step]]:
        suite = ("-n", str(self.workers), "--dist", "loadfile", "--sample", "0", "tests")
        side_by_side = [self.suite("suite", *suite, seconds=330)]
        for op in (*OPS, *OTHERS, "border"):
            side_by_side.append(
                self.bridge(f"parity-full-{op}", "parity", "--ops", op, seconds=330)
            )
        compared = ("--against", TABLE, "--export", str(self.logs / "table.txt"))
        side_by_side.append(self.bridge("table", "parity", *compared, seconds=330))
        sanitizers = [
            self.step(
                f"{tool}-{op}",
                *("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"),
                *(str(PROGRAMS / f"{op}_gpu"), "40", "only"),
                seconds=100,
                needs_device=True,
                fails_with=(9,),
            )
            for tool in ("memcheck", "racecheck")
            for op in KERNELS
        ]
        bench = self.bridge("bench-all", "bench", "--ops", *OPS, "border", seconds=90)
        return [side_by_side, sanitizers, [bench]]
