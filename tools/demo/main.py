"""The demo: encode and train in both frameworks, compare, check parity, time, report."""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bridge.cli import machine, options, outputs
from bridge.cli.budget import Budget
from bridge.cli.parity import command as parity
from bridge.cli.parity import summary
from bridge.cli.progress import bar
from bridge.cli.terminal import print_cells, terminal
from tools.bench import command as bench
from tools.bench.cases import FRAMEWORKS
from tools.demo.comparison import (
    EXPLANATION,
    HEADER,
    NEIGHBOURS,
    TRAINING_EXPLANATION,
    VISION_EXPLANATION,
    VISION_HEADER,
    comparison,
    is_equal,
    is_equal_vision,
    neighbour_line,
    neighbours,
    training_comparison,
    vision_comparison,
)
from tools.demo.sentences import SENTENCES, SUBJECT_OF

# The cases of all ops in turn, as many as fit into this time.
SPEED_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, device=None, html="the report")
    parser.set_defaults(html=Path("out/report.html"))
    less = parser.add_mutually_exclusive_group()
    less.add_argument(
        "--sentences-only", action="store_true", help="leave training, parity and bench out"
    )
    less.add_argument("--no-measurements", action="store_true", help="leave parity and bench out")


def run(chosen: argparse.Namespace) -> int:
    outputs.check(chosen)
    console = terminal()
    start = time.perf_counter()
    console.rule("Sentences through all-MiniLM-L6-v2, in PyTorch and in JAX")
    found = encode(chosen.device)
    show(found, console)
    passed = all(op["differing"]["bridge"] == 0 for op in found["agreement"].values())
    passed &= found["distance"]["bridge"]["largest"] == 0
    training = vision = parity_report = bench_report = None
    if not chosen.sentences_only:
        console.rule("A small GPT trained in PyTorch and in JAX")
        training = train(chosen.device)
        show_training(training, console)
        passed &= is_equal(training)
        console.rule("Vision models trained in PyTorch and in JAX")
        vision = train_vision()
        show_vision(vision, console)
        passed &= is_equal_vision(vision)
    if not chosen.sentences_only and not chosen.no_measurements:
        console.rule("Parity")
        parity_report = parity.measure(device=chosen.device, quick=True)
        summary.show(parity_report, console)
        passed &= parity_report["passed"]
        console.rule("Speed")
        with Budget(SPEED_SECONDS) as budget:
            bench_report = bench.measure(device=chosen.device, quick=True, budget=budget)
        bench.show(bench_report, console)
    from tools.demo.report import write

    with outputs.naming("html", chosen.html):
        write(chosen.html, found, training, vision, parity_report, bench_report)
    console.rule()
    seconds = time.perf_counter() - start
    console.print(f"{'All passed' if passed else 'FAILED'} in {seconds:.0f} s.", highlight=False)
    outputs.name(chosen, console)
    return 0 if passed else 1


def encode(device: str = "cpu", seconds: float = 3.0) -> dict[str, Any]:
    """Runs the four encoders and returns their numbers for the report.

    Raises:
      CommandError: if a framework, the weights or the device are missing.
    """
    for framework in FRAMEWORKS:
        machine.require(framework)
    if device == "cuda":
        machine.require_cuda()
    from tools.demo import encode as encoding
    from tools.demo import weights

    with bar() as progress:
        task = progress.add_task("reading weights", total=7)
        batch = weights.tokenize(SENTENCES)
        made = encoding.encoders(weights.load(), device)
        progress.advance(task)
        embeddings = {}
        for (framework, ops), encoder in made.items():
            progress.update(task, description=f"encoding in {_whose(framework, ops)}")
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


def _whose(framework: str, ops: str) -> str:
    return f"{FRAMEWORKS[framework]}, {'bridge' if ops == 'bridge' else 'its own ops'}"


def train(device: str = "cpu") -> dict[str, Any]:
    """Trains the small GPT in both frameworks, with bridge and without."""
    from tools.demo import gpt
    from tools.demo import train as training

    with bar() as progress:
        task = progress.add_task("training", total=4 * gpt.STEPS)

        def following(framework: str, ops: str, step: int) -> None:
            progress.update(task, description=f"training in {_whose(framework, ops)}", advance=1)

        return training.train(device, following=following)


def train_vision() -> dict[str, Any]:
    """Trains the four vision models in both frameworks, on the CPU."""
    from tools.demo.vision import training

    with bar() as progress:
        task = progress.add_task("training", total=2 * training.STEPS * len(training.MODELS))

        def following(name: str, framework: str, step: int) -> None:
            what = f"training {name} in {FRAMEWORKS[framework]}"
            progress.update(task, description=what, advance=1)

        return {name: training.train(name, following=following) for name in training.MODELS}


def show_vision(vision: dict[str, Any], console: Console) -> None:
    title = "Vision models: torch against JAX"
    print_cells(console, title, VISION_HEADER, vision_comparison(vision))
    console.print(f"[dim]{VISION_EXPLANATION}[/]", highlight=False)


def show_training(training: dict[str, Any], console: Console) -> None:
    title = f"{training['steps']} steps: torch against JAX"
    print_cells(console, title, HEADER, training_comparison(training))
    console.print(f"[dim]{TRAINING_EXPLANATION}[/]", highlight=False)


def show(found: dict[str, Any], console: Console) -> None:
    """Prints the comparison and the nearest neighbours."""
    title = f"{found['sentences']} sentences, {found['tokens']} tokens: torch against JAX"
    print_cells(console, title, HEADER, comparison(found))
    console.print(f"[dim]{EXPLANATION}[/]", highlight=False)
    width = max(24, (console.width - 14) // 2)
    rows = [
        [*(textwrap.shorten(words, width, placeholder=" …") for words in pair), cosine]
        for *pair, cosine in neighbours(found)
    ]
    title = "Each sentence's nearest neighbour"
    print_cells(console, title, NEIGHBOURS, rows, left=(0, 1), wrap=())
    console.print(neighbour_line(found))
