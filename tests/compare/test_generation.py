"""Decoder steps that write caches in place, and loops that generate text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import bridge
from tests.compare import generation
from tests.compare.language import params_of
from tests.compare.test_planted_mistakes import planted


def step(torch_way: str, jax_way: str, m: str = "") -> Any:
    torch.manual_seed(0)
    model = generation.CachedStep(torch_way)
    params = params_of(model)
    caches = np.random.default_rng(0).standard_normal((2, 2, 8, 2, 8)).astype(np.float32)
    caches[:, :, 3:] = 0
    return bridge.compare(
        model,
        lambda *inputs: generation.cached_step(params, *inputs, way=jax_way, m=m),
        np.array([3, 7]),
        np.array(3),
        *caches,
    )


@pytest.mark.parametrize("jax_way", ["update", "at", "where"])
@pytest.mark.parametrize("torch_way", ["row", "index_copy_"])
def test_caches_written_in_place(torch_way: str, jax_way: str) -> None:
    report = step(torch_way, jax_way)
    assert not report.parts, str(report)
    assert report.error < 1e-9
    report = step(torch_way, jax_way, "position")
    lines = {int(part.jax.source.rpartition(":")[2]) for part in report.parts}
    assert len(lines) == 2, str(report)
    assert lines <= planted(generation, "position"), str(report)
    caches = [part.torch.code[:4] for part in report.parts]
    assert caches == ["keys", "valu"], str(report)
    assert all("other places" in part.cause for part in report.parts), str(report)


def test_outputs_in_another_order() -> None:
    model = torch.nn.Linear(4, 5)
    params = params_of(model)
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)

    def port(x: Any) -> Any:
        return x @ params["weight"].T + params["bias"]

    assert not bridge.compare(model, port, x).parts
    for wrong in (lambda x: port(x)[::-1], lambda x: port(x)[:, ::-1], lambda x: port(x[::-1])):
        report = bridge.compare(model, wrong, x)
        assert len(report.parts) == 1, str(report)
        assert report.error > 1e-3
    by_row = bridge.compare(lambda x: model(x).sum(1), lambda x: port(x).sum(1)[::-1], x)
    assert [part.jax.op for part in by_row.parts] == ["rev"], str(by_row)


GENERATED = {
    "scan": generation.generated_by_scan,
    "loop": generation.generated_by_a_loop,
}


def generated(way: str, m: str = "", change: Any = lambda ids: ids) -> Any:
    torch.manual_seed(0)
    model = generation.Generator()
    params = params_of(model)
    ids = np.random.default_rng(0).integers(0, 20, (2, 4))
    return bridge.compare(model, lambda ids: change(GENERATED[way](params, ids, m)), ids)


@pytest.mark.parametrize("way", GENERATED)
def test_generated_text(way: str) -> None:
    report = generated(way)
    assert not report.parts, str(report)
    assert not report.tokens
    assert report.same_bits
    assert report.differing == 0
    assert report.outputs == 2 * (4 + generation.STEPS)


@pytest.mark.parametrize("way", GENERATED)
@pytest.mark.parametrize("mistake", ["row", "argmin"])
def test_the_first_token_that_differs_is_named(way: str, mistake: str) -> None:
    report = generated(way, mistake)
    number = rf"{report.differing} of 20 tokens or other whole numbers differ"
    (words,) = report.tokens
    assert re.fullmatch(rf"output 0: {number}, first at \(0, 4\): \d+ here, \d+ there", words)
    assert str(report).startswith(words)
    assert len(report.parts) == 1, str(report)
    part = report.parts[0]
    assert int(part.jax.source.rpartition(":")[2]) in planted(generation, mistake), str(report)
    if mistake == "argmin":
        assert (part.torch.op, part.jax.op) == ("argmax", "argmin")
        assert part.count == generation.STEPS
        assert part.cause == f"chosen from equal numbers, first {words.rpartition('): ')[2]}"


def test_a_token_of_a_later_step_comes_after_one_of_an_earlier_step() -> None:
    wrong = {(0, 6): 3, (1, 5): 4}

    def change(ids: Any) -> Any:
        for place, more in wrong.items():
            ids = ids.at[place].set((ids[place] + more) % 20)
        return ids

    report = generated("loop", "", change)
    assert "2 of 20 tokens or other whole numbers differ, first at (1, 5)" in report.tokens[0]
    assert len(report.parts) == 1, str(report)
    assert report.parts[0].jax.op == "scatter"
    assert report.parts[0].cause == "other whole numbers, and no value behind them differs"
    assert "one side lacks it" not in str(report)


def test_tokens_that_differ_in_float32_only() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x * 0.3 + 1).argmax(-1)

    x = np.array([[0.0, 1e-9, 0.0]], np.float32)  # equal in float32 behind the addition
    report = bridge.compare(model, lambda x: (x * 0.3).argmax(-1), x)
    assert not report.parts, str(report)
    assert report.tokens == [
        "output 0: 1 of 1 tokens or other whole numbers differ, first at 0: 0 here, 1 there"
    ]
    assert "The models are the same in float64, but not in their own dtype" in str(report)
