"""`python -m bridge parity --ops border` tests every conversion, and fails on a planted fault."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import bridge
from bridge.cli.main import main
from bridge.exchange.dtypes import TO_JAX

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
border = pytest.importorskip("bridge.cli.parity.border")


def test_every_dtype_there_and_back(tmp_path, capsys):
    report_file, page = tmp_path / "parity.json", tmp_path / "parity.html"
    arguments = ["--ops", "border", "--json", str(report_file), "--html", str(page)]
    assert main(["parity", *arguments]) == 0
    report = json.loads(report_file.read_text())
    assert report["passed"]
    assert report["rows"] == []
    rows = report["border"]
    assert {row["dtype"] for row in rows} == {dtype.name for dtype in TO_JAX.values()}
    assert {row["direction"] for row in rows} == {"torch → JAX → torch", "JAX → torch → JAX"}
    assert {row["layout"] for row in rows} >= {"permuted", "expanded", "misaligned", "conjugate"}
    assert any(row["refused"] for row in rows)
    assert any(row["shared"] for row in rows)
    assert "border" in page.read_text()
    assert "all passed" in capsys.readouterr().out


def wrong_bits(to_jax: Any) -> Any:
    def function(leaf: Any, *, copy: bool | None = None) -> Any:
        return to_jax(torch.zeros_like(leaf), copy=copy)

    return function


def always_a_copy(to_jax: Any) -> Any:
    return lambda leaf, *, copy=None: to_jax(leaf, copy=True)


def never_refused(to_jax: Any) -> Any:
    return lambda leaf, *, copy=None: to_jax(leaf, copy=copy or None)


@pytest.mark.parametrize("fault", [wrong_bits, always_a_copy, never_refused])
def test_a_planted_fault_fails(fault, monkeypatch, capsys):
    assert main(["parity", "--quick", "--ops", "border"]) == 0
    monkeypatch.setattr(bridge, "to_jax", fault(bridge.to_jax))
    assert main(["parity", "--quick", "--ops", "border"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "border, " in out


def read_wrongly(array: Any) -> Any:
    return jax.numpy.zeros((2, *array.shape), array.dtype)


def refuse_to_run(array: Any) -> Any:
    raise jax.errors.JaxRuntimeError("INTERNAL: an entry parameter lies at no multiple of 16 bytes")


@pytest.mark.parametrize("program", [refuse_to_run, read_wrongly])
def test_a_misaligned_tensor_is_computed_on(program, monkeypatch, capsys):
    """JAX may accept and return an array unread although no program can use its memory."""
    monkeypatch.setattr(border, "_twice", program)
    assert main(["parity", "--quick", "--ops", "border"]) == 1
    assert re.search(r"misaligned.*FAIL", capsys.readouterr().out)


def test_bench_of_the_border(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.bench.timing.SAMPLE_SECONDS", 1e-5)
    file = tmp_path / "bench.json"
    plot = tmp_path / "bench.svg"
    arguments = ["--quick", "--ops", "border", "--json", str(file), "--plot", str(plot)]
    assert main(["bench", *arguments]) == 0
    assert not plot.exists()  # there are no bars to draw
    report = json.loads(file.read_text())
    names = {row["what"] for row in report["rows"]}
    assert names >= {"to_torch", "to_jax", "to_torch, tree of 200", "to_jax, tree of 200"}
    of_tensors = [row for row in report["rows"] if row["what"].startswith("to_")]
    assert all(set(row["timings"]) == {"bridge", "from_dlpack"} for row in of_tensors)
    assert len([t for t in report["targets"] if t["what"].startswith("to_")]) == 5
