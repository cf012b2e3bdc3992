"""`python -m bridge bench` times every contender and compares the numbers with the targets."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re

import numpy as np
import pytest

from bridge.cli.catalogue import ENTRIES
from bridge.cli.main import main
from tools.bench import command, declared, softmax
from tools.bench.cases import TINY, Case
from tools.bench.ops import OPS
from tools.bench.targets import table, targets
from tools.bench.timing import Contender, interleave

pytest.importorskip("torch")
pytest.importorskip("jax")


def few_bias_gelu(_, framework: str, quick: bool) -> list[Case]:
    shape = (16, 64)
    whats = ["forward", "backward", "forward+backward"]
    made = [Case("bias_gelu", framework, what, "bfloat16", "none", shape) for what in whats]
    made.append(Case("bias_gelu", framework, "forward", "float32", "tanh", shape, "old"))
    tiny = ("forward", "forward+backward") if framework == "torch" else ("chain", "outside jit")
    made += [
        Case("bias_gelu", framework, what, "float32", "tanh", TINY, part="tiny") for what in tiny
    ]
    return made


def few_softmax(_, framework: str, quick: bool) -> list[Case]:
    made = [
        Case("softmax", framework, what, "float32", form, (2, 2, 8, 8))
        for what in ("forward", "backward")
        for form in ("plain", "masked", "causal")
    ]
    if framework == "torch":
        made += [
            Case("softmax", framework, what, "float32", form, (2, 2, 8, 8), "old")
            for what in ("forward", "backward")
            for form in ("plain", "causal")
        ]
        lengths = (64, 256)
        made += [
            Case("softmax", framework, "forward", "float32", "plain", (1024 // n, n), part="growth")
            for n in lengths
        ]
    return made


def few_bias_dropout_add(_, framework: str, quick: bool) -> list[Case]:
    how = (framework, "forward+backward", "float32", "p=0.1", (64, 128))
    made = [Case("bias_dropout_add", *how, peak=True)]
    if framework == "jax":
        made.append(Case("bias_dropout_add", *how, part="sharded"))
    return made


def few_declared(op, framework: str, quick: bool) -> list[Case]:
    return [Case(op.name, framework, "forward+backward", "float32", "rms_norm", (8, 64))]


def few_linear_cross_entropy(op, framework: str, quick: bool) -> list[Case]:
    how = (framework, "forward+backward", "float32", "4 features", (64, 8192))
    return [Case(op.name, *how, peak=True)]


FEW = {
    "linear_cross_entropy": few_linear_cross_entropy,
    "catalogue": few_declared,
    "declared": few_declared,
    "bias_gelu": few_bias_gelu,
    "softmax": few_softmax,
    "bias_dropout_add": few_bias_dropout_add,
}


@pytest.fixture
def few_cases(monkeypatch):
    for name, few in FEW.items():
        monkeypatch.setattr(type(OPS[name]), "cases", few)
    monkeypatch.setattr("tools.bench.timing.SAMPLE_SECONDS", 1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("few_cases")
def test_bench_command_writes_table_json_and_plot(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # so that no label is folded
    json_file, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    arguments = ["--quick", "--no-compile", "--json", str(json_file), "--plot", str(plot)]
    assert main(["bench", *arguments]) == 0
    report = json.loads(json_file.read_text())
    assert {row["framework"] for row in report["rows"]} == {"torch", "jax"}
    for row in report["rows"]:
        peer = {"torch": "eager", "jax": "jit"}[row["framework"]]
        if row["op"] == "border" or row["part"] == "sharded":
            peer = next(iter(row["speedup"]))
        assert row["speedup"][peer] > 0
        for timing in row["timings"].values():
            assert 0 < timing["low"] <= timing["median"] <= timing["high"]
            assert math.isfinite(timing["high"])
        if row["part"] == "main" and row["bytes"]:
            expected = row["bytes"] / row["timings"]["bridge"]["median"] / 1e9
            assert row["gigabytes_per_second"]["bridge"] == pytest.approx(expected)
    assert {row["op"] for row in report["rows"]} == {*OPS, "border"}
    assert {line.op for line in table(report)} == {*OPS, "border"}
    assert all(means["eager"] > 0 for means in report["geometric_means"].values())
    assert report["geometric_means"]["softmax"]["compile"] is None
    assert "<svg" in plot.read_text()
    out = capsys.readouterr().out
    assert "Tiny calls" in out
    assert "empty" in out
    assert "on several devices" in out
    assert "kept for backward" in out
    assert "Targets" in out


@pytest.mark.usefixtures("few_cases")
def test_dropout_keeps_no_mask_and_says_how_much_its_peers_keep(tmp_path):
    json_file = tmp_path / "bench.json"
    arguments = ["--ops", "bias_dropout_add", "--no-compile", "--json", str(json_file)]
    assert main(["bench", *arguments]) == 0
    report = json.loads(json_file.read_text())
    rows = [row for row in report["rows"] if row["part"] == "main"]
    taken = {row["framework"]: row["memory_bytes"] for row in rows}
    array = 64 * 128 * 4
    assert taken["torch"]["bridge"]["kept"] < 100
    assert taken["torch"]["eager"]["kept"] >= array // 4  # at least a mask of bytes
    # Only y and dx: the residual's gradient is the cotangent itself.
    assert 2 * array <= taken["torch"]["bridge"]["peak"] < 2.2 * array
    assert taken["torch"]["eager"]["peak"] > 2.2 * array
    assert taken["jax"]["bridge"]["peak"] <= taken["jax"]["jit"]["peak"]


@pytest.mark.parametrize(
    ("op", "form", "arrays"),
    [
        ("bias_gelu", "tanh", {"forward": 2, "backward": 3, "forward+backward": 5}),
        ("softmax", "plain", {"forward": 2, "backward": 3}),
        ("softmax", "causal", {"forward": 1.5, "backward": 2}),
        ("bias_dropout_add", "p=0.1", {"forward": 3, "backward": 2, "forward+backward": 5}),
        ("declared", "rms_norm", {"forward": 2, "backward": 3}),
        ("catalogue", "rms_norm residual", {"forward": 4, "backward": 4}),
        ("catalogue", "swiglu packed", {"forward": 3, "backward": 5}),
        ("catalogue", "token_log_probs", {"forward": 1, "backward": 2}),
        ("declared", "row_dot", {"forward": 2, "backward": 4}),
    ],
)
def test_bytes_are_the_fewest_possible(op, form, arrays):
    for what, count in arrays.items():
        case = Case(op, "torch", what, "bfloat16", form, (64, 1024))
        assert OPS[op].bytes(case) == count * 2 * 64 * 1024


def test_a_mask_is_read_once_for_all_heads():
    case = Case("softmax", "torch", "forward", "bfloat16", "masked", (2, 3, 4, 8))
    assert OPS["softmax"].bytes(case) == 2 * 2 * (2 * 3 * 4 * 8) + 2 * 4 * 8


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_full_set_covers_what_the_targets_speak_of(op, framework):
    full, quick = (list(OPS[op].cases(framework, quick)) for quick in (False, True))
    assert len(set(full)) == len(full)
    assert {case.dtype for case in full} >= {"bfloat16", "float32"}
    assert set(quick) <= set(full)
    forms = {
        "bias_gelu": {"tanh", "none"},
        "softmax": {"plain", "masked", "causal"},
        "bias_dropout_add": {"p=0.1"},
        "catalogue": set(ENTRIES),
        "declared": set(declared.FORMS),
        "linear_cross_entropy": {"32 features", "256 features", "512 features"},
    }
    assert {case.form for case in full} == forms[op]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("declared", form) for form in declared.FORMS),
        *(("catalogue", form) for form in ENTRIES),
        ("linear_cross_entropy", "4 features"),
        ("bias_gelu", "tanh"),
        *(("softmax", form) for form in ("plain", "masked", "causal")),
    ],
)
def test_programs_and_their_peers_compute_the_same(name, form):
    """The expressions timed as peers compute the same results."""
    import jax
    import torch

    import bridge.torch
    from tools.bench.in_torch import _Make

    op = OPS[name]
    case = Case(name, "torch", "forward", "float32", form, (3, 8))
    make = _Make(case, "cpu")
    inputs, rest = op.operands(case, make)
    cotangent = op.cotangent(case, make)
    bridged = op.bridged(case, bridge.torch)
    by_bridge = bridged(*inputs, *rest)
    torch.testing.assert_close(op.in_torch(case)(*inputs, *rest), by_bridge)
    arrays = [jax.numpy.asarray(each.numpy()) for each in (*inputs, *rest)]
    by_jax = op.in_jax(case)(*arrays)
    for ours, theirs, g in zip(*map(several, (by_bridge, by_jax, cotangent)), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
        assert (ours.shape, ours.dtype) == (g.shape, g.dtype)


def several(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("what", ["forward", "backward"])
@pytest.mark.parametrize("form", ["plain", "causal"])
def test_contenders_that_write_into_memory_compute_the_same(what, form):
    import torch

    case = Case("softmax", "torch", what, "float32", form, (2, 5, 5), "old")
    x, g = torch.randn(2, 5, 5), torch.randn(2, 5, 5)
    mask = () if form == "plain" else (torch.ones(5, 5, dtype=torch.bool).triu(1),)
    y = OPS["softmax"].in_torch(case)(x, *mask)
    results = []
    for name in ("bridge", "eager"):
        out = torch.empty_like(x)
        OPS["softmax"].into(name, case, out)(*((x, *mask) if what == "forward" else (g, y)))
        results.append(out)
    torch.testing.assert_close(*results)


def test_every_target_finds_its_rows():
    rows = []
    for op, framework in ((op, framework) for op in OPS for framework in ("torch", "jax")):
        for case in OPS[op].cases(framework, False):
            names = ["bridge", *(["eager", "compile"] if framework == "torch" else ["jit"])]
            names += ["copy", "add"] if case.what == "forward" else []
            names += ["shard_map"] if case.part == "sharded" else []
            names += [f"{name} ×101" for name in names] if case.what == "chain" else []
            rows.append(
                {
                    "op": op,
                    "framework": framework,
                    **{name: getattr(case, name) for name in ("what", "dtype", "form", "memory")},
                    "shape": list(case.shape),
                    "part": case.part,
                    "bytes": OPS[op].bytes(case),
                    "memory_bytes": {name: {"peak": 1} for name in names} if case.peak else {},
                    "timings": {name: {"median": 1.0} for name in names},
                    "speedup": {name: 1.0 for name in names[1:3] if name in PEERS},
                }
            )
    assert all(target.value is not None for target in targets(rows))
    assert len(softmax.GROWTH) >= 4


PEERS = ("eager", "compile", "jit")


def test_a_chain_of_empty_calls_is_what_xla_takes():
    """The program has the custom calls of the op's chain: as many operands and attributes."""
    import jax

    from tools.bench.in_jax import Contenders

    case = Case("bias_gelu", "jax", "chain", "float32", "tanh", TINY, part="tiny")
    runs = {c.name: c.run for c in Contenders("cpu").of(case)}
    assert set(runs) == {f"{n}{s}" for n in ("bridge", "jit", "empty") for s in ("", " ×101")}
    for name, target in (("bridge ×101", "bridge_program"), ("empty ×101", "bridge_empty")):
        called = re.findall(
            r"custom_call @(\w+)\(.*attributes = .*outputs = .*slots = ",
            jax.jit(runs[name]).lower().as_text(),
        )
        assert called == [target] * 101
    assert jax.block_until_ready(runs["empty ×101"]()).shape == TINY


