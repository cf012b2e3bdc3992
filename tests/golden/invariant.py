"""Cases of torch's and JAX's own functions inside `invariant`, which have no name in bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bridge.catalogue import framework_functions
from tests.golden.catalogue import Declared, beside, labels_of


class Own(Declared):
    """A function of the frameworks: call(framework's name, *arrays) runs it in the context."""

    def function(self, framework: Any) -> Callable[..., Any]:
        return lambda *arrays: self.call(framework.name, *arrays)

    def result_dtype(self, dtypes: list[str]) -> str:
        return dtypes[0]

    def compared(self, result: Any) -> Any:
        # The frameworks round losses to the dtype of logits, each with a NaN of its own.
        return np.where(np.isnan(result), result.dtype.type(np.nan), result)


def _silu(framework: str, x: Any) -> Any:
    if framework == "torch":
        import torch

        import bridge.torch

        with bridge.torch.invariant():
            return torch.nn.functional.silu(x)
    import jax

    import bridge.jax

    with bridge.jax.invariant():
        return jax.nn.silu(x)


def _mean(framework: str, x: Any) -> Any:
    if framework == "torch":
        import bridge.torch

        with bridge.torch.invariant():
            return x.mean(-1)
    import jax.numpy

    import bridge.jax

    with bridge.jax.invariant():
        return jax.numpy.mean(x, -1)


def _cross_entropy(reduction: str) -> Callable[..., Any]:
    options = {"ignore_index": 0, "label_smoothing": 0.125}

    def losses(framework: str, x: Any) -> Any:
        # Multiples of 1/8 are numbers of every dtype.
        numbers = (np.arange(x.shape[-1]) * 5 % 11 + 1) / 8
        labels = labels_of(x)
        if framework == "torch":
            import torch

            import bridge.torch

            weight = beside(x, numbers).to(x.dtype)
            with bridge.torch.invariant():
                return torch.nn.functional.cross_entropy(
                    x, labels, weight, reduction=reduction, **options
                )
        # JAX has no such function: the op is the same.
        found, counts = framework_functions.weighted_losses.jax(
            x, numbers.astype(x.dtype), labels, **options
        )
        if reduction == "mean":
            found = framework_functions.weighted_mean.jax(found, counts)
        return found.astype(x.dtype)

    return losses


def _cases(shape: tuple[int, ...]) -> list[Declared]:
    return [Own("silu", _silu, (shape,), shape), Own("mean", _mean, (shape,), shape[:-1])]


# A mean of losses has no bits to compare with infinite logits, which larger shapes have.
_LOSSES = (("none", (17, 9)), ("none", (4, 1300)), ("mean", (5, 3)), ("mean", (7, 9)))

INVARIANT = (
    *(case for shape in ((5, 3), (17, 9), (2, 65, 17), (4, 1300)) for case in _cases(shape)),
    *(
        Own(
            f"cross_entropy with weight, {reduction}",
            _cross_entropy(reduction),
            (shape,),
            shape[:1] if reduction == "none" else (),
        )
        for reduction, shape in _LOSSES
    ),
)
