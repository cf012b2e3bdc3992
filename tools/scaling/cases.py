"""The work of one process of a measurement, which runs with the others of its set over Gloo."""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import bridge.torch as bt
from tools.own_process import bytes_sent

Exchange = Callable[[], Any]


def run(task: dict[str, Any]) -> None:
    """Joins, runs every case; rank 0 writes a line of JSON for each step and each row to stdout."""
    rank, size = task["rank"], task["processes"]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(task["store"], size),
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=task["timeout"]),
    )
    cases = [(case, _call(case, size)) for case in task["cases"]]
    repeats = [_agreed_repeats(call, task["seconds"] / task["rounds"]) for _, call in cases]
    samples: list[list[float]] = [[] for _ in cases]
    # The cases take turns in each round, so that a change of the machine's load affects all alike.
    for _ in range(task["rounds"]):
        for i, (_, call) in enumerate(cases):
            samples[i].append(_sample(call, repeats[i]))
            if rank == 0:
                print(json.dumps({"step": True}), flush=True)
    # An exchange ends when its last rank is done.
    slowest = torch.tensor(samples, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    sent = [_bytes_of(call) for _, call in cases]
    if rank == 0:
        for i, (case, _) in enumerate(cases):
            low, median, high = statistics.quantiles(slowest[i].tolist(), n=4)
            timing = {"median": median, "low": low, "high": high, "rounds": task["rounds"]}
            row = {**case, "processes": size, **timing, "calls": repeats[i], "sent_bytes": sent[i]}
            print(json.dumps({"row": row}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _call(case: dict[str, Any], size: int) -> Exchange:
    """Runs a case once, into existing memory."""
    return {"transport": _transport, "rule": _rule}[case["part"]](case, size)


def _transport(case: dict[str, Any], size: int) -> Exchange:
    """Returns the framework's own collective, on float32."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    part, whole = torch.zeros(case["bytes"] // 4), torch.zeros(size * case["bytes"] // 4)
    if case["collective"] == "all-gather":
        return lambda: gather(whole, part)
    return lambda: scatter(part, whole)


def _rule(case: dict[str, Any], size: int) -> Exchange:
    """Returns a pass of bridge.torch.all_gather under a gradient rule."""
    x = torch.ones(case["rows"], case["bytes"] // 4 // case["rows"], requires_grad=True)
    rule = case["grad"]
    if case["pass"] == "forward":
        return lambda: bt.all_gather(x, grad=rule, check=False)
    y = bt.all_gather(x, grad=rule, check=False)
    g = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, x, g, retain_graph=True)


def _agreed_repeats(call: Exchange, seconds: float) -> int:
    """Warms up, and returns the number of calls that take about `seconds`, equal on all ranks."""
    call()
    once = torch.tensor([min(_sample(call, 1) for _ in range(2))], dtype=torch.float64)
    dist.all_reduce(once, dist.ReduceOp.MAX)
    return max(1, min(2000, int(seconds / once.item())))


def _sample(call: Exchange, repeats: int) -> float:
    """Returns seconds per call, the mean of several."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _bytes_of(call: Exchange) -> int | None:
    """Returns the bytes that this rank sends in a call by the kernel's count; None if unknown."""
    if sys.platform != "linux":
        return None
    dist.barrier()
    before = bytes_sent()
    call()
    return bytes_sent() - before
