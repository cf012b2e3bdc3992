"""Runs the encoders and finds what the report says of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F

import bridge.jax
import bridge.torch
from bridge.cli.bench.timing import Contender, interleave
from bridge.demo import jax_encoder, torch_encoder
from bridge.demo.weights import Batch, Weights

Array = np.ndarray
Encoders = dict[tuple[str, str], Any]  # by framework and "bridge" or "own"


def encoders(weights: Weights, device: str) -> Encoders:
    """Returns the four: in torch and in JAX, with bridge's bias-GELU and with their own."""
    made: Encoders = {}
    for ops, with_bridge in (("bridge", True), ("own", False)):
        made["torch", ops] = torch_encoder.Encoder(weights, with_bridge, device)
        made["jax", ops] = jax_encoder.Encoder(weights, with_bridge, device)
    return made


def as_array(embeddings: Any) -> Array:
    if isinstance(embeddings, torch.Tensor):
        return embeddings.numpy(force=True)
    return np.asarray(embeddings)


def distance(embeddings: dict[tuple[str, str], Array], ops: str) -> dict[str, float]:
    """How far torch and JAX are apart: of all components of all embeddings."""
    gap = np.abs(embeddings["torch", ops] - embeddings["jax", ops])
    return {"largest": float(gap.max()), "mean": float(gap.mean())}


def gelu_agreement(encoder: Any, batch: Batch, device: str) -> dict[str, Any]:
    """Gives both frameworks the same GELU inputs, those of every layer, and compares the bits."""
    inputs: list[tuple[Array, Array]] = []
    encoder(batch, inputs)
    elements, differing = 0, {"bridge": 0, "own": 0}
    place = jax.devices(device)[0]
    own = jax.jit(lambda h, bias: jax.nn.gelu(h + bias, approximate=False))
    for h, bias in inputs:
        in_torch = [torch.from_numpy(a).to(device) for a in (h, bias)]
        in_jax = [jax.device_put(a, place) for a in (h, bias)]
        results = {
            "bridge": (
                bridge.torch.bias_gelu(*in_torch, approximate="none"),
                bridge.jax.bias_gelu(*in_jax, approximate="none"),
            ),
            "own": (F.gelu(in_torch[0] + in_torch[1]), own(*in_jax)),
        }
        elements += h.size
        for ops, pair in results.items():
            a, b = (np.ascontiguousarray(as_array(result)).view(np.int32) for result in pair)
            differing[ops] += int(np.count_nonzero(a != b))
    return {"elements": elements, "differing": differing}


def neighbours(embeddings: Array) -> tuple[Array, Array, Array]:
    """Returns all cosines, and each sentence's nearest other sentence with its cosine."""
    cosines = embeddings @ embeddings.T
    others = cosines - 2.0 * np.eye(len(cosines), dtype=cosines.dtype)
    nearest = others.argmax(axis=1)
    return cosines, nearest, others.max(axis=1)


def speed(made: Encoders, batch: Batch, seconds: float) -> dict[str, dict[str, float]]:
    """Sentences per second: torch with and without bridge in turn, then JAX."""
    rates: dict[str, dict[str, float]] = {}
    for framework, wait in (("torch", _wait_torch), ("jax", jax.block_until_ready)):
        contenders = [
            Contender(ops, partial(made[framework, ops], batch), wait) for ops in ("bridge", "own")
        ]
        timings = interleave(contenders, seconds)
        rates[framework] = {ops: len(batch.ids) / timings[ops].median for ops in timings}
    return rates


def _wait_torch(result: Any) -> None:
    if result.is_cuda:
        torch.cuda.synchronize()
