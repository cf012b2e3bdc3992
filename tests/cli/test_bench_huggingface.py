"""The bench of models whose layers are replaced."""

from __future__ import annotations

import argparse
import sys

import pytest

from tools.bench import command

pytest.importorskip("transformers")


def test_rows_of_replaced_models() -> None:
    from tools.bench import huggingface

    rows = list(huggingface.rows("cpu", 0.0, ("rotary", "all"), modes=(False,), widths=(64,)))
    assert [row["label"] for row in rows] == [
        f"{what}, {form}, 64 wide"
        for form in ("rotary", "all")
        for what in ("forward", "forward+backward")
    ]
    for row in rows:
        timings = row["timings"]
        assert timings.keys() == {"bridge", "eager"}
        assert row["speedup"]["eager"] == timings["eager"]["median"] / timings["bridge"]["median"]
        assert all(0 < t["low"] <= t["median"] <= t["high"] for t in timings.values())


def test_the_original_of_the_bench_is_not_replaced() -> None:
    """A replaced rotary embedding changes a whole Python module, so each model has its own copy."""
    from transformers.models.llama import modeling_llama

    from bridge.torch import huggingface as replaced
    from tools.bench import huggingface

    sizes = huggingface._sizes(64)
    ours, _ = huggingface._model("test", "cpu", False, sizes, replaced.replace)
    original, _ = huggingface._model("test original", "cpu", False, sizes)
    assert ours.state_dict().keys() == original.state_dict().keys()
    homes = [sys.modules[type(m).__module__] for m in (ours, original)]
    assert hasattr(homes[0].apply_rotary_pos_emb, "__wrapped__")
    assert not hasattr(homes[1].apply_rotary_pos_emb, "__wrapped__")
    assert not hasattr(modeling_llama.apply_rotary_pos_emb, "__wrapped__")


def test_models_are_measured_where_they_are_asked_for() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert "huggingface" not in parser.parse_args([]).ops
    assert parser.parse_args(["--ops", "huggingface"]).ops == ["huggingface"]
