"""Finds by a trial the op that computes a layer of a Hugging Face model.

Some two hundred models have classes of their own for the same few formulas, and a class name does
not distinguish a norm with weight from one with 1 + weight. So the layer's own `forward` runs on
random rows of several scales, in a copy that shares nothing with the layer. An op replaces it if
it gives the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from bridge.torch._drop_ins.huggingface.mlp_forms import activation_trials, mlp_trials
from bridge.torch._drop_ins.huggingface.norm_forms import norm_trials
from bridge.torch._drop_ins.huggingface.trial import (
    HOOKED,
    Form,
    argument_names,
    first_alike,
    unseen,
)

_KINDS = (("norms", norm_trials), ("mlps", mlp_trials), ("activations", activation_trials))


def form_of(layer: nn.Module, wanted: Sequence[str]) -> Form | str | None:
    """Returns the form of a layer, or the reason why it has none, or None for an unwanted kind.

    Args:
      wanted: some of "norms", "mlps" and "activations".
    """
    with unseen():
        for kind, find in _KINDS:
            if kind not in wanted or (trials := find(layer)) is None:  # type: ignore[operator]
                continue
            if "forward" in vars(layer):
                return HOOKED
            if isinstance(trials, str):
                return trials
            arguments = argument_names(type(layer).forward)
            if arguments is None or len(arguments) != max(trials.counts):
                return "its forward takes more than one argument"
            found = first_alike(trials)
            # Most activations have no op, so there is nothing to report.
            return None if kind == "activations" and isinstance(found, str) else found
    return None
