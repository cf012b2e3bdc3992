"""Runs the encoders and computes the numbers of the report."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F

import bridge.jax
import bridge.torch
from tools.bench.timing import Contender, interleave
from tools.demo import jax_encoder, torch_encoder
from tools.demo.weights import SCALE, Batch, Weights

Array = np.ndarray
Encoders = dict[tuple[str, str], Any]  # by framework and "bridge" or "own"


def encoders(weights: Weights, device: str) -> Encoders:
    """Returns four encoders: in torch and in JAX, with bridge's ops and with their own."""
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
    """Returns the distance between torch and JAX over all components of all embeddings."""
    gap = np.abs(embeddings["torch", ops] - embeddings["jax", ops])
    return {"largest": float(gap.max()), "mean": float(gap.mean())}


def _own_softmax_torch(scores: Any, padding: Any) -> Any:
    return (scores * SCALE).masked_fill(padding, -torch.inf).softmax(-1)


@jax.jit
def _own_softmax_jax(scores: Any, padding: Any) -> Any:
    return jax.nn.softmax(jnp.where(padding, -jnp.inf, scores * SCALE), axis=-1)


# Calls of each op in torch and in JAX, with bridge and with the framework's own op.
CALLS: dict[str, dict[str, tuple[Any, Any]]] = {
    "bias_gelu": {
        "bridge": (
            partial(bridge.torch.bias_gelu, approximate="none"),
            partial(bridge.jax.bias_gelu, approximate="none"),
        ),
        "own": (
            lambda h, bias: F.gelu(h + bias),
            jax.jit(lambda h, bias: jax.nn.gelu(h + bias, approximate=False)),
        ),
    },
    "softmax": {
        "bridge": (
            partial(bridge.torch.scaled_masked_softmax, scale=SCALE),
            partial(bridge.jax.scaled_masked_softmax, scale=SCALE),
        ),
        "own": (_own_softmax_torch, _own_softmax_jax),
    },
    "bias_dropout_add": {
        "bridge": (
            partial(bridge.torch.bias_dropout_add, p=0.1, seed=1),
            partial(bridge.jax.bias_dropout_add, p=0.1, seed=1),
        ),
        "own": (
            lambda h, bias, residual: residual + F.dropout(h + bias, 0.1),
            jax.jit(
                lambda h, bias, residual: (
                    residual
                    + (h + bias) / 0.9 * jax.random.bernoulli(jax.random.key(1), 0.9, h.shape)
                )
            ),
        ),
    },
}


def agreement(encoder: Any, batch: Batch, device: str) -> dict[str, Any]:
    """Gives both frameworks the same inputs of every layer, and compares the bits.

    Dropout is on here: without it, a sum of three is the same in any library.
    """
    inputs: list[tuple[str, tuple[Array, ...]]] = []
    encoder(batch, inputs)
    found: dict[str, Any] = {
        op: {"elements": 0, "differing": dict.fromkeys(calls, 0)} for op, calls in CALLS.items()
    }
    place = jax.devices(device)[0]
    for op, arrays in inputs:
        in_torch = [torch.from_numpy(a).to(device) for a in arrays]
        in_jax = [jax.device_put(a, place) for a in arrays]
        found[op]["elements"] += arrays[0].size
        for ops, (own_torch, own_jax) in CALLS[op].items():
            results = own_torch(*in_torch), own_jax(*in_jax)
            a, b = (np.ascontiguousarray(as_array(result)).view(np.int32) for result in results)
            found[op]["differing"][ops] += int(np.count_nonzero(a != b))
    return found


def neighbours(embeddings: Array) -> tuple[Array, Array, Array]:
    """Returns all cosines, and each sentence's nearest other sentence with its cosine."""
    cosines = embeddings @ embeddings.T
    others = cosines - 2.0 * np.eye(len(cosines), dtype=cosines.dtype)
    nearest = others.argmax(axis=1)
    return cosines, nearest, others.max(axis=1)


def speed(made: Encoders, batch: Batch, seconds: float) -> dict[str, dict[str, float]]:
    """Returns sentences per second: torch with and without bridge in turn, then JAX."""
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
