"""Trains the small GPT four times, in both frameworks with bridge and without."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import bridge
from tools.demo import gpt, jax_gpt, text, torch_gpt
from tools.demo.encode import as_array

COMPILE_SECONDS = 120


def train(
    device: str = "cpu",
    steps: int = gpt.STEPS,
    following: Callable[[str, str, int], None] = lambda framework, ops, step: None,
) -> dict[str, Any]:
    """Returns the loss curves, and the distances between the frameworks' curves.

    All trainings start from the same weights and use the same text; with bridge, also the same
    dropout masks. `following` is called for every step.
    """
    pieces = text.batches(steps, gpt.BATCH, gpt.LENGTH)
    curves: dict[str, dict[str, Any]] = {"bridge": {}, "own": {}}
    ended: dict[str, dict[str, Any]] = {"bridge": {}, "own": {}}
    seconds: dict[str, dict[str, float]] = {"torch": {}, "jax": {}}
    for ops in curves:
        for framework, module in (("torch", torch_gpt), ("jax", jax_gpt)):
            training = module.Training(gpt.initial_weights(), ops == "bridge", device, steps)
            losses = []
            start = time.perf_counter()
            for step in range(steps):
                losses.append(float(training.step(pieces[step], step)))
                if step == 0:  # exclude tracing and compiling from the training time
                    bridge.wait(COMPILE_SECONDS)
                    start = time.perf_counter()
                following(framework, ops, step)
            seconds[framework][ops] = (time.perf_counter() - start) / max(steps - 1, 1)
            curves[ops][framework] = np.array(losses)
            ended[ops][framework] = {
                "weights": {name: as_array(w) for name, w in training.weights.items()},
                "state": {name: as_array(x) for name, x in training.state().items()},
            }
    return {
        "steps": steps,
        "agreement": agreement(ended["bridge"]["torch"]["weights"], pieces[-1], device),
        "ended": {ops: _ends(pair["torch"], pair["jax"]) for ops, pair in ended.items()},
        "curves": curves,
        "equal_losses": {
            ops: int(np.count_nonzero(pair["torch"] == pair["jax"])) for ops, pair in curves.items()
        },
        "gap": {ops: _gap(pair["torch"], pair["jax"]) for ops, pair in curves.items()},
        "steps_per_second": {
            framework: {ops: 1.0 / each for ops, each in own.items()}
            for framework, own in seconds.items()
        },
    }


def _gap(a: Any, b: Any) -> dict[str, float]:
    """Returns the distance between two loss curves."""
    gap = np.abs(a - b)
    return {"largest": float(gap.max()), "mean": float(gap.mean())}


def _ends(a: Any, b: Any) -> dict[str, Any]:
    """Compares the ends of two trainings: weights, and the state of the optimizer."""
    found: dict[str, Any] = {"hash": {"torch": _hash(a["weights"]), "jax": _hash(b["weights"])}}
    for kind in ("weights", "state"):
        found[kind] = {
            "elements": sum(x.size for x in a[kind].values()),
            "differing": sum(_differing(x, b[kind][name]) for name, x in a[kind].items()),
        }
    return found


def _differing(a: Any, b: Any) -> int:
    words = [np.ascontiguousarray(x).view(np.int32) for x in (a, b)]
    return int(np.count_nonzero(words[0] != words[1]))


def _hash(weights: Any) -> str:
    """Returns the first 16 digits of the SHA-256 of all weights, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(np.ascontiguousarray(weights[name]).tobytes())
    return found.hexdigest()[:16]


class _Recorded:
    """Ops that record their arguments."""

    def __init__(self, ops: Any, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        for name in gpt.OPS:
            setattr(self, name, _recorded(getattr(ops, name), name, calls))


def _recorded(function: Any, name: str, calls: list[tuple[str, tuple[Any, ...]]]) -> Any:
    def run(*arguments: Any) -> Any:
        calls.append((name, arguments))
        return function(*arguments)

    return run


def agreement(weights: gpt.Weights, pieces: np.ndarray, device: str = "cpu") -> dict[str, Any]:
    """Gives both frameworks each op's inputs of one forward pass, and compares the bits."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    w, tables = (
        jax.tree.map(lambda array: torch.tensor(array, device=device), given)
        for given in (weights, gpt.angles())
    )
    with torch.no_grad():
        given = torch.from_numpy(pieces).to(device)
        gpt.loss(_Recorded(torch_gpt.BRIDGE, calls), w, tables, given, 0)
    found: dict[str, Any] = {
        op: {"elements": 0, "differing": {"bridge": 0, "own": 0}} for op in gpt.OPS
    }
    place = jax.devices(device)[0]
    for op, arguments in calls:
        in_jax = [
            jax.device_put(as_array(a), place) if isinstance(a, torch.Tensor) else a
            for a in arguments
        ]
        for ops, in_torch, other in (
            ("bridge", torch_gpt.BRIDGE, jax_gpt.BRIDGE),
            ("own", torch_gpt.OWN, jax_gpt.OWN),
        ):
            with torch.no_grad():
                a = as_array(getattr(in_torch, op)(*arguments))
            b = as_array(getattr(other, op)(*in_jax))
            found[op]["differing"][ops] += _differing(a, b)
        found[op]["elements"] += a.size
    return found
