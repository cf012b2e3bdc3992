"""Trains the small GPT four times, in both frameworks with bridge and without."""

from __future__ import annotations

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
    trained: dict[str, Any] = {}
    seconds: dict[str, dict[str, float]] = {"torch": {}, "jax": {}}
    for ops in curves:
        for framework, module in (("torch", torch_gpt), ("jax", jax_gpt)):
            training = module.Training(gpt.initial_weights(), ops == "bridge", device)
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
            if (framework, ops) == ("torch", "bridge"):
                trained = {name: as_array(value) for name, value in training.weights.items()}
    return {
        "steps": steps,
        "agreement": agreement(trained, pieces[-1], device),
        "curves": curves,
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


def _cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@torch.enable_grad()  # type: ignore[untyped-decorator]
def _torch_products(*factors: torch.Tensor) -> torch.Tensor:
    """Returns x·y and its gradients with respect to x and y, flattened and joined."""
    x, y = (factor.detach().requires_grad_() for factor in factors)
    product = x @ y
    g = torch.from_numpy(_cotangent(tuple(product.shape))).to(x.device)
    found = (product.detach(), *torch.autograd.grad(product, (x, y), g))
    return torch.cat([each.flatten() for each in found])


def _jax_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the same in JAX."""
    product, pull = jax.vjp(jax.numpy.matmul, x, y)
    found = (product, *pull(jax.device_put(_cotangent(product.shape), x.device)))
    return jax.numpy.concatenate([each.ravel() for each in found])


def agreement(weights: gpt.Weights, pieces: np.ndarray, device: str = "cpu") -> dict[str, Any]:
    """Gives both frameworks each op's inputs of one forward pass, and compares the bits.

    Matrix products, which are always the frameworks' own, are compared too, with their gradients
    with respect to both factors.
    """
    calls: list[tuple[str, tuple[Any, ...]]] = []
    w, tables = (
        jax.tree.map(lambda array: torch.tensor(array, device=device), given)
        for given in (weights, gpt.angles())
    )
    with torch.no_grad():
        product = _recorded(torch.matmul, "product", calls)
        given = torch.from_numpy(pieces).to(device)
        gpt.loss(_Recorded(torch_gpt.BRIDGE, calls), w, tables, given, 0, product)
    found: dict[str, Any] = {
        op: {"elements": 0, "differing": {"bridge": 0, "own": 0}} for op in (*gpt.OPS, "product")
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
                a = as_array(getattr(in_torch, op, _torch_products)(*arguments))
            b = as_array(getattr(other, op, _jax_products)(*in_jax))
            differing = np.ascontiguousarray(a).view(np.int32) != np.ascontiguousarray(b).view(
                np.int32
            )
            found[op]["differing"][ops] += int(np.count_nonzero(differing))
        found[op]["elements"] += a.size
    return found
