"""`python -m bridge parity` passes on the library and fails on every planted fault."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

import bridge.jax
import bridge.torch
from bridge.cli.catalogue import COMPARED
from bridge.cli.main import main
from bridge.cli.parity import accuracy, grid, in_torch, invariance, summary
from bridge.cli.parity.command import measure
from bridge.cli.parity.grid import OPS
from bridge.cli.parity.measure import Variant, in_json
from bridge.cli.parity.quantities import quantities, words

SMALL = (
    grid.Place((61, 65), quick=True, own=True),
    grid.Place((9, 70), values="special x", quick=True),
)


@pytest.fixture
def small_grid(monkeypatch):
    monkeypatch.setattr(grid, "PLACES", SMALL)


@pytest.mark.long
def test_parity_command_end_to_end(tmp_path):
    json_file, page = tmp_path / "parity.json", tmp_path / "deep" / "parity.html"
    result = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "bridge",
                "parity",
                "--quick",
                "--ops",
                "bias_gelu",
                "--forms",
                "bias_gelu none",
            ),
            *("--json", str(json_file), "--html", str(page)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(json_file.read_text())
    assert report["passed"]
    everything = quantities(("x", "bias"), second_order=True, hessian=True)
    assert {row["quantity"] for row in report["rows"]} == set(everything)
    assert {row["dtypes"] for row in report["rows"]} > {"bfloat16", "float32"}
    for row in report["rows"]:
        assert row["passed"]
        assert row["differing"] == 0
        for name in ("torch", "jax", "own_torch", "own_jax"):
            if row[name] is not None:
                assert math.isfinite(row[name]["ulp"])
    assert any(row["own_torch"] for row in report["rows"])
    assert "gradients" in result.stdout
    assert "all passed" in result.stdout
    for quantity in everything:
        assert f">{words(quantity)}<" in page.read_text()
    assert "<script" not in page.read_text()


@pytest.mark.usefixtures("small_grid")
def test_every_isa_thread_count_and_split_is_compared():
    report = measure(quick=True, all_isas=True, ops=("bias_gelu",), forms=("bias_gelu tanh",))
    assert report["passed"], summary.failures(report)
    isas = report["options"]["variants"]
    assert len(isas) >= 2
    row = next(r for r in report["rows"] if r["quantity"] == "dx")
    assert set(row["variants"]) == {
        f"{how}, {isa}" for how in ("torch", "JAX", "torch in pieces") for isa in isas
    }


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("bias_gelu tanh", (17,)),
        ("scaled_softmax", (17,)),
        ("bias_dropout_add p=0.1 without bias and residual", ()),
    ],
)
def test_places_without_rows_are_compared(form, shape):
    """They have no dimension, or one, which cannot be cut."""
    case = grid.Case(form, "float32", "float32", grid.Place(shape))
    rows = in_json(case, "cpu", [Variant(bridge.build_info()["cpu_isa"], 1)])
    assert all(row["passed"] for row in rows), rows
    assert not any("pieces" in variant for row in rows for variant in row["variants"])


@pytest.mark.long
def test_rows_on_several_devices_are_compared():
    code = """
from bridge.cli.parity.command import measure
report = measure(quick=True, ops=("bias_dropout_add",), forms=("bias_dropout_add p=0.5",))
print(report["passed"], sorted({n for row in report["rows"] for n in row["variants"]}))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().endswith("True ['JAX, rows on 4 devices']")


@pytest.mark.usefixtures("small_grid")
def test_forced_isa_and_threads_are_used_and_undone():
    import torch

    before = bridge.build_info()["cpu_isa"], torch.get_num_threads()
    weakest = bridge.build_info()["cpu_isas"][-1]
    report = measure(
        quick=True, isa=weakest, threads=1, ops=("bias_gelu",), forms=("bias_gelu sigmoid",)
    )
    assert (report["options"]["isa"], report["options"]["threads"]) == (weakest, 1)
    assert (bridge.build_info()["cpu_isa"], torch.get_num_threads()) == before


def test_unknown_isa_is_refused(capsys):
    assert main(["parity", "--quick", "--isa", "mmx"]) == 2
    assert "mmx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ops", "border", "--forms", "swiglu packed"], "border: there are no forms of it"),
        (
            ["--ops", "softmax", "invariance", "--forms", "scaled_softmax"],
            "invariance: there are no forms",
        ),
        (["--forms", "border"], "--forms border: no form; choose it with --ops border"),
        (["--forms", "softmax"], "--forms softmax: no form; choose it with --ops softmax"),
        (
            ["--forms", "rotary", "tan"],
            "--forms tan: no form; expected some of bias_gelu tanh, bias_gelu none",
        ),
        (
            ["--ops", "softmax", "--forms", "scaled_softmax", "rotary"],
            "--forms rotary: no form of softmax",
        ),
        (
            ["--ops", "bias_gelu", "softmax", "--forms", "bias_gelu tanh"],
            "--ops softmax: no form named bias_gelu tanh; its forms are scaled_softmax,",
        ),
        (["--quick", "--threads", "0"], "--threads 0: expected 1 to 1024"),
        (["--quick", "--threads", "100000"], "--threads 100000: expected 1 to 1024"),
    ],
)
def test_arguments_that_cannot_be(arguments, words, capsys):
    assert main(["parity", *arguments]) == 2
    assert words in capsys.readouterr().err


