"""`python -m bridge parity --export` and `--against`: every difference is found and named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bridge.jax
import bridge.torch
from bridge.cli.errors import CommandError
from bridge.cli.main import main
from bridge.cli.parity import grid, in_torch, proof, table
from bridge.cli.parity.hashes import OPERANDS
from bridge.cli.parity.table import Table, read
from bridge.cli.rows import Recording
from bridge.cli.rows import read as read_rows

FORM = "log_softmax"
SMALL = ["--quick", "--forms", FORM]


@pytest.fixture(scope="module", autouse=True)
def small_grid() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "PLACES", (grid.Place((23, 31), quick=True),))
        yield


@pytest.fixture(scope="module")
def written(small_grid: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "table.txt"
    assert main(["parity", *SMALL, "--export", str(path)]) == 0
    return path


def changed(path: Path, to: Path, rows: dict[table.Key, str] | None = None, **facts: str) -> Path:
    """Writes a whole table with other rows or facts."""
    old = read(path)
    to.write_text(Table({**old.facts, **facts}, old.rows if rows is None else rows).text())
    return to


def against(path: Path, *arguments: str) -> list[str]:
    return ["parity", *SMALL, "--against", str(path), *arguments]


def result_of(path: Path) -> table.Key:
    """Returns the key of a gradient in float32."""
    return next(key for key in read(path).rows if key[1] == "float32" and key[3] == "dx")


def test_a_table_is_of_its_machine(written, tmp_path, capsys):
    found = read(written)
    assert {key[3] for key in found.rows} == {OPERANDS, "forward", "dx", "jvp"}
    assert {key[:3] for key in found.rows} >= {(FORM, "float32", "23x31")}
    build = bridge.build_info()
    assert found.facts["instruction set"] == build["cpu_isa"]
    assert found.facts["bridge"] == bridge.__version__
    assert "torch " in found.facts["frameworks"]
    assert "jax " in found.facts["frameworks"]
    again = tmp_path / "again.txt"
    weakest = build["cpu_isas"][-1]
    assert main(["parity", *SMALL, "--export", str(again)]) == 0
    assert again.read_bytes() == written.read_bytes()
    capsys.readouterr()
    assert main(against(written, "--isa", weakest, "--json", str(tmp_path / "found.json"))) == 0
    results = sum(key[3] != OPERANDS for key in found.rows)
    assert f"; {results} of {results} have the bits of the table" in capsys.readouterr().out
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["options"]["isa"] == weakest
    assert report["against"]["facts"]["instruction set"] == build["cpu_isa"]
    assert report["passed"]


def test_another_hash_in_the_table_is_named(written, tmp_path, capsys):
    rows, key = dict(read(written).rows), result_of(written)
    right, rows[key] = rows[key], "0" * 16
    assert main(against(changed(written, tmp_path / "t", rows))) == 1
    out = capsys.readouterr().out
    assert f"{FORM}, float32, 23x31, dx: table {'0' * 16}, here {right}" in out
    assert "other bits than the table in 1 row" in out
    assert f"; {len(rows) - 4} of {len(rows) - 3} have the bits of the table" in out


def _wrong_bit(monkeypatch):
    right = in_torch.to_numpy

    def wrong(tensor):
        array = right(tensor).copy()
        if array.dtype == "float32":
            array.reshape(-1).view("u4")[-1] ^= 1
        return array

    monkeypatch.setattr(in_torch, "to_numpy", wrong)


def test_one_wrong_bit_in_one_framework_is_named(written, tmp_path, monkeypatch, capsys):
    theirs = read(written).rows[result_of(written)]
    _wrong_bit(monkeypatch)
    assert main(against(written)) == 1
    out = capsys.readouterr().out
    assert f"{FORM}, float32, 23x31, dx: table {theirs}, here " in out
    assert f" (torch), {theirs} (JAX)\n" in out


def test_no_table_is_written_if_the_frameworks_disagree(tmp_path, monkeypatch, capsys):
    _wrong_bit(monkeypatch)
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("kept")
    for path in (old, new):
        assert main(["parity", *SMALL, "--export", str(path)]) == 1
        out = capsys.readouterr().out
        assert "no table is written" in out
        assert f"different bits in 3 rows\n  {FORM}, float32, 23x31, forward: " in out
        assert str(path) not in out
    assert old.read_text() == "kept"
    assert not new.exists()


def test_a_fault_in_both_frameworks_is_named(written, monkeypatch, capsys):
    for ops in (bridge.torch, bridge.jax):
        right = ops.log_softmax
        monkeypatch.setattr(ops, "log_softmax", lambda x, right=right: right(x, 1.0 + 2.0**-20))
    assert main(against(written)) == 1
    assert "other bits than the table in" in capsys.readouterr().out


def test_other_operands_are_told_apart_from_other_results(written, tmp_path, capsys):
    rows, key = dict(read(written).rows), result_of(written)
    rows[(*key[:3], OPERANDS)] = "0" * 16
    rows[key] = "1" * 16  # says nothing
    path = changed(written, tmp_path / "t", rows)
    assert main(against(path)) == 1
    out = capsys.readouterr().out
    assert "other operands were drawn in 1 row" in out
    assert "other bits" not in out
    assert f"{FORM}, float32, 23x31, operands: table {'0' * 16}" in out


def test_rows_of_one_side(written, tmp_path, capsys):
    rows, key = dict(read(written).rows), result_of(written)
    del rows[key]
    path = changed(written, tmp_path / "fewer", rows)
    assert main(against(path)) == 0
    assert f"the table lacks 1 row of {FORM}" in capsys.readouterr().out
    unknown = ("tan", "float32", "23x31", "forward")
    path = changed(written, tmp_path / "more", rows | {unknown: "2" * 16})
    assert main(against(path)) == 0  # the form was not chosen
    assert main(["parity", "--against", str(path)]) == 1
    out = capsys.readouterr().out
    assert "this version of bridge does not have 1 row of the table" in out
    assert "tan, float32, 23x31, forward" in out


def test_a_table_of_another_version_is_compared_with_a_note(written, tmp_path, capsys):
    path = changed(written, tmp_path / "t", bridge="0.1.9", frameworks="jax 0.1")
    assert main(against(path)) == 0
    assert "bridge: 0.1.9 in the table" in capsys.readouterr().out


def _cut(text: str) -> str:
    return "\n".join(text.splitlines()[:-2]) + "\n"


def _row_dropped(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[:-3], *lines[-2:], ""])


def _digit_changed(text: str) -> str:
    lines = text.splitlines()
    lines[-2] = lines[-2][:-1] + ("0" if lines[-2][-1] != "0" else "1")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_cut, "damaged, its last line is missing; copy the file again"),
        (_row_dropped, "damaged, it has "),
        (_digit_changed, "damaged, a line differs from the one that was written"),
        (lambda text: text.replace("device: cpu", "device: cuda"), "damaged, a line differs"),
        (
            lambda text: text.replace("table, format 1", "table, format 7"),
            f"a table of format 7, written by bridge {bridge.__version__}, and this bridge reads "
            "format 1",
        ),
        (lambda text: text.replace("# bridge parity", "#"), "no table of hashes"),
        (lambda text: "", "no table of hashes"),
        (lambda text: '{"schema": 1}', "no table of hashes"),
    ],
)
def test_a_file_that_cannot_be_compared(edit, words, written, tmp_path, capsys):
    path = tmp_path / "t.txt"
    path.write_text(edit(written.read_text()))
    assert main(against(path)) == 2
    err = capsys.readouterr().err
    assert f"--against {path}: " in err
    assert words in err
    assert err.count("\n") == 1


def test_files_that_are_none(tmp_path, capsys):
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        assert main(against(path)) == 2
        assert f"--against {path}: {words}" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert main(against(tmp_path / "binary")) == 2
    assert "no table of hashes" in capsys.readouterr().err


def test_a_file_with_other_line_ends_is_read(written, tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(written.read_bytes().replace(b"\n", b"\r\n"))
    assert read(path) == read(written)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ops", "border"], "--ops border: no ops, so there are no hashes of them"),
        ([*SMALL, "--html", "page.html"], "--html: tables of hashes have no page"),
        (["--forms", "tan"], "--forms tan: no form"),
        ([*SMALL, "--isa", "mmx"], "mmx"),
    ],
)
def test_arguments_that_cannot_be(arguments, words, tmp_path, capsys):
    assert main(["parity", *arguments, "--export", str(tmp_path / "t.txt")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "t.txt").exists()


def test_a_table_without_the_chosen_op(written, capsys):
    assert main(["parity", "--forms", "rotary", "--against", str(written)]) == 2
    assert "no row of the chosen ops" in capsys.readouterr().err


def test_every_instruction_set_is_compared(written, tmp_path, capsys):
    path, report = tmp_path / "t.txt", tmp_path / "t.json"
    options = ("--all-isas", "--export", str(path), "--json", str(report))
    assert main(against(written, *options)) == 0
    isas = proof.setting.usable_isas()
    assert read(path).facts["instruction set"] == ", ".join(isas)
    assert read(path).rows == read(written).rows
    row = json.loads(report.read_text())["rows"][-1]
    ways = {f"{name}, {isa}, 2 threads" for isa in isas for name in ("torch", "JAX")}
    assert ways < {*row["hashes"]}


class TwoCases:
    """A budget that is spent after two cases."""

    def __init__(self) -> None:
        self.asked = 0

    def begin(self) -> None:
        pass

    def spent(self) -> bool:
        self.asked += 1
        return self.asked > 2


def test_a_run_that_ends_early_has_a_smaller_table(written, tmp_path):
    rows = tmp_path / "rows.jsonl"
    how = {"quick": True, "forms": (FORM,), "budget": TwoCases()}
    report = proof.measure(recording=Recording(rows), **how)
    assert read_rows(rows) == json.loads(json.dumps(report))
    found = proof.table_of(report)
    assert found.facts["cases"] == "2 of 3"
    assert found.rows.items() < read(written).rows.items()


# One framework is hidden, as on a machine that does not have it.
ONE = """
import sys
sys.modules[sys.argv[1]] = None
from bridge.cli.main import main
from bridge.cli.parity import grid
grid.PLACES = (grid.Place((23, 31), quick=True),)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("hidden", "other"), [("jax", "torch"), ("torch", "jax")])
def test_one_framework_is_enough(hidden, other, written, tmp_path):
    path = tmp_path / "t.txt"
    command = [sys.executable, "-c", ONE, hidden, *against(written, "--export", str(path))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    assert read(path).rows == read(written).rows
    assert read(path).facts["frameworks"].startswith(f"{other} ")
    assert hidden not in read(path).facts["frameworks"]


def test_without_a_framework_the_error_names_both(monkeypatch):
    monkeypatch.setattr(proof.setting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="need torch or jax, and neither is installed"):
        proof.measure()


def test_a_table_survives_its_file(written):
    found = read(written)
    assert found.text() == written.read_text()
    assert replace(found, rows={}).text() != written.read_text()
