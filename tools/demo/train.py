"""Trains the small GPT four times, in both frameworks with bridge and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tools.demo import gpt, jax_gpt, text, torch_gpt


def train(
    device: str = "cpu",
    steps: int = gpt.STEPS,
    following: Callable[[str, str, int], None] = lambda framework, ops, step: None,
) -> dict[str, Any]:
    """Returns the loss curves and how far the frameworks' are apart.

    All start from the same weights and see the same text; with bridge, the same dropout masks too.
    `following` is told of every step.
    """
    pieces = text.batches(steps, gpt.BATCH, gpt.LENGTH)
    curves: dict[str, dict[str, Any]] = {"bridge": {}, "own": {}}
    seconds: dict[str, dict[str, float]] = {"torch": {}, "jax": {}}
    for ops in curves:
        for framework, module in (("torch", torch_gpt), ("jax", jax_gpt)):
            training = module.Training(gpt.initial_weights(), ops == "bridge", device)
            losses = []
            start = time.perf_counter()
            for step in range(steps):
                losses.append(float(training.step(pieces[step], step)))
                if step == 0:  # tracing and compiling are no part of training
                    start = time.perf_counter()
                following(framework, ops, step)
            seconds[framework][ops] = (time.perf_counter() - start) / max(steps - 1, 1)
            curves[ops][framework] = np.array(losses)
    return {
        "steps": steps,
        "curves": curves,
        "gap": {ops: _gap(pair["torch"], pair["jax"]) for ops, pair in curves.items()},
        "steps_per_second": {
            framework: {ops: 1.0 / each for ops, each in own.items()}
            for framework, own in seconds.items()
        },
    }


def _gap(a: Any, b: Any) -> dict[str, float]:
    """How far two loss curves are apart."""
    gap = np.abs(a - b)
    return {"largest": float(gap.max()), "mean": float(gap.mean())}