def test_a_call_outside_jit_is_that_of_the_public_function(monkeypatch):
    from tools.bench.in_jax import Contenders

    for op in OPS.values():
        (case,) = [case for case in op.cases("jax", False) if case.what == "outside jit"]
        bridged, traced = op.bridged, []

        def watched(case, ops, bridged=bridged, traced=traced):
            function = bridged(case, ops)
            return lambda *operands: (traced.append(operands), function(*operands))[1]

        monkeypatch.setattr(op, "bridged", watched)
        for contender in Contenders("cpu").of(case):
            for _ in range(3):
                contender.wait(contender.run())
        assert len(traced) == 3  # each time: in jit it would be once


def test_interleaved_timing_tells_slow_from_fast(hand_clock):
    fast = Contender("fast", lambda: hand_clock.sleep(1e-3), lambda _: None)
    slow = Contender("slow", lambda: hand_clock.sleep(8e-3), lambda _: None, calls=2)
    timings = interleave([fast, slow], seconds=0.1)
    assert timings["fast"].median == pytest.approx(1e-3)
    assert timings["slow"].median == pytest.approx(4e-3)
    assert timings["fast"].rounds == timings["slow"].rounds >= 5


def test_an_interrupted_warm_up_does_not_make_samples_of_one_run(hand_clock):
    """The first call after a rest costs more, and is most of the time of a one-run sample."""
    runs = []

    def run():
        interrupted = hand_clock.now - start < 0.018  # by work of the compiler, for a while after
        rested = hand_clock.now - (runs[-1] if runs else 0.0) > 1e-3
        hand_clock.sleep(5e-3 if interrupted else 1e-4 if rested else 1e-5)
        runs.append(hand_clock.now)

    start = hand_clock.now
    timing = interleave([Contender("short", run, lambda _: None)], seconds=0.1)["short"]
    assert timing.median == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("queued", [False, True])
