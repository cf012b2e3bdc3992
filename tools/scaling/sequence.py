"""Sequence-parallel transformer layers: the cost of all-gather and reduce-scatter in each.

V. Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022: the
sequence is gathered before each of the two blocks of a layer (attention, MLP) and reduce-scattered
after it. The backward pass does so in reverse order, and also gathers each block's input, of which
only the part is saved, once more for the gradient of the weights. So a layer has 6 all-gathers and
4 reduce-scatters of arrays with `tokens·batch·width` elements.

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
      tokens: tokens of the whole sequence.
      width: the width of the residual stream.
      layers: the number of layers.
      batch: the number of sequences.
      itemsize: bytes of an activation's element.
    """

    tokens: int = 131_072
    width: int = 8192
    layers: int = 80
    batch: int = 1
    itemsize: int = 2

    @property
    def whole(self) -> int:
        """Bytes of a gathered activation: each rank holds one while a block runs."""
        return self.tokens * self.batch * self.width * self.itemsize

    def communication(self, ranks: int, link: Link, algorithm: str | None = None) -> float:
        """Returns seconds of a layer, forward and backward; None takes the fastest algorithm."""
        part = self.whole / ranks
        if algorithm is None:
            _, once = fastest(ranks, part, link)
        else:
            once = ALGORITHMS[algorithm](ranks, part, link)
        return (ALL_GATHERS + REDUCE_SCATTERS) * once

    def arithmetic(self, ranks: int, device: Device = H100) -> float:
        """Returns seconds of a layer on a rank, at the device's peak."""
        flops = 72 * self.batch * self.tokens * self.width**2
        return flops * (1 + self.tokens / (6 * self.width)) / ranks / device.flops

    def kept(self, ranks: int, split: bool = True) -> float:
        """Returns bytes of a layer's activations that a rank saves for the backward pass.

        Attention scores are excluded, because a fused attention does not save them. With sequence
        parallelism (`split`): 34·tokens·batch·width ÷ n. With tensor parallelism alone: (10 + 24 ÷
        n)·tokens·batch·width. Both are for 2-byte activations.
        """
        elements = self.tokens * self.batch * self.width
        scale = self.itemsize / 2
        return scale * elements * (34 / ranks if split else 10 + 24 / ranks)

    def row(self, ranks: int, link: Link, device: Device = H100) -> dict[str, Any]:
        """Returns the row of the tables for one number of ranks."""
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
        """Returns the least of `counts` of ranks whose exchanges take longer than arithmetic."""
        slower = (n for n in counts if self.communication(n, link) > self.arithmetic(n))
        return next(slower, None)


def copies(layers: Layers, ranks: int, device: Device = H100) -> list[dict[str, Any]]:
    """Returns the cost of each form of the gathered activation beyond the exchange.

    The result's memory has the gathered dimension outermost. A product of `[tokens, batch, width]`
    reads tiled dim=0 and stacked dim=0 (`flatten(0, 1)` is a view) in place. In `[batch, tokens,
    width]`, gathered along dim=1, the rows of a batch entry are apart: with more than one entry,
    the part is packed first and the result is copied if it must be contiguous. With one entry all
    forms are free.
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
