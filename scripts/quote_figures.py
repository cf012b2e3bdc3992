#!/usr/bin/env python3
"""Writes the figures of the docs from files that commands wrote.

Text between `<!-- figures -->` and `<!-- end of figures -->`, and between other such marks, is
replaced. With --check nothing is written; the exit status is 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# The tools and this folder are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.figures import code, exchanges, models, proofs, speed, vision
from scripts.figures.exchanges import GATHERS
from scripts.figures.records import ROOT

CATALOGUE = [
    f"docs/ops/{page}.md" for page in ("norms", "gates", "rotary", "log_probs", "cross_entropy")
]
SINKS = ("scaled_softmax sink", "scaled_masked_softmax sink")
PAGES: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("docs/speed.md", "figures", speed.figures),
    ("docs/speed.md", "models", models.of_models),
    ("docs/architecture.md", "by hand", code.by_hand),
    ("docs/architecture.md", "code lines", code.code_lines),
    ("docs/numerics.md", "accuracy", proofs.accuracy),
    ("docs/exchange.md", "crossings", speed.crossings),
    ("docs/gpu.md", "gpu records", proofs.gpu_records),
    ("docs/gpu.md", "gpu kernels", proofs.gpu_kernels),
    *((f"docs/ops/{op}.md", "speed", partial(speed.speed, op)) for op in speed.OPS),
    ("docs/declare.md", "speed", speed.of_declarations),
    ("docs/huggingface.md", "speed", speed.of_replacements),
    ("docs/ops/matmul.md", "speed", speed.of_products),
    ("docs/ops/convolution.md", "speed", partial(vision.of_vision, "conv")),
    ("docs/ops/batch_norm.md", "speed", partial(vision.of_vision, "batch_norm")),
    ("docs/ops/pools.md", "speed", partial(vision.of_vision, "max_pool", "avg_pool", "adaptive")),
    ("docs/ops/interpolate.md", "speed", partial(vision.of_vision, "interpolate")),
    *((page, "speed", partial(speed.of_catalogue, page)) for page in CATALOGUE),
    ("docs/ops/cross_entropy.md", "linear speed", speed.of_linear),
    ("docs/ops/softmax.md", "sink speed", partial(speed.of_forms, SINKS)),
    *(
        (f"docs/ops/{op}.md", "machine code", partial(code.machine_code, op))
        for op in code.WITH_KERNELS
    ),
    *(
        ("docs/all_gather.md", f"all_gather {k}", partial(exchanges.all_gather_times, k))
        for k in GATHERS
    ),
    ("docs/all_gather.md", "all_gather memory", exchanges.all_gather_memory),
    ("docs/scaling.md", "scaling machine", exchanges.scaling_machine),
    *(("docs/scaling.md", f"scaling {n}", partial(exchanges.scaling, n)) for n in exchanges.MAKERS),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for name, mark, write in PAGES:
        page = ROOT / name
        begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
        text = page.read_text()
        before, rest = text.split(begin)
        quoted = f"{before}{begin}{write()}\n{end}{rest.split(end)[1]}"
        if quoted == text:
            continue
        stale += 1
        if check:
            print(f"{name} does not quote what docs/benchmarks holds: run scripts/quote_figures.py")
        else:
            page.write_text(quoted)
            print(f"{name} updated")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
