"""A stage of scripts/check_gpu.sh stores finished work, whatever happens to its steps."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu.stage import MOST_LOG_BYTES, Stage, Step
from scripts.gpu.steps import BUDGETS, groups_of

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


def stage_in(folder: Path, **options: Any) -> Stage:
    settings: dict[str, Any] = {"name": "truth", "device": "a GPU", "budget": 100.0, "at_once": 4}
    return Stage(logs=folder / "logs", out=folder / "out", **(settings | options))


def archived(folder: Path) -> dict[str, str]:
    with tarfile.open(folder / "out" / "check_gpu-truth.tar.gz") as archive:
        return {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def test_every_step_runs_and_failures_are_told(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)
    passed = stage.run(
        [
            [Step("good", python("print('fine')"), 60)],
            [
                Step("bad", python("print('the cause'); raise SystemExit(3)"), 60),
                Step("missing", ("no-such-program",), 60),
                Step("lacking", ("no-such-program",), 60, fails_with=()),
                Step(
                    "unable",
                    python("print('no counters'); raise SystemExit(7)"),
                    60,
                    False,
                    False,
                    (9,),
                ),
            ],
            [Step("after", python("print('still')"), 60)],
        ]
    )
    assert not passed
    summary = (tmp_path / "out" / "summary.txt").read_text()
    words = {line.split()[1]: line.split()[0] for line in summary.splitlines()[1:7]}
    assert words == {
        "good": "passed",
        "bad": "FAILED",
        "missing": "FAILED",
        "lacking": "skipped",
        "unable": "skipped",
        "after": "passed",
    }
    assert "exit status 3" in summary
    assert "| the cause" in summary
    assert "no counters" in summary
    files = archived(tmp_path)
    assert files["good.log"] == "fine\n"
    assert files["summary.txt"] == summary
    assert sorted(os.listdir(tmp_path / "out")) == ["check_gpu-truth.tar.gz", "summary.txt"]


def test_a_step_that_is_needed_ends_the_stage(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    stage = stage_in(tmp_path, before="earlier stage\n")
    groups = [
        [Step("device", python("raise SystemExit(1)"), 60, needed=True)],
        [Step("never", python(f"open({str(marker)!r}, 'w')"), 60)],
    ]
    assert not stage.run(groups)
    assert not marker.exists()
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert summary.startswith("earlier stage\n")
    assert "never" not in summary


def test_a_step_is_stopped_at_its_limit_and_what_it_wrote_comes_back(tmp_path: Path) -> None:
    rows = tmp_path / "logs" / "rows.jsonl"
    code = f"""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        rows = open({str(rows)!r}, "w")
        rows.write("a row\\n")
        rows.flush()
        print("measuring", flush=True)
        time.sleep(600)
    """
    stage = stage_in(tmp_path)
    assert not stage.run([[Step("slow", python(code), 6)]])
    assert "stopped at its limit of 6 s" in (tmp_path / "out" / "summary.txt").read_text()
    assert archived(tmp_path)["rows.jsonl"] == "a row\n"


def test_steps_without_time_left_fail(tmp_path: Path) -> None:
    stage = stage_in(tmp_path, budget=3.0)
    assert not stage.run([[Step("late", python("print(1)"), 60)]])
    assert "no time left" in (tmp_path / "out" / "summary.txt").read_text()


def test_a_rehearsal_prints_what_needs_a_device(tmp_path: Path) -> None:
    command = ("nvidia-smi", "--query gpu")
    stage = stage_in(tmp_path, rehearse=True)
    assert stage.run([[Step("device", command, 60, needs_device=True, needed=True)]])
    assert shlex.join(command) in (tmp_path / "out" / "summary.txt").read_text()


def test_a_stage_that_is_told_to_end_leaves_its_files(tmp_path: Path) -> None:
    code = f"""
        import signal, os, sys
        from pathlib import Path
        from scripts.gpu.stage import Stage, Step
        folder = Path({str(tmp_path)!r})
        stage = Stage("truth", "a GPU", folder / "logs", folder / "out", 100.0, 1)
        def end(*_):
            stage.stop()
            os._exit(1)
        signal.signal(signal.SIGTERM, end)
        tell = "import os, signal, time; os.kill(%d, signal.SIGTERM); time.sleep(600)" % os.getpid()
        stage.run([[Step("first", (sys.executable, "-c", "print(1)"), 60)],
                   [Step("second", (sys.executable, "-c", tell), 60)]])
    """
    done = subprocess.run(python(code), cwd=ROOT, timeout=120)
    assert done.returncode == 1
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert "passed   first" in summary
    assert "running  second" in summary
    assert archived(tmp_path)["first.log"] == "1\n"


def test_a_long_log_keeps_its_ends(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)
    text = "print('begin'); print('x' * 1_000_000); print('end')"
    assert stage.run([[Step("long", python(text), 60)]])
    log = archived(tmp_path)["long.log"]
    assert len(log) < MOST_LOG_BYTES + 100
    assert log.startswith("begin")
    assert log.endswith("end\n")


@pytest.mark.parametrize("name", BUDGETS)
def test_the_steps_of_a_stage(name: str, tmp_path: Path) -> None:
    assert BUDGETS[name] <= 9 * 60
    for rehearse in (False, True):
        steps = [step for group in groups_of(name, tmp_path, 2, rehearse) for step in group]
        names = [step.name for step in steps]
        assert len(set(names)) == len(names)  # each has its own log
        here = [step for step in steps if not step.needs_device]
        assert not rehearse or not any("cuda" in step.command for step in here)
        for step in steps:
            assert step.seconds <= (BUDGETS[name] if not rehearse else 3600)
    assert "device" in names[0]


@pytest.mark.parametrize("arguments", [[], ["depths"], ["truth", "speed"]])
def test_what_is_no_stage_is_told(arguments: list[str]) -> None:
    run = ["bash", str(ROOT / "scripts" / "check_gpu.sh"), *arguments]
    done = subprocess.run(
        run, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable}
    )
    assert done.returncode == 2
    assert "truth" in done.stderr


@pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v nvidia-smi"], capture_output=True).returncode == 0,
    reason="needs a machine without a GPU's tools",
)
def test_without_a_device_a_stage_ends_at_once(tmp_path: Path) -> None:
    code = f"""
        import sys
        from pathlib import Path
        from scripts.gpu import check
        check.FOLDER = Path({str(tmp_path)!r})
        sys.exit(0 if check.run("truth", False) else 1)
    """
    done = subprocess.run(
        python(code),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OUT": str(tmp_path / "out")},
    )
    assert done.returncode == 1
    assert "FAILED   device" in done.stdout
    assert "libraries" not in done.stdout
