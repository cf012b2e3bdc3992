"""The main job: encode sentences in both frameworks, compare, check parity, time, report."""

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
from bridge.cli import machine
from bridge.cli.bench import command as bench
from bridge.cli.main import CommandError
from bridge.cli.parity import command as parity
from bridge.cli.parity import summary
from bridge.cli.progress import bar, terminal
from bridge.demo.sentences import SENTENCES, SUBJECT_OF

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--html", type=Path, default=Path("out/report.html"), metavar="FILE", help="the report"
    )
    parser.add_argument(
        "--sentences-only", action="store_true", help="leave parity and bench of the op out"
    )


def run(options: argparse.Namespace) -> int:
    console = terminal()
    start = time.perf_counter()
    console.rule("Sentences through all-MiniLM-L6-v2, in PyTorch and in JAX")
    found = encode(options.device)
    show(found, console)
    passed = found["gelu"]["differing"]["bridge"] == 0
    parity_report = bench_report = None
    if not options.sentences_only:
        console.rule("Parity")
        parity_report = parity.measure(device=options.device, quick=True)
        summary.show(parity_report, console, summary.BY_DTYPE)
        passed &= parity_report["passed"]
        console.rule("Speed of bias-GELU")
        bench_report = bench.measure(device=options.device, quick=True)
        bench.show(bench_report, console)
    from bridge.demo.report import write

    write(options.html, found, parity_report, bench_report)
    console.rule()
    seconds = time.perf_counter() - start
    console.print(f"{'All passed' if passed else 'FAILED'} in {seconds:.0f} s.", highlight=False)
    console.print(f"Report: {options.html.resolve()}", highlight=False, soft_wrap=True)
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
    from bridge.demo import encode as encoding
    from bridge.demo import weights

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
        progress.update(task, description="comparing GELU bits")
        gelu = encoding.gelu_agreement(made["torch", "own"], batch, device)
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
        "gelu": gelu,
        "cosines": cosines,
        "nearest": nearest,
        "cosine": cosine,
        "same_neighbours": int((nearest == in_torch).sum()),
        "same_subject": sum(SUBJECT_OF[i] == SUBJECT_OF[j] for i, j in enumerate(nearest)),
        "rates": rates,
    }


def comparison(found: dict[str, Any]) -> list[list[str]]:
    """Rows of a table: how far the frameworks are apart and how fast, with bridge and without."""
    gelu, rates = found["gelu"], found["rates"]

    def both(value: Any) -> list[str]:
        return [value("bridge"), value("own")]

    def bits(ops: str) -> str:
        count = gelu["differing"][ops]
        return f"{count:,} ({count / gelu['elements']:.1%})" if count else "0"

    return [
        [
            f"GELU outputs that differ, of {gelu['elements']:,} from the same inputs",
            *both(bits),
        ],
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


EXPLANATION = (
    "The two encoders differ in their matrix products and softmax, which each framework still does "
    "itself; their bias-GELUs, through bridge, give the same bits for the same inputs."
)


def show(found: dict[str, Any], console: Console) -> None:
    """Prints the comparison and the nearest neighbours."""
    table = Table(
        title=f"{found['sentences']} sentences, {found['tokens']} tokens: torch against JAX",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("with bridge", justify="right", no_wrap=True)
    table.add_column("with their own ops", justify="right", no_wrap=True)
    for row in comparison(found):
        table.add_row(*row)
    console.print(table)
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
    console.print(table)
    console.print(neighbour_line(found))


def neighbour_line(found: dict[str, Any]) -> str:
    count = found["sentences"]
    return (
        f"torch and JAX agree on {found['same_neighbours']} of {count} neighbours; "
        f"{found['same_subject']} of {count} are on the same subject."
    )
