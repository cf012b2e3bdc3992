"""The worked example: every way and number of processes has the loss and gradients of one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = _ROOT / "examples" / "contrastive.py"


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("contrastive", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _truth(example: Any) -> dict[str, np.ndarray]:
    """Returns loss and gradients of the whole batch from formulas, without any autograd."""
    weights, batch = example.weights(), example.batch()
    inputs = {"text": batch["text"], "video": batch["video"].mean(1)}
    raw = {name: inputs[name] @ weights[name] for name in weights}
    norms = {name: np.linalg.norm(h, axis=1, keepdims=True) for name, h in raw.items()}
    unit = {name: raw[name] / norms[name] for name in raw}
    logits = example.SCALE * unit["text"] @ unit["video"].T
    count = len(logits)

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    by_text, by_video = softmax(logits), softmax(logits.T)
    loss = -(np.log(np.diag(by_text)) + np.log(np.diag(by_video))).mean() / 2
    d_logits = (by_text - np.eye(count) + (by_video - np.eye(count)).T) / (2 * count)
    d_unit = {
        "text": example.SCALE * d_logits @ unit["video"],
        "video": example.SCALE * d_logits.T @ unit["text"],
    }
    result = {"loss": np.asarray(loss)}
    for name, u in unit.items():
        d_raw = (d_unit[name] - u * (u * d_unit[name]).sum(1, keepdims=True)) / norms[name]
        result[name] = inputs[name].T @ d_raw
    return result


@pytest.mark.long
@pytest.mark.parametrize("way", ["rows", "same"])
def test_loss_and_gradients(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    example = _example()
    truth = _truth(example)
    for framework in example.STEPS:
        for result in example.spread(framework, way, 2):
            for name, expected in truth.items():
                np.testing.assert_allclose(result[name], expected, rtol=0, atol=1e-13)


@pytest.mark.long
def test_the_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    found = subprocess.run(
        [sys.executable, _EXAMPLE, "--framework", "torch", "--ranks", "3"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("loss and gradients within") == 8
