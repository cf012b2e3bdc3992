"""scripts/exhaustive.py continues after a failure, and reports the failures at the end."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts import exhaustive
from scripts.exhaustive import Part, main, parts, run

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, *skips_with: int) -> Part:
    return Part("a fake", (sys.executable, "-c", code), skips_with)


def test_a_failure_does_not_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fakes = {
        "good": python("print('fine')"),
        "bad": python("print('the cause'); raise SystemExit(3)"),
        "killed": python("import os; os.kill(os.getpid(), 9)"),
        "missing": Part("a fake", ("no-such-program",)),
        "lacking": python("print('no tool'); raise SystemExit(2)", 2),
        "after": python("print('still')"),
    }
    assert run(fakes, tmp_path) == 1
    summary = (tmp_path / "summary.txt").read_text()
    lines = summary.splitlines()
    words = {line.split()[1]: line.split()[0] for line in lines[:-1]}
    assert words == {
        "good": "passed",
        "bad": "FAILED",
        "killed": "FAILED",
        "missing": "FAILED",
        "lacking": "skipped",
        "after": "passed",
    }
    assert all(re.search(rf"{name} +\d+ s", summary) for name in fakes)
    assert re.fullmatch(r"6 parts in \d+ s: 3 FAILED \(bad, killed, missing\)", lines[-1])
    assert "exit status 3" in summary
    assert (tmp_path / "good.log").read_text() == "fine\n"
    assert (tmp_path / "after.log").read_text() == "still\n"
    out = capsys.readouterr().out
    assert "| the cause" in out
    assert out.splitlines()[-1] == lines[-1]


def test_all_that_pass_give_status_0(tmp_path: Path) -> None:
    assert run({"good": python(""), "lacking": python("raise SystemExit(2)", 2)}, tmp_path) == 0
    assert (tmp_path / "summary.txt").read_text().endswith("none failed\n")


def test_it_can_be_ended(tmp_path: Path) -> None:
    """After Ctrl-C during a part, the part is ended too, and no other begins."""
    code = (
        "import signal, sys; from pathlib import Path; from scripts.exhaustive import Part, run\n"
        # A shell's background job ignores Ctrl-C, and so would this process.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "wait = 'import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(600)'\n"
        "fakes = {'long': Part('', (sys.executable, '-c', wait)), 'never': Part('', ('true',))}\n"
        f"sys.exit(run(fakes, Path({str(tmp_path)!r})))"
    )
    fake = Part("a fake", (sys.executable, "-c", code))
    assert exhaustive._verdict(fake, tmp_path / "whole", None)[0] == "FAILED"
    summary = (tmp_path / "summary.txt").read_text()
    assert "ended" in summary
    assert "never" not in summary


def test_parts_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "faults", "tests-c*"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed[0] == "faults"
    assert {"tests-cli", "tests-cross", "tests-cuda"} <= set(listed)
    assert all(name.startswith("tests-c") for name in listed[1:])
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "--only nothing: expected one of cpp, " in capsys.readouterr().err


def test_no_test_and_no_program_is_forgotten() -> None:
    known = parts()
    of_suite = [argument for part in known.values() for argument in part.command]
    for path in (ROOT / "tests").rglob("test_*.py"):
        under = [path, *path.parents]
        named = [
            p for p in under if p.is_relative_to(ROOT) and str(p.relative_to(ROOT)) in of_suite
        ]
        assert len(named) == 1, path
    script = (ROOT / "scripts" / "check_exhaustive.sh").read_text()
    cases = re.findall(r"^  ([a-z-]+)\)$", script, re.MULTILINE)
    assert cases == [
        part.command[1] for part in known.values() if part.command[0].endswith("exhaustive.sh")
    ]
    for part in known.values():
        program = part.command[1] if part.command[0] == sys.executable else part.command[0]
        assert program == "-m" or (ROOT / program).is_file()
    for program in re.findall(r"build/check-cpp/(\w+)", script):
        assert (ROOT / "tests" / "cpp" / f"{program}.cpp").is_file()
    for program in re.findall(r"build/check-simt/(\w+)", script):
        assert (ROOT / "tests" / "simt" / f"{program}.cpp").is_file()
