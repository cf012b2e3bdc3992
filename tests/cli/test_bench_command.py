"""`python -m bridge bench` times every contender and holds the numbers against the targets."""

from __future__ import annotations

import json
import math

import pytest

from bridge.cli.bench import command
from bridge.cli.bench.cases import TINY, Case, cases
from bridge.cli.bench.timing import Contender, interleave
from bridge.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("jax")


def few(framework: str, quick: bool) -> list[Case]:
    shape = (16, 64)
    whats = ["forward", "backward", "forward+backward"]
    made = [Case("bias_gelu", framework, what, "bfloat16", "none", shape) for what in whats]
    made.append(Case("bias_gelu", framework, "forward", "float32", "tanh", shape, "old"))
    tiny = ("forward", "forward+backward") if framework == "torch" else ("chain",)
    made += [Case("bias_gelu", framework, what, "float32", "tanh", TINY) for what in tiny]
    return made


@pytest.fixture
def few_cases(monkeypatch):
    monkeypatch.setattr(command, "cases", few)
    monkeypatch.setattr("bridge.cli.bench.timing.SAMPLE_SECONDS", 1e-5)


@pytest.mark.usefixtures("few_cases")
def test_bench_command_writes_table_json_and_plot(tmp_path, capsys):
    json_file, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = ["--quick", "--no-compile", "--json", str(json_file), "--plot", str(plot)]
    assert main(["bench", *arguments]) == 0
    report = json.loads(json_file.read_text())
    assert {row["framework"] for row in report["rows"]} == {"torch", "jax"}
    for row in report["rows"]:
        peer = {"torch": "eager", "jax": "jit"}[row["framework"]]
        assert row["speedup"][peer] > 0
        for timing in row["timings"].values():
            assert 0 < timing["low"] <= timing["median"] <= timing["high"]
            assert math.isfinite(timing["high"])
        if not row["tiny"]:
            expected = row["bytes"] / row["timings"]["bridge"]["median"] / 1e9
            assert row["gigabytes_per_second"]["bridge"] == pytest.approx(expected)
    assert {target["what"] for target in report["targets"]} >= {"over jax.jit"}
    assert report["geometric_means"]["eager"] > 0
    assert report["geometric_means"]["compile"] is None
    assert "<svg" in plot.read_text()
    out = capsys.readouterr().out
    assert "Tiny calls" in out
    assert "Targets" in out


def test_bytes_are_the_fewest_possible():
    def case(what):
        return Case("bias_gelu", "torch", what, "bfloat16", "tanh", (64, 1024)).bytes

    elements = 64 * 1024
    assert case("forward") == 2 * 2 * elements
    assert case("backward") == 3 * 2 * elements
    assert case("forward+backward") == 5 * 2 * elements


def test_the_full_set_covers_what_the_targets_speak_of():
    for framework in ("torch", "jax"):
        full, quick = list(cases(framework, False)), list(cases(framework, True))
        assert len(set(full)) == len(full)
        assert {case.dtype for case in full} == {"float16", "bfloat16", "float32"}
        assert {case.form for case in full} == {"tanh", "none"}
        assert {case.memory for case in full} == {"new", "old"}
        assert set(quick) <= set(full)


def test_interleaved_timing_tells_slow_from_fast():
    import time

    fast = Contender("fast", lambda: time.sleep(1e-3), lambda _: None)
    slow = Contender("slow", lambda: time.sleep(4e-3), lambda _: None)
    timings = interleave([fast, slow], seconds=0.1)
    assert timings["fast"].median < timings["slow"].median
    assert timings["fast"].rounds == timings["slow"].rounds >= 5
