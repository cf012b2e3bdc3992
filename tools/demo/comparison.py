"""The table that compares both frameworks, with bridge and without, for terminal and report."""

from __future__ import annotations

from typing import Any

from tools.bench.cases import FRAMEWORKS
from tools.demo import gpt
from tools.demo.sentences import SENTENCES

BOTH = ("bridge", "own")
HEADER = ("", "with bridge", "with their own ops")
NEIGHBOURS = ("sentence", "nearest", "cosine")
OPS = {
    "bias_gelu": "bias-GELU",
    "softmax": "masked softmax",
    "bias_dropout_add": "bias-dropout-add",
}
EXPLANATION = (
    "Outputs are compared on the same inputs, those of every layer; dropout, off in the encoders, "
    "is on there. The encoders' embeddings differ by their matrix products and layer norms, which "
    "each framework still does itself."
)
TRAINING_EXPLANATION = (
    "Same first weights, same text, same optimizer. Outputs are compared on the same inputs, those "
    "of one forward pass of the trained model. With bridge the dropout masks are the same as well, "
    "and what is left is the rounding of matrix products and of the optimizer, which frameworks do "
    "themselves; without, each framework draws masks of its own and the curves part."
)


def comparison(found: dict[str, Any]) -> list[list[str]]:
    """Returns rows with the differences between the frameworks, and their speed."""
    rows = _differing(found["agreement"], OPS)
    for what in ("largest", "mean"):
        distances = [f"{found['distance'][ops][what]:.2e}" for ops in BOTH]
        rows.append([f"embeddings, {what} difference", *distances])
    return rows + _rates("sentences", found["rates"])


def training_comparison(training: dict[str, Any]) -> list[list[str]]:
    """Returns rows with the differences of each op, the loss curves, and the training speed."""
    rows = _differing(training["agreement"], gpt.OPS | {"product": "matrix product and gradient"})
    for framework, name in FRAMEWORKS.items():
        losses = [f"{training['curves'][ops][framework][-20:].mean():.4f}" for ops in BOTH]
        rows.append([f"{name}, loss of the last 20 steps", *losses])
    for what in ("largest", "mean"):
        gaps = [f"{training['gap'][ops][what]:.1e}" for ops in BOTH]
        rows.append([f"{what} difference of the curves", *gaps])
    return rows + _rates("steps", training["steps_per_second"])


def _differing(agreement: dict[str, Any], names: dict[str, str]) -> list[list[str]]:
    """Returns rows with the number of an op's outputs that differ between the frameworks."""
    return [
        [
            f"{name} outputs that differ, of {agreement[op]['elements']:,}",
            *(_share(agreement[op]["differing"][ops], agreement[op]["elements"]) for ops in BOTH),
        ]
        for op, name in names.items()
    ]


def _rates(what: str, rates: dict[str, dict[str, float]]) -> list[list[str]]:
    return [
        [f"{name}, {what} per second", *(f"{rates[framework][ops]:.0f}" for ops in BOTH)]
        for framework, name in FRAMEWORKS.items()
    ]


def _share(count: int, elements: int) -> str:
    return f"{count:,} ({count / elements:.1%})" if count else "0"


def neighbours(found: dict[str, Any]) -> list[list[str]]:
    """Returns a row for each sentence, with its nearest neighbour and their cosine."""
    return [
        [SENTENCES[i], SENTENCES[j], f"{found['cosine'][i]:.3f}"]
        for i, j in enumerate(found["nearest"])
    ]


def neighbour_line(found: dict[str, Any]) -> str:
    count = found["sentences"]
    return (
        f"torch and JAX agree on {found['same_neighbours']} of {count} neighbours; "
        f"{found['same_subject']} of {count} are on the same subject."
    )
