"""kernel_speed's rows, arguments and records, on the CPU instead of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge.catalogue import ahead_of_time
from scripts.gpu import kernel_speed
from tools.bench.ops import OPS


def listed(capsys: Any, *arguments: str) -> dict[str, float]:
    """Returns the megabytes of every row by its name."""
    assert kernel_speed.main(["--list", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line[:72].strip(): float(line[72:].split()[1]) for line in lines}
    assert len(found) == len(lines)
    return found


def test_every_op_and_pass_comes_first_at_one_shape(capsys: Any) -> None:
    names = list(rows := listed(capsys))
    forms = {tuple(name.rsplit(".", 3)[0].split(".", 1)) for name in names}
    assert {op for op, _ in forms} == {*OPS} - {"linear_cross_entropy"}
    assert all(".bfloat16.4096" in name for name in names[: 2 * len(forms)])
    for name, megabytes in rows.items():
        assert "64x" in name or 700 < megabytes < 10_000, (name, megabytes)  # four operands
    # The mask has one byte per element for 16 heads.
    plain, masked = (f"softmax.{form}.forward.bfloat16.4096" for form in ("plain", "masked"))
    assert 1.01 < rows[masked] / rows[plain] < 1.02
    assert kernel_speed.main(["--list-profile"]) == 0
    profiled = capsys.readouterr().out.splitlines()
    assert len(profiled) == len(set(profiled)) > 2
    assert set(profiled) <= set(names)


def test_every_program_that_a_build_compiles_has_a_row(capsys: Any) -> None:
    text = " ".join(listed(capsys))
    for name in ahead_of_time.OPS:
        assert name.split(" ")[0].replace("swiglu", "swiglu packed") in text, name


def test_what_is_measured(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_COMPILE", "0")
    file = tmp_path / "rows.jsonl"
    run = ["--device", "cpu", "--jsonl", str(file), "--only", r"\.rms_norm.backward.float32.4096"]
    assert kernel_speed.main(run) == 0
    first, copy, *rows, last = (json.loads(line) for line in file.read_text().splitlines())
    assert (first["record"], copy["op"], last["record"]) == ("device", "copy", "end")
    assert [row["op"] for row in rows] == ["rms_norm", "declared"]
    assert (last["complete"], last["measured"], last["failed"]) == (True, 2, 0)
    said = capsys.readouterr().out
    for row in (copy, *rows):
        assert row["name"] in said
        times = row["one_by_one"]
        assert 0 < times["lower_quartile"] <= times["seconds"] <= times["upper_quartile"]
        assert times["gb_per_second"] == pytest.approx(row["bytes"] / times["seconds"] * 1e-9)
        assert ("of_copy" in times) == (row is not copy)

    # With no time nothing is measured, and the file records it.
    assert kernel_speed.main([*run, "--seconds", "0"]) == 0
    *_, copy, last = (json.loads(line) for line in file.read_text().splitlines())
    assert (copy["op"], last["complete"], last["measured"]) == ("copy", False, 0)

    # A failed call, or a wrong result, gives its row an error record, and sets the exit status.
    contender = kernel_speed.OPS["catalogue"]
    nan = torch.tensor([torch.nan])
    monkeypatch.setattr(contender, "bridged", lambda case, ops: lambda x, w: x * w * nan)
    assert kernel_speed.main(run) == 1
    *_, row, other, last = (json.loads(line) for line in file.read_text().splitlines())
    assert "not finite" in row["error"]
    assert "error" not in other
    assert last["failed"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "soon"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--only", "no such row"], "no such row"),
        (["--profile", "softmax"], "softmax"),
        (["--quick"], "--quick"),
    ],
)
def test_refusals(arguments: list[str], words: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        kernel_speed.main(arguments)
    assert words in capsys.readouterr().err


def test_without_a_device(tmp_path: Path, capsys: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    file = tmp_path / "none.jsonl"
    assert kernel_speed.main(["--jsonl", str(file)]) == 3
    assert "no CUDA device answers" in capsys.readouterr().err
    assert not file.exists()
