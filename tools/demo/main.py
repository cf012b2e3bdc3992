"""The main job: encode and train in both frameworks, compare, check parity, time, report."""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import bridge
from bridge.cli import machine, outputs
from bridge.cli.errors import CommandError
from bridge.cli.parity import command as parity
from bridge.cli.parity import summary
from bridge.cli.progress import bar
from bridge.cli.terminal import print_table, terminal
from tools.bench import command as bench
from tools.demo.sentences import SENTENCES, SUBJECT_OF

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--html", type=Path, default=Path("out/report.html"), metavar="FILE", help="the report"
    )
    less = parser.add_mutually_exclusive_group()
    less.add_argument(
        "--sentences-only", action="store_true", help="leave training, parity and bench out"
    )
    less.add_argument("--no-measurements", action="store_true", help="leave parity and bench out")


def run(options: argparse.Namespace) -> int:
    outputs.check(options)
    console = terminal()
    start = time.perf_counter()
    console.rule("Sentences through all-MiniLM-L6-v2, in PyTorch and in JAX")
    found = encode(options.device)
    show(found, console)
    passed = all(op["differing"]["bridge"] == 0 for op in found["agreement"].values())
    training = parity_report = bench_report = None
    if not options.sentences_only:
        console.rule("A small GPT trained in PyTorch and in JAX")
        training = train(options.device)
        show_training(training, console)
    if not options.sentences_only and not options.no_measurements:
        console.rule("Parity")
        parity_report = parity.measure(device=options.device, quick=True)
        summary.show(parity_report, console, summary.BY_DTYPE)
        passed &= parity_report["passed"]
        console.rule("Speed")
        bench_report = bench.measure(device=options.device, quick=True)
        bench.show(bench_report, console)
    from tools.demo.report import write

    with outputs.naming("html", options.html):
        write(options.html, found, training, parity_report, bench_report)
    console.rule()
    seconds = time.perf_counter() - start
    console.print(f"{'All passed' if passed else 'FAILED'} in {seconds:.0f} s.", highlight=False)
    outputs.name(options, console)
    return 0 if passed else 1


def encode(device: str = "cpu", seconds: float = 3.0) -> dict[str, Any]:
    """Runs the four encoders and returns what the report tells of them.

    Raises:
      CommandError: if a framework, the weights or the device are missing.
    """
    for framework in FRAMEWORKS:
        machine.require(framework)
    if device == "cuda" and not bridge.has_cuda():
        raise CommandError("--device cuda: " + bridge.build_info().get("cuda_unavailable", ""))
    from tools.demo import encode as encoding
    from tools.demo import weights

    with bar() as progress:
        task = progress.add_task("reading weights", total=7)
        batch = weights.tokenize(SENTENCES)
        made = encoding.encoders(weights.load(), device)
        progress.advance(task)
        embeddings = {}
        for (framework, ops), encoder in made.items():
            what = "bridge" if ops == "bridge" else "its own ops"
            progress.update(task, description=f"encoding in {FRAMEWORKS[framework]}, {what}")
            embeddings[framework, ops] = encoding.as_array(encoder(batch))
            progress.advance(task)
        progress.update(task, description="comparing bits op by op")
        agreement = encoding.agreement(made["torch", "own"], batch, device)
        progress.advance(task)
        progress.update(task, description="timing the encoders")
        rates = encoding.speed(made, batch, seconds)
        progress.advance(task)
    cosines, nearest, cosine = encoding.neighbours(embeddings["jax", "bridge"])
    in_torch = encoding.neighbours(embeddings["torch", "bridge"])[1]
    return {
        "sentences": len(batch.ids),
        "tokens": int(batch.mask.sum()),
        "longest": int(batch.ids.shape[1]),
        "distance": {ops: encoding.distance(embeddings, ops) for ops in ("bridge", "own")},
        "agreement": agreement,
        "cosines": cosines,
        "nearest": nearest,
        "cosine": cosine,
        "same_neighbours": int((nearest == in_torch).sum()),
        "same_subject": sum(SUBJECT_OF[i] == SUBJECT_OF[j] for i, j in enumerate(nearest)),
        "rates": rates,
    }


