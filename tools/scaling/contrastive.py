"""Contrastive training as CLIP and CLIP4Clip do it: what each gradient rule costs.

W ranks with `batch` pairs each, whose embeddings are gathered, one all-gather for each of two
towers. Two losses are right (`examples/contrastive.py` runs both):

    own rows      this rank's rows of both logits matrices, 2 · batch × batch·W.  Each rank's loss
                  depends on everybody's embeddings: only "sum" brings those gradients home, with a
                  reduce-scatter for each tower. Parameters' gradients are averaged (DDP, FSDP).
    whole loss    the whole matrix, batch·W × batch·W, the same on every rank.  The gradient of
                  this rank's part is at hand: "local" sends nothing. Parameters' gradients are
                  summed. "mean" gives the same numbers, and sends.
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
    """The task on one rank.

    Attributes:
      batch: pairs on a rank.
      width: of an embedding.
      itemsize: bytes of one of its numbers.
    """

    batch: int = 128
    width: int = 512
    itemsize: int = 2

    @property
    def part(self) -> int:
        """Bytes that a rank puts into an all-gather of one tower."""
        return self.batch * self.width * self.itemsize

    def gathered_bytes(self, ranks: int) -> int:
        """Memory of the gathered embeddings of both towers."""
        return TOWERS * ranks * self.part

    def logits_bytes(self, ranks: int, loss: str) -> int:
        """Memory of the logits; the backward pass needs as much again for their gradient."""
        everyone = self.batch * ranks
        elements = TOWERS * self.batch * everyone if loss == "own rows" else everyone * everyone
        return LOGIT_BYTES * elements

    def sent_bytes(self, ranks: int, rule: str) -> tuple[int, int]:
        """Bytes that a rank sends forward and backward, with an algorithm that sends the least."""
        exchange = TOWERS * (ranks - 1) * self.part
        return exchange, 0 if rule == "local" else exchange

    def flops(self, ranks: int, loss: str) -> int:
        """The operations of the logits forward, and twice as many backward."""
        return 6 * self.width * self.logits_bytes(ranks, loss) // LOGIT_BYTES

    def choices(self, ranks: int, link: Link, device: Device = H100) -> list[dict[str, Any]]:
        """Each right pair of a loss and a rule, with its seconds and bytes on a rank."""
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
                    # Both count twice: the gathered arrays and the logits have cotangents.
                    "fits": 2 * sum(memory.values()) <= device.memory,
                }
            )
        return rows

    def chosen(self, ranks: int, link: Link, device: Device = H100) -> dict[str, Any] | None:
        """The fastest choice that fits into the device's memory."""
        fitting = [row for row in self.choices(ranks, link, device) if row["fits"]]
        return min(fitting, key=lambda row: row["seconds"]["total"], default=None)
