"""bias_dropout_add: its cases and peers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

from bridge.cli.fusion_entries import dropout_entry
from tools.bench.cases import Case
from tools.bench.catalogue import OfEntries

SMALL, MIDDLE, LARGE = (64, 1024), (1024, 4096), (4096, 4096)
P = 0.1


class BiasDropoutAdd(OfEntries):
    """In torch, masks come from the default generator, in bridge too: no seed is given."""

    name = "bias_dropout_add"
    entries: ClassVar = {f"p={P:g}": dropout_entry(P, offset=False)}

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        shapes, dtypes = [SMALL, MIDDLE, LARGE], ["float32", "bfloat16"]
        if quick:
            shapes, dtypes = [MIDDLE], dtypes[:1]
        for shape, dtype, what in itertools.product(
            shapes, dtypes, ("forward", "forward+backward")
        ):
            if what == "forward" and (quick or shape == MIDDLE):
                continue
            peak = (shape, what) == (MIDDLE, "forward+backward")
            compiled = what == "forward+backward"
            yield Case(
                self.name, framework, what, dtype, f"p={P:g}", shape, compiled=compiled, peak=peak
            )
        what = {"torch": "forward", "jax": "outside jit"}[framework]
        yield from self.extremes(framework, quick, f"p={P:g}", [what])
