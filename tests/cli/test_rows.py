"""Long commands write row by row, end when their time is spent, and keep all finished work.

`python -m bridge parity` and `bench` with `--jsonl` and `--seconds`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.cli import budget, machine, rows
from bridge.cli.budget import Budget, in_turn
from bridge.cli.catalogue import COMPARED
from bridge.cli.errors import CommandError
from bridge.cli.main import main
from bridge.cli.parity import choice, grid, invariance
from bridge.cli.parity import command as parity
from tools.bench import ops as bench_ops
from tools.bench.cases import BYTES, Case, enlarged

pytest.importorskip("torch")
pytest.importorskip("jax")
import bridge.torch


@pytest.fixture
def small_parity(monkeypatch):
    monkeypatch.setattr(grid, "PLACES", (grid.Place((3, 5), quick=True),))
    few = {name: COMPARED[name] for name in ("swiglu packed",)}
    forms = {
        op: tuple(name for name in names if COMPARED[name].compared.usual)
        for op, names in grid.OPS.items()
    } | {"catalogue": tuple(few)}
    for module in (choice, parity):
        monkeypatch.setattr(module, "OPS", forms)
        monkeypatch.setattr(module, "FORMS", tuple(itertools.chain(*forms.values())))
    monkeypatch.setattr(invariance, "ROW_OPS", few)
    monkeypatch.setattr(invariance, "BATCHES", (4,))


@pytest.fixture
def small_bench(monkeypatch):
    forms = {
        "bias_gelu": "tanh",
        "softmax": "plain",
        "bias_dropout_add": "p=0.1",
        "catalogue": "rms_norm",
        "linear_cross_entropy": "3 features",
        "declared": "rms_norm",
    }

    def few(op, framework: str, quick: bool) -> list[Case]:
        dtypes = ("float32", "bfloat16")
        return [Case(op.name, framework, "forward", d, forms[op.name], (4, 8)) for d in dtypes]

    for op in bench_ops.OPS.values():
        monkeypatch.setattr(type(op), "cases", few)
    monkeypatch.setattr("tools.bench.timing.SAMPLE_SECONDS", 1e-5)


def allow(cases: int, monkeypatch) -> None:
    """Makes a budget spent after `cases` cases."""
    left = iter([False] * cases)
    monkeypatch.setattr(Budget, "spent", lambda self: next(left, True))


SMALL = {
    "parity": ["parity", "--quick"],
    "bench": ["bench", "--quick", "--no-compile"],
}


@pytest.mark.usefixtures("small_parity", "small_bench")
@pytest.mark.parametrize("command", SMALL)
def test_a_spent_budget_keeps_what_was_done(command, monkeypatch, tmp_path, capsys):
    # The groups: forms of ops, invariance and border; or ops of two frameworks and border.
    groups = 10 if command == "parity" else 13
    allow(groups, monkeypatch)
    lines, whole, page = (tmp_path / name for name in ("rows.jsonl", "all.json", "page.html"))
    files = ["--jsonl", str(lines), "--json", str(whole)]
    files += ["--html", str(page)] if command == "parity" else ["--plot", str(page) + ".svg"]
    assert main([*SMALL[command], "--seconds", "1e9", *files]) == 0
    report = json.loads(whole.read_text())
    assert rows.read(lines) == report
    assert report["complete"] is False
    assert report["cases_done"] == groups < report["cases"]
    words = f"partial: the run ended when {groups} of {report['cases']} cases were done"
    assert words in " ".join(capsys.readouterr().out.split())
    of_ops = {row["op"] for row in report["rows"]}
    of_ops |= {name for name in ("border", "invariance") if report.get(name)}
    others = {"declared", "linear_cross_entropy"} if command == "bench" else {"invariance"}
    assert of_ops == {"bias_gelu", "softmax", "bias_dropout_add", "catalogue", "border"} | others
    if command == "parity":
        assert words in page.read_text(encoding="utf-8")
        assert report["cases_passed"] == groups
        reached = {row["form"] for row in report["rows"]} | {"border", "invariance"}
        assert reached == set(report["cases_of"])
    first, *middle, last = map(json.loads, lines.read_text().splitlines())
    assert first["header"]["machine"]["cores"] > 0
    assert first["header"]["cases"] == report["cases"]
    assert all(set(line) == {"case", "op", "seconds", "row"} for line in middle)
    assert last["end"]["complete"] is False


@pytest.mark.long
@pytest.mark.usefixtures("small_parity", "small_bench")
@pytest.mark.parametrize("command", SMALL)
def test_a_whole_run_says_so_and_reads_back_the_same(command, tmp_path, capsys):
    lines, whole = tmp_path / "rows.jsonl", tmp_path / "all.json"
    assert main([*SMALL[command], "--jsonl", str(lines), "--json", str(whole)]) == 0
    report = json.loads(whole.read_text())
    assert report["complete"] is True
    assert report["cases_done"] == report["cases"]
    assert rows.read(lines) == report
    assert "partial" not in capsys.readouterr().out
    # For any order of the cases, the report has each op's rows together.
    order = [row["op"] for row in report["rows"] if row.get("framework", "torch") == "torch"]
    assert [op for op, before in zip(order, [None, *order], strict=False) if op != before] == list(
        dict.fromkeys(order)
    )


@pytest.mark.usefixtures("small_parity")
def test_a_file_that_was_cut_reads_as_far_as_it_goes(tmp_path):
    file, cut = tmp_path / "rows.jsonl", tmp_path / "cut.jsonl"
    assert main(["parity", "--quick", "--ops", "softmax", "--jsonl", str(file)]) == 0
    whole, written = rows.read(file), file.read_bytes()
    ends = [i for i, byte in enumerate(written) if byte == ord("\n")]
    for count in (1, 2, 7, len(ends) - 1):  # whole lines, then a part of the next
        begin, end = ends[count - 1] + 1, ends[count]
        for place in (begin, random.Random(count).randrange(begin + 1, end), end):
            cut.write_bytes(written[:place])
            report = rows.read(cut)
            assert len(report["rows"]) == count - 1
            assert all(row in whole["rows"] for row in report["rows"])
            assert report["complete"] is False
            assert report["options"] == whole["options"]
            done = {row["dtypes"] + row["form"] for row in report["rows"]}
            assert report["cases_done"] == len(done)
    for content in (b"", written[: ends[0]], b"no JSON\n", b"[]\n", b'{"header": {}}\n'):
        cut.write_bytes(content)
        with pytest.raises(CommandError, match="not a file that --jsonl wrote"):
            rows.read(cut)
    with pytest.raises(CommandError, match="No such file"):
        rows.read(tmp_path / "missing.jsonl")


@pytest.mark.usefixtures("small_parity")
def test_a_partial_run_says_how_many_cases_passed_and_what_it_did_not_reach(monkeypatch, capsys):
    allow(2, monkeypatch)
    assert main(["parity", "--quick", "--ops", "softmax"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r": passed 2 of \d+ cases; partial: the run ended", out)
    assert "no case of scaled_causal_softmax" in out
    assert "all passed" not in out


@pytest.mark.usefixtures("small_parity")
def test_a_failure_in_a_partial_run_gives_exit_status_1(monkeypatch, capsys):
    right = bridge.torch.scaled_softmax
    monkeypatch.setattr(bridge.torch, "scaled_softmax", lambda x, scale: right(x, 1.0))
    allow(2, monkeypatch)
    assert main(["parity", "--quick", "--ops", "softmax"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r": passed 1 of \d+ cases, \d+ rows FAILED; partial", out)


@pytest.mark.parametrize("command", SMALL)
def test_imports_do_not_count(command, monkeypatch):
    """The budget of a minute is not spent by imports that take an hour."""
    now = 0.0
    right = machine.require

    def slowly(framework: str) -> Any:
        nonlocal now
        now += 3600.0
        return right(framework)

    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(machine, "require", slowly)
    monkeypatch.setattr("tools.bench.timing.SAMPLE_SECONDS", 1e-5)
    assert main([*SMALL[command], "--ops", "border", "--seconds", "60"]) == 0
    assert now >= 3600.0


def test_every_form_and_then_every_dtype_of_parity_has_its_turn():
    steps = list(parity._steps("cpu", False, parity.OPS, [], [parity.INVARIANCE, parity.BORDER]))
    turns = [steps[place].turn for place in in_turn([step.turn for step in steps])]
    names = {*parity.FORMS, parity.INVARIANCE, parity.BORDER}
    for begin in range(0, 4 * len(names), len(names)):
        assert {turn[0] for turn in turns[begin : begin + len(names)]} == names
    for form in parity.FORMS:
        dtypes = [turn[1] for turn in turns if turn[0] == form]
        assert len({*dtypes[:4]}) == 4


@pytest.mark.parametrize("command", SMALL)
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "-inf"])
def test_seconds_that_are_none_are_refused(command, seconds, capsys, tmp_path):
    file = tmp_path / "kept.jsonl"
    file.write_text("as it was")
    assert main([command, f"--seconds={seconds}", "--jsonl", str(file)]) == 2
    expected = f"bridge {command}: --seconds is {float(seconds):g}, expected more than 0\n"
    assert capsys.readouterr().err == expected
    assert file.read_text() == "as it was"


@pytest.mark.parametrize("command", SMALL)
def test_no_time_for_anything_is_no_success(command, capsys):
    assert main([*SMALL[command], "--ops", "border", "--seconds", "1e-9"]) == 2
    assert "the time was spent before anything was measured" in capsys.readouterr().err


def test_a_short_beginning_is_a_fair_sample():
    groups = ["a"] * 100 + ["b"] * 10 + ["c"] * 40
    turns = [(group,) for group in groups]
    order = in_turn(turns)
    assert sorted(order) == list(range(len(groups)))
    assert order == in_turn(turns)
    for count in range(1, 11):
        assert sorted(groups[place] for place in order[: 3 * count]) == sorted("abc" * count)
    first = [place for place in order if groups[place] == "a"][:20]
    assert all(sum(low <= place < low + 25 for place in first) >= 2 for low in (0, 25, 50, 75))


def test_keys_take_turns_one_after_the_other():
    turns = [("a", 1)] * 5 + [("a", 2)] * 5 + [("b", 1)] * 3 + [("c",)] * 2 + [("c", 1)]
    ordered = [turns[place] for place in in_turn(turns)]
    assert sorted(ordered) == sorted(turns)
    assert [turn[0] for turn in ordered[:9]] == [*"abc"] * 3
    assert ordered[0] != ordered[3]
    assert [turn[1] for turn in ordered if turn[0] == "a"] == [1, 2] * 5
    assert in_turn([]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_as_a_spent_budget_does(tmp_path, number):
    """The reader blocks the writer, so that the run cannot be over before the signal."""
    whole = tmp_path / "all.json"
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "bridge", "parity", "--ops", "border"]
    with subprocess.Popen(
        [*command, "--jsonl", f"/dev/fd/{writing}", "--json", str(whole)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writing],
    ) as process:
        os.close(writing)
        with open(reading, "rb", buffering=0) as pipe:
            read = b""
            while b'"row"' not in read and (found := pipe.read(1 << 12)):
                read += found
            process.send_signal(number)
            read += b"".join(iter(lambda: pipe.read(1 << 16), b""))
        out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    kept = tmp_path / "rows.jsonl"
    kept.write_bytes(read)
    report = json.loads(whole.read_text())
    assert rows.read(kept) == report
    assert report["complete"] is False
    assert 0 < report["cases_done"] < report["cases"]
    assert "partial: the run ended" in " ".join(out.split())


def test_large_cases_fill_what_is_asked_for_and_time_no_tiny_calls():
    least, parts = 1 << 24, {"main", "growth"}
    for op in bench_ops.OPS.values():
        for framework in ("torch", "jax"):
            usual = list(op.cases(framework, False))
            large = list(enlarged(usual, least))
            assert len(set(large)) == len(large) > 0
            assert {case.part for case in large} <= parts
            assert {(c.what, c.dtype, c.form, c.memory, c.shape[1:]) for c in large} == {
                (c.what, c.dtype, c.form, c.memory, c.shape[1:]) for c in usual if c.part in parts
            }
            for case in large:
                assert math.prod(case.shape) * BYTES[case.dtype] >= least
