"""Narrow terminals, terminals without UTF-8, a closed stdout, and unwritable files."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import machine
from bridge.cli.main import main
from bridge.cli.streams import plain
from bridge.cli.terminal import terminal

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks"
SCALING = ["scaling", "--from", str(BENCHMARKS / "scaling-cpu.json")]
NARROW = 40


def process(*arguments: str, encoding: str = "utf-8", **how: Any) -> subprocess.CompletedProcess:
    variables = {**os.environ, "PYTHONIOENCODING": encoding}
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 300} | how
    return subprocess.run([sys.executable, "-m", "bridge", *arguments], env=variables, **how)


@pytest.fixture(scope="module")
def parity_report() -> dict[str, Any]:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from bridge.cli.parity import command, grid

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "PLACES", (grid.Place((3, 5), quick=True, own=True),))
        return command.measure(quick=True, ops=("softmax", "border"))


def printed(module: str, report: dict[str, Any], encoding: str = "utf-8") -> str:
    """Returns the report as printed on a terminal whose encoding lacks other characters."""
    with pytest.MonkeyPatch.context() as patch:
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        patch.setattr(sys, "stdout", stream)
        importlib.import_module(module).show(report, terminal())
        stream.flush()
        return stream.buffer.getvalue().decode(encoding)


@pytest.fixture(params=["parity", "bench", "scaling"])
def shown(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Returns a command's printing module, and a report."""
    files = {"bench": "cpu.json", "scaling": "scaling-cpu.json"}
    if request.param == "parity":
        report = request.getfixturevalue("parity_report")
    else:
        report = json.loads((BENCHMARKS / files[request.param]).read_text())
    home = "bridge.cli" if request.param == "parity" else "tools"
    return f"{home}.{request.param}.summary", report


def values(text: str) -> Counter[str]:
    """Returns every word with a digit."""
    return Counter(re.findall(r"[^\s│|]*\d[^\s│|]*", text))


def test_no_columns_are_an_unknown_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert terminal().width > 20


@pytest.mark.parametrize("width", [20, NARROW, 60, 80])
def test_a_narrow_terminal_shows_every_value(width, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    wide = printed(*shown)
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = printed(*shown)
    assert max(map(len, narrow.splitlines())) <= width
    assert "…" not in narrow
    if width >= NARROW:
        # Each row repeats the headers, and values of several words stay together.
        assert not values(wide) - values(narrow)
    else:
        assert not Counter(re.findall(r"\d", wide)) - Counter(re.findall(r"\d", narrow))


def test_info_on_a_narrow_terminal_is_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(NARROW))
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= NARROW
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    whole = "".join(out.split())
    for section in facts.values():
        for value in section.values():
            if isinstance(value, str):
                assert "".join(value.split()) in whole


@pytest.mark.parametrize("width", ["", "40"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r"])
def test_tables_on_a_terminal_that_is_not_utf_8(encoding, width, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    module, report = shown
    text = printed(module, report, encoding)
    assert "?" not in text
    if encoding == "ascii":
        expected = {"parity": "!=", "bench": " us", "scaling": " us"}[module.split(".")[-2]]
        assert expected in text
    lines = printed(module, report).splitlines()
    if not width:  # the columns are at their usual places
        heads = [line.split()[0] for line in lines if line.strip()]
        assert len(set(heads) & {line.split()[0] for line in text.splitlines() if line.strip()}) > 9


def test_what_stands_for_a_character_that_is_missing():
    assert plain("2²⁴ ≈ 1.7e+07, 10⁻³", "ascii") == "2^24 ~ 1.7e+07, 10^-3"
    assert plain("2²⁴ × 3²", "latin-1") == "2^24 × 3²"
    assert plain("≠ ≥ − naïve 中 \udcff", "ascii") == "!= >= - naive ? ?"
    assert plain("12.3 µs × 2 ≠ …", "utf-8") == "12.3 µs × 2 ≠ …"
    assert plain("", "ascii") == ""
    for folder in ("bridge/cli", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            for character in set(file.read_text(encoding="utf-8")) - set("?"):
                assert "?" not in plain(character, "ascii"), character


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "command",
    [["info"], SCALING, ["parity", "--quick", "--ops", "border"], ["scaling", "--from", "añ→中"]],
    ids=["info", "scaling", "parity", "error"],
)
def test_a_process_whose_terminal_is_not_utf_8(command, encoding):
    result = process(*command, encoding=encoding)
    out, errors = (stream.decode(encoding) for stream in (result.stdout, result.stderr))
    if command[-1] == "añ→中":
        assert result.returncode == 2
        written = "an->?" if encoding == "ascii" else "añ->?"
        assert errors == f"bridge scaling: --from {written}: No such file or directory\n"
    else:
        assert result.returncode == 0, errors
        assert "Error" not in errors
        assert "?" not in out


FULL = b"python -m bridge: cannot write to stdout: No space left on device\n"
HELP = [["--help"], ["parity", "--help"]]


@pytest.mark.long
@pytest.mark.parametrize("command", [["info"], ["info", "--json"], SCALING, *HELP], ids=" ".join)
def test_a_stdout_that_is_full_ends_a_command_with_one_line(command):
    with open("/dev/full", "wb") as full:
        result = process(*command, stdout=full)
    assert result.returncode == 2
    assert result.stderr == FULL


@pytest.mark.parametrize("command", [["info"], SCALING, *HELP], ids=" ".join)
def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = process(*command, stdout=writing)
    finally:
        os.close(writing)
    assert result.returncode == 128 + 13
    assert result.stderr == b""


def test_what_was_measured_is_kept_though_stdout_is_full(tmp_path):
    file = tmp_path / "parity.json"
    with open("/dev/full", "wb") as full:
        command = ["parity", "--quick", "--ops", "border", "--json", str(file)]
        result = process(*command, stdout=full)
    assert result.returncode == 2
    assert result.stderr == FULL
    assert json.loads(file.read_text())["passed"]


FILES = {
    "parity": ["--json", "--jsonl", "--html"],
    "bench": ["--json", "--jsonl", "--plot"],
    "scaling": ["--json", "--plot"],
    "demo": ["--html"],
}


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """Fails a command that asks for a framework, which each does before it measures."""

    def require(framework: str):
        assert framework == "matplotlib"

    monkeypatch.setattr(machine, "require", require)


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(("command", "option"), [(c, o) for c, made in FILES.items() for o in made])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("folder", "Is a directory"),
        ("file/below.svg", "Not a directory"),
        ("/proc/nothing.svg", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_first(
    command, option, place, reason, tmp_path, capsys
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("as it was")
    path = tmp_path / place
    assert main([command, option, str(path)]) == 2
    expected = f"bridge {command}: {option} {path}: {reason}\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize("command", ["bench", "scaling"])
def test_a_plot_in_no_format_is_refused_first(command, tmp_path, capsys):
    assert main([command, "--plot", str(tmp_path / "plot.txt")]) == 2
    assert "plot.txt: no picture format, expected ." in capsys.readouterr().err


def test_trying_whether_files_can_be_written_changes_none(tmp_path, capsys):
    there, new = tmp_path / "there.json", tmp_path / "deep" / "new.json"
    there.write_text("as it was")
    for path in (there, new):
        assert main([*SCALING[:2], "missing", "--json", str(path)]) == 2
    assert there.read_text() == "as it was"
    assert not new.exists()
    assert "missing" in capsys.readouterr().err
