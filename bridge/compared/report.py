"""The report of a comparison."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """One side of a part.

    Attributes:
      module: torch's module by name, or the JAX function that the line lies in.
      op: the operation.
      source: "file:line", relative to the working directory where it lies below it.
      code: the text of the line.
    """

    module: str = ""
    op: str = ""
    source: str = ""
    code: str = ""


@dataclass
class Part:
    """A line where the two models part.

    Attributes:
      torch, jax: the place on each side.
      error: the difference relative to the value's scale, in float64; NaN where one side has no
        such value.
      count: how often the line was run and was wrong.
      name: torch's module, or a name given with `bridge.jax.record`.
      cause: the difference as a sentence, empty where it is not known.
    """

    torch: Place
    jax: Place
    error: float
    count: int = 1
    name: str = ""
    cause: str = ""

    @property
    def size(self) -> str:
        """The error in words: a value that one side lacks has none."""
        return "one side lacks it" if math.isnan(self.error) else f"error {self.error:.1e}"

    def __str__(self) -> str:
        times = f", {self.count} times" if self.count > 1 else ""
        head = f"{self.name or self.torch.module or 'model'}: {self.size}{times}"
        if self.cause:
            head += f"; {self.cause}"
        rows = [head]
        for side, place in (("torch", self.torch), ("jax", self.jax)):
            rows.append(f"  {side:5} {place.op:24} {place.source}")
            if place.code:
                rows.append(f"        {place.code}")
        return "\n".join(rows)


@dataclass
class Row:
    """A value in the order of execution, for the page."""

    side: str
    index: int
    op: str
    shape: tuple[int, ...]
    source: str
    code: str
    partner: int
    is_part: bool


@dataclass
class Report:
    """The result of a comparison.

    Attributes:
      parts: in the order of execution, each line once.
      notes: sentences about differences of 1e-9 to 1e-6 of the scale, such as constants held in
        float32, and about what a reader of the parts should know first.
      same_bits: the outputs are equal in the models' own dtype, bit for bit.
      differing, outputs: the numbers of output elements that differ there, and of all.
      paired: the number of torch's values that JAX has too.
      values: the number of torch's values that can be paired.
      error: the largest error of an output relative to its scale, in float64.
      gradients: names of parameters whose gradient has no equal in JAX.
      tokens: for each output of whole numbers that differ, their number and the first of them.
    """

    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    same_bits: bool = False
    differing: int = 0
    outputs: int = 0
    paired: int = 0
    values: int = 0
    error: float = 0.0
    own_error: float = 0.0
    gradients: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list, repr=False)

    @property
    def agreement(self) -> str:
        """The result of a comparison without parts as a sentence."""
        if self.gradients:
            return "The outputs are the same, but not the gradients"
        where = " in float64, but not in their own dtype" if self.tokens else ""
        return f"The models are the same{where}"

    @property
    def first(self) -> Part | None:
        """The first part, None where there is none."""
        return self.parts[0] if self.parts else None

    def __str__(self) -> str:
        width = max(60, min(shutil.get_terminal_size((100, 30)).columns, 160))
        rows = [*self.warnings, *self.tokens]
        if self.parts:
            head = "The models part at 1 line." if len(self.parts) == 1 else (
                f"The models part at {len(self.parts)} lines."
            )  # fmt: skip
            rows += [head, *str(self.parts[0]).splitlines()]
        else:
            rows.append(f"{self.agreement}: no value parts.")
        tail = [
            f"{self.paired} of {self.values} values are paired; the outputs differ by "
            f"{self.error:.1e} in float64,",
            f"by {self.own_error:.1e} in the models' own dtype, "
            + (
                "where all bits are equal."
                if self.same_bits
                else f"where {self.differing} of {self.outputs} numbers differ."
            ),
        ]
        tail += [f"no gradient in JAX equals that of {name}" for name in self.gradients[:4]]
        if len(self.gradients) > 4:
            tail.append(f"… nor those of {len(self.gradients) - 4} parameters more")
        tail += [f"note: {note}" for note in self.notes[:4]]
        if len(self.notes) > 4:
            tail.append(f"… and {len(self.notes) - 4} notes more in report.notes")
        left = 30 - len(rows) - len(tail)
        for k, part in enumerate(self.parts[1:], 1):
            text = str(part).splitlines()
            if len(text) + (k + 1 < len(self.parts)) > left:
                rows.append(f"… and {len(self.parts) - k} parts more in report.parts")
                break
            rows += text
            left -= len(text)
        # The first difference is never cut.
        whole = len(self.warnings) + len(self.tokens)
        return "\n".join(
            row if i < whole or len(row) <= width else row[: width - 1] + "…"
            for i, row in enumerate(rows + tail)
        )

    def html(self, path: Any) -> None:
        """Writes the report as one HTML file: both models' values in order, paired ones joined."""
        from bridge.compared.page import write

        write(self, path)
