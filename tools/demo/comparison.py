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
    "is on there. With bridge, the whole encoder is bridge's: embeddings, products, norms and "
    "attention, so its embeddings are equal."
)
TRAINING_EXPLANATION = (
    "Same first weights, same text, same learning rates. With bridge, both frameworks compute the "
    "same bits in every step: the weights and the state of the optimizer are compared number by "
    "number at the end. Without, each framework rounds its products in an order of its own and "
    "draws dropout masks of its own, and the trainings part. Outputs of an op are compared on the "
    "same inputs, those of one forward pass of the trained model."
)

VISION_HEADER = ("", "differing numbers", "of")
VISION_EXPLANATION = (
    "Each model is written once with the layers of torch.nn and once with those of Flax NNX; one "
    "call of replace for each lets bridge compute the layers. Weights, running statistics and "
    "momenta are compared after the last step, and the outputs before the first and after the last."
)


def vision_comparison(vision: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Returns a row for each model: all numbers compared, and those that differ."""
    rows = []
    for name, found in vision.items():
        counts = {kind: each["differing"] for kind, each in found["kinds"].items()}
        named = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        elements = sum(each["elements"] for each in found["kinds"].values())
        rows.append([f"{name}, {found['steps']} steps", named or "0", f"{elements:,}"])
    return rows


def is_equal_vision(vision: dict[str, dict[str, Any]]) -> bool:
    """Returns True if no number of any model differs."""
    return all(
        found["equal_losses"] == found["steps"]
        and not any(each["differing"] for each in found["kinds"].values())
        for found in vision.values()
    )


def comparison(found: dict[str, Any]) -> list[list[str]]:
    """Returns rows with the differences between the frameworks, and their speed."""
    rows = _differing(found["agreement"], OPS)
    for what in ("largest", "mean"):
        distances = [_number(found["distance"][ops][what]) for ops in BOTH]
        rows.append([f"embeddings, {what} difference", *distances])
    return rows + _rates("sentences", found["rates"])


def training_comparison(training: dict[str, Any]) -> list[list[str]]:
    """Returns rows with the differences at the end, of the losses and of each op, and the speed."""
    ended, steps = training["ended"], training["steps"]
    rows = []
    for kind, name in (("weights", "weights"), ("state", "numbers of the optimizer")):
        elements = ended["bridge"][kind]["elements"]
        shares = [_share(ended[ops][kind]["differing"], elements) for ops in BOTH]
        rows.append([f"{name} that differ after {steps} steps, of {elements:,}", *shares])
    equal = [f"{training['equal_losses'][ops]}" for ops in BOTH]
    rows.append([f"equal losses, of {steps}", *equal])
    for framework, name in FRAMEWORKS.items():
        rows.append([f"{name}, hash of the weights", *(ended[o]["hash"][framework] for o in BOTH)])
    for framework, name in FRAMEWORKS.items():
        losses = [f"{training['curves'][ops][framework][-20:].mean():.4f}" for ops in BOTH]
        rows.append([f"{name}, loss of the last 20 steps", *losses])
    gaps = [_number(training["gap"][ops]["largest"]) for ops in BOTH]
    rows.append(["largest difference of the curves", *gaps])
    rows += _differing(training["agreement"], gpt.OPS)
    return rows + _rates("steps", training["steps_per_second"])


def is_equal(training: dict[str, Any]) -> bool:
    """Returns True if the trainings with bridge are equal: outputs, losses, weights and state."""
    ended = training["ended"]["bridge"]
    return (
        all(of["differing"]["bridge"] == 0 for of in training["agreement"].values())
        and training["equal_losses"]["bridge"] == training["steps"]
        and not any(ended[kind]["differing"] for kind in ("weights", "state"))
    )


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


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


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
