"""The sampler and the trainer of the example compute the same log-probabilities, bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridge.torch import huggingface

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "zero_log_ratio", raising=False)
    import zero_log_ratio  # type: ignore[import-not-found]

    return zero_log_ratio


@pytest.fixture
def replaced() -> Iterator[list[huggingface.Replaced]]:
    done: list[huggingface.Replaced] = []
    yield done
    for each in done:
        each.undo()


def assert_ones(ratios: np.ndarray, batch: int, example: Any) -> None:
    assert ratios.shape == (batch, example.LENGTH - example.PROMPT)
    assert (ratios == 1).all()


@pytest.mark.parametrize("batch", [1, 7])
def test_sampled_in_torch_and_scored_in_jax(example: Any, batch: int) -> None:
    assert_ones(example.ratios(batch, seed=batch), batch, example)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_generate_and_a_training_step_of_a_llama(example: Any, replaced: Any, dtype: Any) -> None:
    pytest.importorskip("transformers")
    model = example.llama().to(dtype)
    replaced.append(huggingface.replace(model, linear=True, attention=True))
    assert not replaced[0].left
    for batch in (1, 7):
        assert_ones(example.llama_ratios(model, batch, seed=batch), batch, example)
    assert all(p.grad is not None for p in model.parameters())
