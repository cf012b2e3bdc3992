#!/usr/bin/env python3
"""Times what a model is made of: products, attention, and training steps of the demo's GPT.

bridge in torch and in JAX runs beside torch's own ops, torch.compile and jax.jit. All runs of a row
take turns in one process, again and again. A figure is the median of another's time divided by
bridge's in the same framework and the same round, with the distance of the quartiles.

    python scripts/compare_models.py --json docs/benchmarks/cpu-models.json
    python scripts/compare_models.py --quick
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The demo and the scripts are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import turns
from scripts.turns import Run, Runs

# The columns that bridge is compared with, and bridge's own column in the same framework.
OTHERS = {"torch": "bridge in torch", "torch.compile": "bridge in torch", "jax": "bridge in jax"}

PRODUCTS = ((1024, 64, 192), (1024, 64, 352), (1024, 176, 64), (512, 512, 512), (8, 1024, 1024))
ATTENTIONS = ((16, 4, 64, 16), (4, 8, 512, 64), (1, 8, 2048, 64))  # batch, heads, positions, d
QUICK_PRODUCTS, QUICK_ATTENTIONS = ((32, 16, 8),), ((1, 2, 16, 4),)
MOST_STEPS = 20_000  # of a training, for its table of learning rates


@dataclass(frozen=True)
class Row:
    """One row: its name, and the runs that take turns."""

    op: str
    shape: str
    make: Callable[[], Runs]


def products(shapes: Any) -> Iterator[Row]:
    """Yields x·weightᵀ with the gradients of both: three products."""
    for m, k, n in shapes:
        yield Row(
            "linear, forward and backward", f"{m} × {k} × {n}", lambda s=(m, k, n): linear(*s)
        )


def linear(m: int, k: int, n: int) -> Runs:
    import jax
    import torch

    import bridge.jax as bj
    import bridge.torch as bt

    given = [torch.randn(shape) for shape in ((m, k), (n, k), (m, n))]

    def own_jax(x: Any, weight: Any) -> Any:
        return jax.numpy.matmul(x, weight.T)

    return of_function(given, bt.linear, torch.nn.functional.linear, bj.linear, own_jax)


def attentions(shapes: Any) -> Iterator[Row]:
    for shape in shapes:
        text = " × ".join(map(str, shape))
        make = functools.partial(attention, *shape)
        yield Row("causal attention, forward and backward", text, make)


def attention(batch: int, heads: int, positions: int, features: int) -> Runs:
    import jax
    import torch

    import bridge.jax as bj
    import bridge.torch as bt

    given = [torch.randn(batch, heads, positions, features) for _ in range(4)]

    def own_torch(*qkv: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)

    def own_jax(*qkv: Any) -> Any:
        moved = (x.swapaxes(1, 2) for x in qkv)
        return jax.nn.dot_product_attention(*moved, is_causal=True).swapaxes(1, 2)

    return of_function(
        given,
        lambda *qkv: bt.attention(*qkv, causal=True),
        own_torch,
        lambda *qkv: bj.attention(*qkv, causal=True),
        own_jax,
    )


def of_function(given: list[Any], in_torch: Any, own_torch: Any, in_jax: Any, own_jax: Any) -> Runs:
    """Returns runs of a function's value and gradients; the last array is the cotangent."""
    import jax
    import torch

    leaves, g = [x.requires_grad_() for x in given[:-1]], given[-1]
    arrays = [jax.numpy.asarray(x.detach().numpy()) for x in given]

    def with_autograd(function: Any) -> Run:
        return lambda: torch.autograd.grad(function(*leaves), leaves, g)

    def jitted(function: Any) -> Run:
        def both(*x: Any) -> Any:
            value, pull = jax.vjp(function, *x[:-1])
            return value, pull(x[-1])  # without the value, XLA would leave its product out

        run = jax.jit(both)
        return lambda: jax.block_until_ready(run(*arrays))

    return {
        "bridge in torch": with_autograd(in_torch),
        "torch": with_autograd(own_torch),
        "torch.compile": with_autograd(torch.compile(own_torch)),
        "bridge in jax": jitted(in_jax),
        "jax": jitted(own_jax),
    }


def steps() -> Row:
    from tools.demo import gpt

    shape = f"{gpt.LAYERS} layers, width {gpt.WIDTH}, {gpt.BATCH} × {gpt.LENGTH} characters"
    return Row("a training step of the demo's GPT", shape, trainings)


def trainings() -> Runs:
    """Returns steps of the same training; torch.compile compiles the loss and its gradient."""
    import torch

    from tools.demo import gpt, jax_gpt, text, torch_gpt

    pieces = text.batches(1, gpt.BATCH, gpt.LENGTH)[0]

    def training(module: Any, with_bridge: bool) -> Run:
        own = module.Training(gpt.initial_weights(), with_bridge, "cpu", MOST_STEPS)
        count = iter(range(MOST_STEPS))
        return lambda: float(own.step(pieces, next(count)))

    def compiled() -> Run:
        own = torch_gpt.Training(gpt.initial_weights(), False, "cpu", MOST_STEPS)
        loss = torch.compile(lambda w, tables, given: gpt.loss(own.ops, w, tables, given, 0))
        given = torch.from_numpy(pieces)

        def step() -> float:
            value = loss(own.weights, own.tables, given)
            own.optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(list(own.weights.values()), gpt.MOST_NORM)
            own.optimizer.step()
            return float(value)

        return step

    return {
        "bridge in torch": training(torch_gpt, True),
        "torch": training(torch_gpt, False),
        "torch.compile": compiled(),
        "bridge in jax": training(jax_gpt, True),
        "jax": training(jax_gpt, False),
    }


def measured(row: Row, rounds: int, least: float) -> dict[str, Any]:
    """Returns the milliseconds of each run, and how many times as fast bridge is."""
    times = turns.in_turn(row.make(), rounds, least)
    found: dict[str, Any] = {"op": row.op, "shape": row.shape}
    found |= {"milliseconds": turns.milliseconds(times), "times": {}, "spread": {}}
    for other, own in OTHERS.items():
        found["times"][other], found["spread"][other] = turns.quotient(times[other], times[own])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small shapes, one round, no training")
    options = parser.parse_args()
    import torch

    from bridge.cli.machine import describe

    torch.set_num_threads(options.threads)
    rows = [
        *products(QUICK_PRODUCTS if options.quick else PRODUCTS),
        *attentions(QUICK_ATTENTIONS if options.quick else ATTENTIONS),
        *([] if options.quick else [steps()]),
    ]
    rounds, least = (1, 0.0) if options.quick else (options.rounds, 0.2)
    found = []
    for row in rows:
        found.append(measured(row, rounds, least))
        print(json.dumps(found[-1]), flush=True)
    if options.json:
        chosen = {"threads": options.threads, "device": "cpu", "rounds": rounds}
        report = {**describe(), "options": chosen, "rows": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
