"""Contrastive training of two towers on several processes, as in CLIP4Clip.

Texts and videos of a pair are trained to be more similar than all other combinations in the batch.
The batch is split over ranks, and each rank needs the features of all: it gathers them, with one of
three gradient rules. The right rule depends on the loss of each rank and on the later reduction of
the parameters' gradients. Each way below gives the same loss and the same gradients as one process
with the whole batch.

    python examples/contrastive.py                  # one process, then two, compared
    python examples/contrastive.py --ranks 4

way       loss on a rank                          grad     parameters' gradients
--------  --------------------------------------  -------  ---------------------
"rows"    of its own rows and columns, against    "sum"    averaged, as DistributedDataParallel
          everybody's features                             and FSDP do
"same"    the whole loss, the same on every rank  "local"  summed (CLIP4Clip under DDP averages
                                                           them: 1/W of it, which Adam forgives)
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WAYS = {"rows": ("sum", "mean"), "same": ("local", "sum")}

BATCH, FRAMES, TEXT_WIDTH, FRAME_WIDTH, WIDTH = 12, 4, 10, 14, 8
SCALE = 20.0  # of the cosines, CLIP's exp(logit_scale)


def weights() -> dict[str, np.ndarray]:
    """Returns the parameters of the towers."""
    rng = np.random.default_rng(1)
    return {
        "text": rng.standard_normal((TEXT_WIDTH, WIDTH)),
        "video": rng.standard_normal((FRAME_WIDTH, WIDTH)),
    }


def batch() -> dict[str, np.ndarray]:
    """Returns texts `[BATCH, TEXT_WIDTH]` and videos `[BATCH, FRAMES, FRAME_WIDTH]`."""
    rng = np.random.default_rng(2)
    return {
        "text": rng.standard_normal((BATCH, TEXT_WIDTH)),
        "video": rng.standard_normal((BATCH, FRAMES, FRAME_WIDTH)),
    }


def part(arrays: dict[str, np.ndarray], rank: int, ranks: int) -> dict[str, np.ndarray]:
    """Returns the rows of one rank."""
    return {name: np.split(array, ranks)[rank] for name, array in arrays.items()}


# ------------------------------------------------------------------------------ PyTorch


def torch_step(way: str, rank: int, ranks: int, folder: Path) -> dict[str, np.ndarray]:
    """Returns the mean loss of all ranks and the gradients of all parameters, on one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import bridge.torch as bt

    rule, reduction = WAYS[way]
    if ranks > 1:
        store = dist.FileStore(str(folder / f"store-{way}"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)

    parameters = {n: nn.Parameter(torch.from_numpy(w)) for n, w in weights().items()}
    mine = {n: torch.from_numpy(a) for n, a in part(batch(), rank, ranks).items()}
    text = nn.functional.normalize(mine["text"] @ parameters["text"], dim=-1)
    video = nn.functional.normalize((mine["video"] @ parameters["video"]).mean(1), dim=-1)

    texts, videos = bt.all_gather(text, grad=rule), bt.all_gather(video, grad=rule)
    if way == "same":
        text, video, first = texts, videos, 0
    else:
        first = rank * len(text)
    partners = first + torch.arange(len(text))
    of_text = nn.functional.cross_entropy(SCALE * text @ videos.T, partners)
    of_video = nn.functional.cross_entropy(SCALE * video @ texts.T, partners)
    loss = (of_text + of_video) / 2
    loss.backward()

    total = bt.all_gather(loss.detach().reshape(1)).mean()  # parts of one size, or equal losses
    gradients = {}
    for name, parameter in parameters.items():
        everyones = bt.all_gather(parameter.grad, tiled=False)
        gradients[name] = everyones.mean(0) if reduction == "mean" else everyones.sum(0)
    if ranks > 1:
        dist.destroy_process_group()
    return {"loss": total.numpy(), **{n: g.numpy() for n, g in gradients.items()}}


# ------------------------------------------------------------------------------ JAX


def jax_step(way: str, rank: int, ranks: int, folder: Path) -> dict[str, np.ndarray]:
    """Does the same in JAX; `folder` has the address of the first rank, at which all ranks meet."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    import bridge.jax as bj

    rule, reduction = WAYS[way]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    if ranks > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = (folder / "address").read_text()
        jax.distributed.initialize(address, ranks, rank, local_device_ids=[0])
    mesh = jax.make_mesh((ranks,), ("ranks",))

    def step(parameters: dict[str, jax.Array], mine: dict[str, jax.Array]) -> Any:
        def loss_of(parameters: dict[str, jax.Array]) -> jax.Array:
            text = mine["text"] @ parameters["text"]
            video = (mine["video"] @ parameters["video"]).mean(1)
            text, video = (h / jnp.linalg.norm(h, axis=-1, keepdims=True) for h in (text, video))
            texts, videos = (bj.all_gather(h, "ranks", grad=rule) for h in (text, video))
            if way == "same":
                text, video, first = texts, videos, 0
            else:
                first = lax.axis_index("ranks") * len(text)
            partners = first + jnp.arange(len(text))
            place = partners[:, None]
            of_text, of_video = (
                -jnp.take_along_axis(jax.nn.log_softmax(SCALE * own @ others.T), place, 1)
                for own, others in ((text, videos), (video, texts))
            )
            return (of_text.mean() + of_video.mean()) / 2

        # Make the parameters vary over ranks: for replicated ones JAX would add the gradients.
        own = jax.tree.map(lambda w: lax.pcast(w, "ranks", to="varying"), parameters)
        loss, gradients = jax.value_and_grad(loss_of)(own)
        reduce = lax.pmean if reduction == "mean" else lax.psum
        return {"loss": lax.pmean(loss, "ranks"), **reduce(gradients, "ranks")}

    split = jax.NamedSharding(mesh, P("ranks"))
    mine = {
        name: jax.make_array_from_callback(a.shape, split, a.__getitem__)
        for name, a in batch().items()
    }
    spread_step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("ranks")), out_specs=P())
    result = jax.jit(spread_step)(weights(), mine)
    return {name: np.asarray(array.addressable_data(0)) for name, array in result.items()}


# ------------------------------------------------------------------------------ processes

STEPS: dict[str, Callable[[str, int, int, Path], dict[str, np.ndarray]]] = {
    "torch": torch_step,
    "jax": jax_step,
}


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def spread(framework: str, way: str, ranks: int, timeout: float = 120.0) -> list[dict[str, Any]]:
    """Returns the results of `ranks` processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "address").write_text(free_address())
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--step", framework, way, str(rank), str(ranks), name]
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{framework}, {way}: ranks ended with exit status {codes}")
        return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks)]


def compare(frameworks: list[str], ranks: int) -> float:
    """Prints the loss of every way and its distance to the first; returns the largest distance."""
    truth: dict[str, Any] | None = None
    farthest = 0.0
    for framework in frameworks:
        for way in WAYS:
            for count in (1, ranks):
                for rank, result in enumerate(spread(framework, way, count)):
                    truth = truth or result
                    apart = max(float(np.abs(result[n] - truth[n]).max()) for n in truth)
                    farthest = max(farthest, apart)
                    print(
                        f"{framework:6} {way:5} rank {rank} of {count}: loss "
                        f"{float(result['loss']):.12f}, loss and gradients within {apart:.1e}"
                    )
    return farthest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="divides 12")
    parser.add_argument("--framework", choices=list(STEPS), action="append")
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        framework, way, rank, ranks, folder = arguments.step
        result = STEPS[framework](way, int(rank), int(ranks), Path(folder))
        np.savez(Path(folder) / f"{rank}.npz", **result)
        return
    if compare(arguments.framework or list(STEPS), arguments.ranks) > 1e-12:
        sys.exit("the ways differ")


if __name__ == "__main__":
    main()
