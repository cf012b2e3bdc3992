"""What is timed: for each op a table of cases, and the fewest bytes that a case can move.

A further op adds its cases to `CASES`, its bytes to `ARRAYS_MOVED`, and its functions to `in_torch`
and `in_jax`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

SMALL, LARGE = (64, 1024), (4096, 4096)
TINY = (2, 8)
CHAIN = 101  # calls chained inside one jit

# Full-size arrays read or written: x → y; (x, g) → dx; both.
ARRAYS_MOVED = {"bias_gelu": {"forward": 2, "backward": 3, "forward+backward": 5}}


@dataclass(frozen=True)
class Case:
    """One row of the bench.

    Attributes:
      op: name of the op.
      framework: "torch" or "jax".
      what: "forward", "backward" (with the bias gradient), "forward+backward", or "chain": calls
        one after the other inside one jit.
      dtype, form, shape: of x; the bias has the dtype of x.
      memory: "new" memory for every result, "old" memory for the large ones (`out=` in torch,
        donated in JAX).
    """

    op: str
    framework: str
    what: str
    dtype: str
    form: str
    shape: tuple[int, ...]
    memory: str = "new"

    @property
    def bytes(self) -> int:
        moved = ARRAYS_MOVED[self.op].get(self.what, 0)
        return moved * math.prod(self.shape) * BYTES[self.dtype]

    @property
    def is_tiny(self) -> bool:
        return self.shape == TINY

    @property
    def label(self) -> str:
        size = "×".join(map(str, self.shape))
        old = (
            {"torch": ", out=", "jax": ", donated"}[self.framework] if self.memory == "old" else ""
        )
        return f"{self.what}{old} {self.dtype} {self.form} {size}"


def cases(framework: str, quick: bool) -> Iterator[Case]:
    """Yields the cases of a framework."""
    kinds = [("float32", "tanh"), ("float32", "none"), ("bfloat16", "tanh"), ("bfloat16", "none")]
    kinds.append(("float16", "tanh"))
    ways = [
        ("forward", "new"),
        ("forward", "old"),
        ("backward", "new"),
        ("forward+backward", "new"),
    ]
    if quick:
        kinds = [("float32", "tanh"), ("bfloat16", "tanh")]
        ways = [("forward", "old"), ("forward+backward", "new")]
    for shape, (dtype, form), (what, memory) in itertools.product((SMALL, LARGE), kinds, ways):
        # Writing into old memory matters where new memory costs: the forms do not differ in that.
        if memory == "old" and form != "tanh":
            continue
        yield Case("bias_gelu", framework, what, dtype, form, shape, memory)
    tiny = ("forward", "forward+backward") if framework == "torch" else ("chain",)
    for what in tiny:
        yield Case("bias_gelu", framework, what, "float32", "tanh", TINY)