def _torch_off_by_one_bit(monkeypatch):
    right = in_torch.to_numpy

    def wrong(tensor):
        array = right(tensor).copy()
        if array.size:
            array.reshape(-1).view(f"u{array.itemsize}")[-1] ^= 1
        return array

    monkeypatch.setattr(in_torch, "to_numpy", wrong)


# Faults in both frameworks, whose bits therefore still agree.
FAULTS = {
    "bias_gelu": {
        "output zeroed": lambda f: lambda x, bias, **how: 0 * f(x, bias, **how),
        "bias ignored": lambda f: lambda x, bias, **how: f(x, 0 * bias, **how),
        "off by half a percent": lambda f: lambda x, bias, **how: 1.005 * f(x, bias, **how),
        "bias doubled": lambda f: lambda x, bias, **how: f(x, bias + bias, **how),
    },
    "scaled_softmax": {
        "output zeroed": lambda f: lambda x, scale: 0 * f(x, scale),
        "scale ignored": lambda f: lambda x, scale: f(x, 1.0),
        "scale rounded to bfloat16": lambda f: lambda x, scale: f(x, 0.69921875),
        "the other dimension": lambda f: lambda x, scale: _other(f, x, scale),
    },
    "scaled_masked_softmax": {
        "mask ignored": lambda f: lambda x, mask, scale: f(x, mask == 3, scale),
        "only 1 hides": lambda f: lambda x, mask, scale: f(x, mask == 1, scale),
        "mask turned round": lambda f: lambda x, mask, scale: f(x, mask == 0, scale),
    },
    "scaled_causal_softmax": {
        "nothing hidden": lambda f: _package(f).scaled_softmax,
        "scale ignored": lambda f: lambda x, scale: f(x, 1.0),
    },
    "bias_dropout_add": {
        "output zeroed": lambda f: lambda *x, **how: 0 * f(*x, **how),
        "bias ignored": lambda f: lambda x, b, r, **how: f(x, 0 * b, r, **how),
        "residual ignored": lambda f: lambda x, b, r, **how: f(x, b, 0 * r, **how),
        "another seed": lambda f: lambda *x, seed, **how: f(*x, seed=seed + 1, **how),
        "offset ignored": lambda f: lambda *x, offset, **how: f(*x, **how),
        "p of eight bits": lambda f: lambda *x, p, **how: f(*x, p=round(256 * p) / 256, **how),
        "always in training": lambda f: lambda *x, training, **how: f(*x, **how),
    },
    "rms_norm": {
        "another eps": lambda f: lambda x, **how: f(x, eps=1e-2, **how),
        "half a percent off": lambda f: lambda x, weight, **how: f(x, 1.005 * weight, **how),
        "residual ignored": lambda f: lambda x, residual, **how: f(x, residual=0 * residual, **how),
    },
    "token_log_probs": {
        "another label": lambda f: lambda x, labels: f(x, (labels + 1) % x.shape[-1]),
        "temperature": lambda f: lambda x, labels: f(x, labels, scale=1.01),
    },
    "scaled_softmax sink": {
        "sink ignored": lambda f: lambda x, scale, sink: f(x, scale, sink=0 * sink - math.inf),
        "sink scaled": lambda f: lambda x, scale, sink: f(x, scale, sink=scale * sink),
    },
    "linear_cross_entropy": {
        "bias ignored": lambda f: lambda *x, bias, **how: f(*x, bias=0 * bias, **how),
        "smoothed": lambda f: lambda *x, **how: f(*x, label_smoothing=0.01, **how),
    },
    "cross_entropy": {
        "smoothed": lambda f: lambda x, labels, **how: f(x, labels, label_smoothing=0.01, **how),
    },
}
FORM_OF = {
    "bias_gelu": ("bias_gelu tanh",),
    "scaled_softmax": ("scaled_softmax",),
    "scaled_masked_softmax": ("scaled_masked_softmax", "scaled_masked_softmax byte mask"),
    "scaled_causal_softmax": ("scaled_causal_softmax",),
    "bias_dropout_add": ("bias_dropout_add p=0.1", "bias_dropout_add inference"),
    "rms_norm": ("rms_norm residual",),
    "token_log_probs": ("token_log_probs",),
    "scaled_softmax sink": ("scaled_softmax sink",),
    "linear_cross_entropy": ("linear_cross_entropy",),
    "cross_entropy": ("cross_entropy",),
}