def test_what_a_run_uses_up_is_restored_before_it_and_not_timed(hand_clock, queued):
    """Operands are restored before each run that is waited for, or before each queued sample."""
    did = []

    def run():
        did.append("run")
        hand_clock.sleep(3e-4)

    def restore():
        did.append("restore")
        hand_clock.sleep(1.0)

    contender = Contender("uses up", run, lambda _: None, queued=queued, restore=restore)
    timing = interleave([contender], seconds=0.01)["uses up"]
    assert timing.median == pytest.approx(3e-4)
    runs = "".join(word[2] for word in did).split("s")[1:]  # ["nn…", …]: between two restores
    per_sample = len(runs[-1])
    assert per_sample == (1 if not queued else math.ceil(2e-3 / 3e-4))
    assert len(runs) >= 5


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("op", ["bias_gelu", "softmax"])
def test_every_run_starts_from_the_same_values(op, framework, monkeypatch):
    """Results written into existing memory do not become the next run's operands."""
    import jax

    from tools.bench.command import _contenders

    monkeypatch.setattr("tools.bench.timing.SAMPLE_SECONDS", 1e-4)
    contenders = _contenders(framework, "cpu", False)
    cases = {
        (case.what, case.form, case.dtype)
        for case in OPS[op].cases(framework, False)
        if case.memory == "old"
    }
    for what, form, dtype in sorted(cases):
        case = Case(op, framework, what, dtype, form, (4, 16, 16), "old")
        found = contenders.of(case)
        results = {contender.name: set() for contender in found}

        def watched(contender, seen):
            def wait(result):
                contender.wait(result)
                if framework == "torch":
                    seen.add((result.data_ptr(), result.float().numpy().tobytes()))
                else:
                    own = jax.numpy.array(result, copy=True)  # memory read by NumPy is not donated
                    seen.add((result.unsafe_buffer_pointer(), np.asarray(own).tobytes()))

            return dataclasses.replace(contender, wait=wait)

        interleave([watched(c, results[c.name]) for c in found], seconds=0.0)
        assert {name: len(seen) for name, seen in results.items()} == dict.fromkeys(results, 1)
    assert cases or (op, framework) == ("softmax", "jax")


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("form", ENTRIES)
def test_both_passes_of_the_catalogue_run(form, framework):
    """The op has several results, labels and tables, in 16 bits; some results are wider."""
    from tools.bench.command import _contenders

    case = Case("catalogue", framework, "forward+backward", "bfloat16", form, (4, 64))
    found = _contenders(framework, "cpu", False).of(case)
    for contender in found:
        contender.wait(contender.run())
    assert found[0].name == "bridge"


def test_what_is_timed_is_compiled_and_nothing_after_it(monkeypatch):
    seen = []
    monkeypatch.setattr(command, "_steps", lambda *_: seen.append(os.environ["BRIDGE_COMPILE"]))
    for before in ("0", None):
        if before is None:
            monkeypatch.delenv("BRIDGE_COMPILE")
        with pytest.raises(TypeError):  # None is no list of steps
            command.measure(frameworks=())
        assert os.environ.get("BRIDGE_COMPILE") == before
    assert seen == ["now", "now"]
