"""Sequence-parallel transformer layers: what all-gather and reduce-scatter cost in each.

V. Korthikanti et al., "Reducing activation recomputation in large transformer models",
2022: around each of the two blocks of a layer (attention, MLP) the sequence is gathered
before and reduce-scattered after; backward in the reverse order; and each block's input, of which
only the part is kept, is gathered once more for the gradient of the weights. A layer has 6
all-gathers and 4 reduce-scatters of arrays that are `tokens·batch·width` large as a whole.

Arithmetic of a layer: D. Narayanan et al., "Efficient large-scale language model training on GPU
clusters", 2021, without recomputation: 72·batch·tokens·width²·(1 + tokens/(6·width)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.scaling.algorithms import ALGORITHMS, fastest
from tools.scaling.links import H100, Device, Link

ALL_GATHERS, REDUCE_SCATTERS = 6, 4  # of a layer, forward and backward


@dataclass(frozen=True)
class Layers:
    """A model and a sequence, split over n ranks along the tokens.

    Attributes:
      tokens: of the whole sequence.
      width: of the residual stream.
      layers: how many.
      batch: sequences.
      itemsize: bytes of an activation.
    """

    tokens: int = 131_072
    width: int = 8192
    layers: int = 80
    batch: int = 1
    itemsize: int = 2

    @property
    def whole(self) -> int:
        """Bytes of a gathered activation: each rank holds one for as long as a block runs."""
        return self.tokens * self.batch * self.width * self.itemsize

    def communication(self, ranks: int, link: Link, algorithm: str | None = None) -> float:
        """Seconds of a layer, forward and backward; None takes the fastest algorithm."""
        part = self.whole / ranks
        if algorithm is None:
            _, once = fastest(ranks, part, link)
        else:
            once = ALGORITHMS[algorithm](ranks, part, link)
        return (ALL_GATHERS + REDUCE_SCATTERS) * once

    def arithmetic(self, ranks: int, device: Device = H100) -> float:
        """Seconds of a layer on a rank, at the device's peak."""
        flops = 72 * self.batch * self.tokens * self.width**2
        return flops * (1 + self.tokens / (6 * self.width)) / ranks / device.flops

    def kept(self, ranks: int, split: bool = True) -> float:
        """Bytes of a layer's activations that a rank keeps for the backward pass.

        Without attention scores, which a fused attention does not keep. `split`: with sequence
        parallelism, 34·tokens·batch·width ÷ n; without it (tensor parallelism alone)
        (10 + 24 ÷ n)·tokens·batch·width, for 2-byte activations.
        """
        elements = self.tokens * self.batch * self.width
        scale = self.itemsize / 2
        return scale * elements * (34 / ranks if split else 10 + 24 / ranks)

    def row(self, ranks: int, link: Link, device: Device = H100) -> dict[str, Any]:
        """The row of the tables for one number of ranks."""
        algorithm, _ = fastest(ranks, self.whole / ranks, link)
        communication, arithmetic = self.communication(ranks, link), self.arithmetic(ranks, device)
        kept = self.layers * self.kept(ranks)
        return {
            "ranks": ranks,
            "network": link.name,
            "algorithm": algorithm,
            "tokens_per_rank": self.tokens / ranks,
            "seconds": {"communication": communication, "arithmetic": arithmetic},
            "memory_bytes": {
                "part": self.whole / ranks,
                "gathered": self.whole,
                "kept": kept,
                "kept_unsplit": self.layers * self.kept(ranks, split=False),
            },
            "fits": kept + 2 * self.whole <= device.memory,
        }

    def break_even(self, link: Link, counts: tuple[int, ...]) -> int | None:
        """The fewest ranks, of `counts`, whose exchanges take longer than their arithmetic."""
        slower = (n for n in counts if self.communication(n, link) > self.arithmetic(n))
        return next(slower, None)


def copies(layers: Layers, ranks: int, device: Device = H100) -> list[dict[str, Any]]:
    """The cost of each form of the gathered activation beyond the exchange.

    The result's memory has the gathered dimension outermost. A product that wants
    `[tokens, batch, width]` reads tiled dim=0 and stacked dim=0 (`flatten(0, 1)` is a view) as they
    lie. Of `[batch, tokens, width]`, gathered along dim=1, rows of a batch entry lie apart: with
    more than one entry, the part is packed first and the result is copied if it must be contiguous.
    With one entry all forms are free.
    """
    rows = []
    for form, packed, copied in (
        ("[tokens, batch, width], tiled, dim=0", 0.0, 0.0),
        ("[tokens, batch, width], stacked, dim=0, then flatten(0, 1)", 0.0, 0.0),
        ("[batch, tokens, width], stacked, dim=0", 0.0, 0.0),
        ("[batch, tokens, width], tiled, dim=1", layers.whole / ranks, 0.0),
        ("[batch, tokens, width], tiled, dim=1, then contiguous()", layers.whole / ranks, 1.0),
    ):
        extra = packed + copied * layers.whole
        seconds = 2 * extra / device.memory_bandwidth
        rows.append({"form": form, "extra_bytes": extra, "extra_seconds": seconds})
    return rows