def _other(f, x, scale):
    return f(x.swapaxes(-1, -2), scale).swapaxes(-1, -2)


def _package(f):
    return sys.modules[".".join(f.__module__.split(".")[:2])]


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize(
    ("function", "fault"), [(function, fault) for function in FAULTS for fault in FAULTS[function]]
)
def test_a_planted_fault_gives_exit_status_1(function, fault, monkeypatch, capsys):
    plant, name = FAULTS[function][fault], function.partition(" ")[0]
    for ops in (bridge.torch, bridge.jax):
        monkeypatch.setattr(ops, name, plant(getattr(ops, name)))
    assert main(["parity", "--quick", "--forms", *FORM_OF[function]]) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("small_grid")
def test_every_op_passes_without_a_fault(monkeypatch):
    few = {"rms_norm residual": COMPARED["rms_norm residual"]}
    monkeypatch.setattr(invariance, "ROW_OPS", few)
    monkeypatch.setattr(invariance, "BATCHES", (4,))
    report = measure(quick=True)
    assert report["passed"], summary.failures(report)
    assert {row["op"] for row in report["rows"]} == set(OPS)
    assert {row["name"] for row in report["invariance"]} == set(few)


def _measures_own(form):
    compared = COMPARED[form].compared
    return compared.own and any(place.own for place in grid.places(compared))


@pytest.mark.usefixtures("small_grid")
@pytest.mark.parametrize("form", [form for form in COMPARED if _measures_own(form)])
@pytest.mark.sampled(3)
def test_accuracy_of_the_catalogue(form):
    """bridge is no less accurate than torch's own op, as far as random largest errors can show."""
    report = measure(quick=True, forms=(form,))
    assert report["passed"], summary.failures(report)
    compared = [row for row in report["rows"] if row["own_torch"]]
    assert {row["dtypes"] for row in compared} >= {"float32", "bfloat16"}
    for row in compared:
        role = COMPARED[form].roles.get(row["quantity"][1:], "")
        if "number" in role or role == "per row":
            continue  # a few draws; test_dyt.py and test_policy_loss.py have many
        assert row["torch"]["ulp"] <= 1.5 * row["own_torch"]["ulp"] + 0.5, row["quantity"]


def test_a_row_that_depends_on_its_batch_gives_exit_status_1(monkeypatch, capsys):
    right = bridge.torch.log_softmax
    few = {"log_softmax": COMPARED["log_softmax"]}
    monkeypatch.setattr(invariance, "ROW_OPS", few)
    monkeypatch.setattr(bridge.torch, "log_softmax", lambda x: right(x) * (1 + (len(x) > 99) / 64))
    assert main(["parity", "--quick", "--ops", "invariance"]) == 1
    out = capsys.readouterr().out
    assert "invariance, log_softmax bfloat16, batches, torch" in out
    assert "log_softmax bfloat16, alone" not in out


@pytest.mark.usefixtures("small_grid")
def test_one_bit_in_one_framework_gives_exit_status_1(monkeypatch, capsys):
    _torch_off_by_one_bit(monkeypatch)
    assert main(["parity", "--quick", "--ops", "bias_gelu", "--forms", "bias_gelu tanh"]) == 1
    assert "FAIL" in capsys.readouterr().out


def _errors(got, true, dtype="float32"):
    ones = np.ones_like(true)
    return accuracy.compare(
        np.array(got), np.array(true), ones * 1e-7, ones * 1e-6, accuracy.FORMATS[dtype]
    )


def test_error_measure_sees_what_is_not_finite():
    assert _errors([1.0, np.nan, np.inf], [1.0, np.nan, np.inf]).passed
    assert _errors([np.nan], [1.0]).wrong == 1
    assert _errors([1.0], [np.nan]).wrong == 1
    assert _errors([np.inf], [-np.inf]).wrong == 1
    assert _errors([np.inf], [1.0]).wrong == 1
    assert _errors([np.inf], [3.41e38]).passed  # rounds to inf in float32
    assert not _errors([1.0 + 2e-6], [1.0]).passed
    assert _errors([1.0 + 5e-7], [1.0]).passed


@pytest.mark.parametrize("dtype", grid.NUMPY)
def test_ulp_is_the_spacing_of_the_format(dtype):
    values = np.array([1.0, 1.5, 0.75, -3.0, 1e-3, 0.0]).astype(grid.NUMPY[dtype])
    bits = np.abs(values).view(f"u{values.itemsize}")
    following = (bits + np.ones_like(bits)).view(values.dtype)
    spacing = following.astype(np.float64) - np.abs(values).astype(np.float64)
    ulp = accuracy.FORMATS[dtype].ulp(values.astype(np.float64))
    np.testing.assert_array_equal(ulp, spacing)
