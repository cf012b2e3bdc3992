"""Decoder steps that write caches in place, and loops that generate text."""

from __future__ import annotations

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
        lambda *inputs: generation.cached_step(params, *inputs, jax_way, m),
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
