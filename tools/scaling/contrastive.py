"""Contrastive training as in CLIP and CLIP4Clip: the cost of each gradient rule.

There are W ranks with `batch` pairs each. Their embeddings are gathered by one all-gather for each
of two towers. Two losses are right (`examples/contrastive.py` runs both):

    own rows      this rank's rows of both logits matrices, 2 · batch × batch·W.  Each rank's loss
                  depends on all embeddings: only "sum" returns those gradients, with a
                  reduce-scatter for each tower. Parameters' gradients are averaged (DDP, FSDP).
    whole loss    the whole matrix, batch·W × batch·W, the same on every rank.  Each rank already
                  has the gradient of its part: "local" sends nothing. Parameters' gradients are
                  summed. "mean" gives the same numbers, but sends data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.scaling.algorithms import fastest
from tools.scaling.links import H100, Device, Link

TOWERS = 2
LOGIT_BYTES = 4  # float32, as losses are computed


@dataclass(frozen=True)
class Contrastive:
    """The task of one rank.

    Attributes:
      batch: the number of pairs on a rank.
      width: the width of an embedding.
      itemsize: bytes of one number of an embedding.
    """

    batch: int = 128
    width: int = 512
    itemsize: int = 2

    @property
    def part(self) -> int:
        """Bytes that a rank contributes to an all-gather of one tower."""
        return self.batch * self.width * self.itemsize

    def gathered_bytes(self, ranks: int) -> int:
        """Returns the bytes of the gathered embeddings of both towers."""
        return TOWERS * ranks * self.part

    def logits_bytes(self, ranks: int, loss: str) -> int:
        """Returns the bytes of the logits; the backward pass needs as many for their gradient."""
        everyone = self.batch * ranks
        elements = TOWERS * self.batch * everyone if loss == "own rows" else everyone * everyone
        return LOGIT_BYTES * elements

    def sent_bytes(self, ranks: int, rule: str) -> tuple[int, int]:
        """Returns the least bytes that a rank sends in the forward and in the backward pass."""
        exchange = TOWERS * (ranks - 1) * self.part
        return exchange, 0 if rule == "local" else exchange

    def flops(self, ranks: int, loss: str) -> int:
        """Returns the operations of the logits: forward, and twice as many backward."""
        return 6 * self.width * self.logits_bytes(ranks, loss) // LOGIT_BYTES

    def choices(self, ranks: int, link: Link, device: Device = H100) -> list[dict[str, Any]]:
        """Returns each right pair of a loss and a rule, with its seconds and bytes on a rank."""
        algorithm, exchange = fastest(ranks, self.part, link)
        rows = []
        for loss, rule in (("own rows", "sum"), ("whole loss", "local"), ("whole loss", "mean")):
            forward, backward = self.sent_bytes(ranks, rule)
            times = {
                "forward": TOWERS * exchange,
                "backward": 0.0 if rule == "local" else TOWERS * exchange,
                "logits": self.flops(ranks, loss) / device.flops,
            }
            memory = {
                "gathered": self.gathered_bytes(ranks),
                "logits": self.logits_bytes(ranks, loss),
            }
            rows.append(
                {
                    "ranks": ranks,
                    "network": link.name,
                    "algorithm": algorithm,
                    "loss": loss,
                    "rule": rule,
                    "sent_bytes": {"forward": forward, "backward": backward},
                    "seconds": {**times, "total": sum(times.values())},
                    "memory_bytes": memory,
                    # Gathered arrays and logits count twice: both have cotangents.
                    "fits": 2 * sum(memory.values()) <= device.memory,
                }
            )
        return rows

    def chosen(self, ranks: int, link: Link, device: Device = H100) -> dict[str, Any] | None:
        """Returns the fastest choice that fits into the device's memory."""
        fitting = [row for row in self.choices(ranks, link, device) if row["fits"]]
        return min(fitting, key=lambda row: row["seconds"]["total"], default=None)
