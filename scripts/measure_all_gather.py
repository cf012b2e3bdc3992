"""Measures `all_gather` against the framework's own all-gather: time, and peak memory.

    python scripts/measure_all_gather.py docs/benchmarks/all_gather.json

It uses Gloo, with processes on loopback. The compared calls take turns, in a new random order in
each round, because a call that leaves the ranks apart makes the next one wait. So other load on the
machine affects all calls alike. The results are the median of all turns, and the fastest tenth,
which other load disturbs least.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = (8, 1024, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
MEMORY_BYTES = 64 << 20
SECONDS = 3.0  # for each size
LEAST, MOST = 15, 2000  # turns


def main() -> None:
    report = {
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "time": spread(2, "time"),
        "jax time": spread(2, "jax time"),
        "memory": [*spread(2, "memory"), *spread(4, "memory")],
    }
    for row in (*report["time"], *report["jax time"]):
        calls = {name: own for name, own in row.items() if isinstance(own, dict)}
        words = [f"{n} {t['median'] * 1e6:.0f} ({t['tenth'] * 1e6:.0f})" for n, t in calls.items()]
        print(f"{row['bytes']:>9} bytes, µs: {', '.join(words)}")
    for row in report["memory"]:
        print({k: round(v / 2**20, 1) if k not in ("ranks",) else v for k, v in row.items()})
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


def spread(ranks: int, what: str) -> list[dict[str, Any]]:
    """Returns the records of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, __file__, "--rank", folder, str(ranks), what]
        processes = [
            subprocess.Popen([*command, str(rank)], env=environment) for rank in range(ranks)
        ]
        try:
            codes = [process.wait(300) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            sys.exit(f"ranks ended with {codes}")
        return json.loads((Path(folder) / "records.json").read_text())


def run_rank(folder: str, ranks: int, what: str, rank: int) -> None:
    (run_jax_rank if what == "jax time" else run_torch_rank)(folder, ranks, what, rank)


def run_jax_rank(folder: str, ranks: int, what: str, rank: int) -> None:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    port = Path(folder) / "port"
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            unfinished = port.with_suffix(".unfinished")
            unfinished.write_text(str(free.getsockname()[1]))
        unfinished.rename(port)
    while not port.exists():
        time.sleep(0.01)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port.read_text()}"
    jax.distributed.initialize(address, ranks, rank, [0], cluster_detection_method="deactivate")

    def agree(count: int) -> int:
        return int(multihost_utils.broadcast_one_to_all(np.int32(count)))

    records = [
        {"bytes": size, "ranks": ranks, **times_of(jax_calls(size, ranks), agree)} for size in SIZES
    ]
    if rank == 0:
        (Path(folder) / "records.json").write_text(json.dumps(records))
    multihost_utils.sync_global_devices("end")


def jax_calls(size: int, ranks: int) -> dict[str, Callable[[], Any]]:
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import bridge.jax as bj

    rows = PartitionSpec("ranks")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",), axis_types=(AxisType.Auto,))
    own = np.zeros(size // 4, np.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, rows), own)

    def call(gather: Callable[[Any], Any]) -> Callable[[], Any]:
        split = jax.jit(jax.shard_map(gather, mesh=mesh, in_specs=rows, out_specs=rows))
        return lambda: split(x).block_until_ready()

    return {
        "jax": call(lambda x: jax.lax.all_gather(x, "ranks", tiled=True)),
        "bridge": call(lambda x: bj.all_gather(x, "ranks", check=False)),
        "bridge checked": call(lambda x: bj.all_gather(x, "ranks", check=True)),
    }


def run_torch_rank(folder: str, ranks: int, what: str, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(Path(folder) / "store"), ranks),
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )

    def agree(count: int) -> int:
        shared = torch.tensor([count])
        dist.broadcast(shared, 0)
        return int(shared)

    if what == "memory":
        records = [memory(ranks)]
    else:
        records = [
            {"bytes": size, "ranks": ranks, **times_of(torch_calls(size, ranks), agree)}
            for size in SIZES
        ]
    if rank == 0:
        (Path(folder) / "records.json").write_text(json.dumps(records))
    dist.barrier()


def bare(x: Any, ranks: int) -> Any:
    """Returns torch's own all-gather, into a new tensor."""
    import torch
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    whole = torch.empty((x.shape[0] * ranks, *x.shape[1:]))
    gather(whole, x)
    return whole


def torch_calls(size: int, ranks: int) -> dict[str, Callable[[], Any]]:
    import torch
    import torch.distributed._functional_collectives as functional

    import bridge.torch as bt

    form: Any = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    group = torch.distributed.group.WORLD
    x = torch.zeros(size // 4)
    tracked = x.clone().requires_grad_()
    return {
        "torch": lambda: bare(x, ranks),
        "torch functional": lambda: form(x, 0, group).wait(),
        "bridge": lambda: bt.all_gather(x, check=False),
        "bridge with gradient": lambda: bt.all_gather(tracked, check=False),
        "bridge checked": lambda: bt.all_gather(x, check=True),
    }


def times_of(
    turns: dict[str, Callable[[], Any]], agree: Callable[[int], int]
) -> dict[str, dict[str, float]]:
    """Returns the seconds of each call; all ranks take as many turns as rank 0 has time for.

    Args:
      agree: returns rank 0's number on every rank.
    """
    for _ in range(2):
        started = time.perf_counter()
        for call in turns.values():
            call()
        each = time.perf_counter() - started
    count = agree(int(min(max(SECONDS / each, LEAST), MOST)))
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns.items())
    same_on_all_ranks = random.Random(0)
    for _ in range(count):
        same_on_all_ranks.shuffle(order)
        for name, call in order:
            started = time.perf_counter()
            result = call()
            seconds[name].append(time.perf_counter() - started)
            del result
    return {
        name: {"median": statistics.median(own), "tenth": statistics.quantiles(own, n=10)[0]}
        for name, own in seconds.items()
    }


def memory(ranks: int) -> dict[str, Any]:
    """Returns the bytes that a call adds to the process at its peak, besides its input."""
    import torch
    import torch.distributed as dist

    import bridge.torch as bt
    from tools.own_process import bytes_at_peak

    x = torch.zeros(MEMORY_BYTES // 4096, 1024)

    def bare_along_1() -> Any:
        return torch.cat(bare(x, ranks).chunk(ranks), 1)

    bt.all_gather(x), bare(x, ranks)
    record: dict[str, Any] = {"bytes": x.nbytes, "ranks": ranks}
    for name, call in (
        ("torch", lambda: bare(x, ranks)),
        ("bridge", lambda: bt.all_gather(x, check=False)),
        ("bridge stacked on dimension 1", lambda: bt.all_gather(x, dim=1, tiled=False)),
        ("torch along dimension 1", bare_along_1),
        ("bridge along dimension 1", lambda: bt.all_gather(x, dim=1, check=False)),
    ):
        time.sleep(0.3)  # transports release memory a little later
        dist.barrier()
        record[name] = bytes_at_peak(call)
    return record


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        _, _, folder, ranks, what, rank = sys.argv
        run_rank(folder, int(ranks), what, int(rank))
        os._exit(0)  # do not wait for the other ranks to leave
    main()
