"""Cases of functions of a linear layer's logits, whose matrix products are exact here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.entries import FACTORS, is_filled, shape_of
from tests.cases import Case, Inputs
from tests.frameworks import numpy_dtype


@dataclass(frozen=True)
class LinearCrossEntropy(Case):
    """Losses per row, from hidden states and a weight.

    Attributes:
      space: the shape of the logits.
    """

    space: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.space[:1]

    def __str__(self) -> str:
        return f"linear_cross_entropy {list(self.space)}"

    def argument_shapes(self) -> list[tuple[int, ...]]:
        return [shape_of(role, self.space) for role in FACTORS]

    def function(self, framework: Any) -> Callable[..., Any]:
        rows, columns = self.space
        labels = framework.array(np.arange(rows) * 7 % columns)
        options = {"chunk": 5, "ignore_index": 0, "z_loss": 1e-3, "label_smoothing": 0.1}
        return lambda *arrays: framework.ops.linear_cross_entropy(
            *arrays, labels, reduction="none", **options
        )

    def result_dtype(self, dtypes: list[str]) -> str:
        return "float64" if dtypes[0] == "float64" else "float32"

    def draw(self, rng: np.random.Generator, *dtypes: str) -> Inputs:
        """Draws factors that make products exact to any order: powers of two, mostly zeros."""
        drawn = super().draw(rng, *dtypes)

        def factors(arrays: list[Any]) -> list[Any]:
            powers = [np.where(np.abs(array) > 1, 2, 1) * np.sign(array) for array in arrays]
            pairs = zip(powers, FACTORS, strict=True)
            made = [np.where(is_filled(role, self.space), array, 0) for array, role in pairs]
            return [array.astype(numpy_dtype(dtypes[0])) for array in made]

        lists = [factors(each) for each in (drawn.arguments, drawn.tangents, drawn.directions)]
        return Inputs(lists[0], drawn.cotangent, *lists[1:])

    def compared(self, result: Any) -> Any:
        return result + result.dtype.type(0)  # a sum of zeros may have either sign


class LinearTokenLogProbs(LinearCrossEntropy):
    """The sum of log-probability and entropy of each row."""

    def __str__(self) -> str:
        return f"linear_token_log_probs {list(self.space)}"

    def function(self, framework: Any) -> Callable[..., Any]:
        rows, columns = self.space
        labels = framework.array(np.arange(rows) * 7 % columns)

        def run(hidden: Any, weight: Any) -> Any:
            log_probs, entropy = framework.ops.linear_token_log_probs(
                hidden, weight, labels, temperature=1.5, bits="portable"
            )
            return log_probs + entropy

        return run


class LinearDivergence(LinearCrossEntropy):
    """The Jensen-Shannon divergence from logits of a constant layer."""

    def __str__(self) -> str:
        return f"linear_divergence {list(self.space)}"

    def function(self, framework: Any) -> Callable[..., Any]:
        ones = [np.ones(shape_of(role, self.space)) for role in FACTORS]

        def run(hidden: Any, weight: Any) -> Any:
            kind = str(hidden.dtype).removeprefix("torch.")
            constant = [framework.array(x.astype(numpy_dtype(kind))) for x in ones]
            return framework.ops.linear_divergence(
                hidden, weight, *constant, kind="js", beta=0.3, bits="portable"
            )

        return run