def comparison(found: dict[str, Any]) -> list[list[str]]:
    """Rows of a table: how far the frameworks are apart and how fast, with bridge and without."""
    rates = found["rates"]

    def both(value: Any) -> list[str]:
        return [value("bridge"), value("own")]

    def differing(op: str) -> list[str]:
        of = found["agreement"][op]
        return both(lambda ops: _share(of["differing"][ops], of["elements"]))

    return [
        *(
            [
                f"{name} outputs that differ, of {found['agreement'][op]['elements']:,}",
                *differing(op),
            ]
            for op, name in OPS.items()
        ),
        [
            "embeddings, largest difference",
            *both(lambda ops: f"{found['distance'][ops]['largest']:.2e}"),
        ],
        [
            "embeddings, mean difference",
            *both(lambda ops: f"{found['distance'][ops]['mean']:.2e}"),
        ],
        *(
            [f"{name}, sentences per second", *both(lambda ops, f=f: f"{rates[f][ops]:.0f}")]
            for f, name in FRAMEWORKS.items()
        ),
    ]


OPS = {
    "bias_gelu": "bias-GELU",
    "softmax": "masked softmax",
    "bias_dropout_add": "bias-dropout-add",
}


def _share(count: int, elements: int) -> str:
    return f"{count:,} ({count / elements:.1%})" if count else "0"


EXPLANATION = (
    "Outputs are compared on the same inputs, those of every layer; dropout, off in the encoders, "
    "is on there. The encoders' embeddings differ by their matrix products and layer norms, which "
    "each framework still does itself."
)


def train(device: str = "cpu") -> dict[str, Any]:
    """Trains the small GPT in both frameworks, with bridge and without."""
    from tools.demo import gpt
    from tools.demo import train as training

    with bar() as progress:
        task = progress.add_task("training", total=4 * gpt.STEPS)

        def following(framework: str, ops: str, step: int) -> None:
            what = "bridge" if ops == "bridge" else "its own ops"
            progress.update(
                task, description=f"training in {FRAMEWORKS[framework]}, {what}", advance=1
            )

        return training.train(device, following=following)


def training_comparison(training: dict[str, Any]) -> list[list[str]]:
    """Rows of a table: the loss curves with bridge and without."""
    curves, gap = training["curves"], training["gap"]
    rows = [
        [
            f"{name}, loss of the last 20 steps",
            *(f"{curves[ops][framework][-20:].mean():.4f}" for ops in ("bridge", "own")),
        ]
        for framework, name in FRAMEWORKS.items()
    ]
    rows += [
        [f"{what} difference of the curves", *(f"{gap[ops][key]:.1e}" for ops in ("bridge", "own"))]
        for what, key in (("largest", "largest"), ("mean", "mean"))
    ]
    rates = training["steps_per_second"]
    rows += [
        [f"{name}, steps per second", *(f"{rates[f][ops]:.0f}" for ops in ("bridge", "own"))]
        for f, name in FRAMEWORKS.items()
    ]
    return rows


TRAINING_EXPLANATION = (
    "Same first weights, same text, same optimizer. With bridge the dropout masks are the same as "
    "well, and what is left is the rounding of matrix products; without, each framework draws "
    "masks of its own and the curves part."
)


def show_training(training: dict[str, Any], console: Console) -> None:
    _show_comparison(
        f"{training['steps']} steps: torch against JAX", training_comparison(training), console
    )
    console.print(f"[dim]{TRAINING_EXPLANATION}[/]", highlight=False)


def _show_comparison(title: str, rows: list[list[str]], console: Console) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("with bridge", justify="right", no_wrap=True)
    table.add_column("with their own ops", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print_table(console, table)


def show(found: dict[str, Any], console: Console) -> None:
    """Prints the comparison and the nearest neighbours."""
    _show_comparison(
        f"{found['sentences']} sentences, {found['tokens']} tokens: torch against JAX",
        comparison(found),
        console,
    )
    console.print(f"[dim]{EXPLANATION}[/]", highlight=False)
    table = Table(
        title="Each sentence's nearest neighbour",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("sentence", no_wrap=True)
    table.add_column("nearest", no_wrap=True)
    table.add_column("cosine", justify="right", no_wrap=True)
    width = max(24, (console.width - 14) // 2)
    for i, j in enumerate(found["nearest"]):
        pair = (textwrap.shorten(SENTENCES[k], width, placeholder=" …") for k in (i, j))
        table.add_row(*pair, f"{found['cosine'][i]:.3f}")
    print_table(console, table)
    console.print(neighbour_line(found))


def neighbour_line(found: dict[str, Any]) -> str:
    count = found["sentences"]
    return (
        f"torch and JAX agree on {found['same_neighbours']} of {count} neighbours; "
        f"{found['same_subject']} of {count} are on the same subject."
    )
