"""`megatron/core/fusions/fused_weighted_squared_relu.py` of Megatron-LM."""

from __future__ import annotations

from torch import Tensor
from torch.autograd import Function

from bridge import lang as bl
from bridge.catalogue import gates
from bridge.catalogue.declaration import declared, named
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.packed_gates import as_before, flat, one_a_row, pulled_back


@declared()
@named("weighted_squared_relu")
def _narrow_squared_relu(x: bl.Full, weight: bl.PerRow):
    """`squared_relu` in the dtype of x."""
    return bl.like(gates.squared_relu.declaration.function(x, weight), x)  # type: ignore[arg-type]


# Make it now: a first call under torch.compile could not make it.
_squared_relu = _narrow_squared_relu.torch


def weighted_squared_relu(x: Tensor, weights: Tensor) -> Tensor:
    """max(x, 0)²·weights in the dtype of x; `weights` is `[..., 1]`, a number for each token.

    Args:
      x: `[..., d]`, of a floating-point dtype.
      weights: `[..., 1]`, a number for each token.
    """
    if is_overridden((x, weights)):
        return hand_over((x, weights))  # type: ignore[no-any-return]
    return _squared_relu(x, one_a_row("weighted_squared_relu", x, weights)[..., 0])  # type: ignore[no-any-return]


def weighted_squared_relu_back(g: Tensor, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of x and of weights `[..., 1]`, each in its dtype.

    Args:
      g: `[..., d]`, the gradient of the result.
      x: `[..., d]`, of a floating-point dtype.
      weights: `[..., 1]`, a number for each token.
    """
    if is_overridden((g, x, weights)):
        return hand_over((g, x, weights))  # type: ignore[no-any-return]
    dx, dweights = pulled_back("weighted_squared_relu_back", weighted_squared_relu, g, x, weights)
    return dx.to(x.dtype), dweights


class WeightedSquaredReLUFunction(Function, metaclass=DropIn):
    """`WeightedSquaredReLUFunction.apply(input, weights)`."""

    @staticmethod
    def apply(input: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        """Returns `weighted_squared_relu(input, weights)`."""
        return weighted_squared_relu(input, weights)


def weighted_squared_relu_impl(input: Tensor, weights: Tensor) -> Tensor:
    """`weighted_squared_relu` for any leading dimensions of input; weights are `[tokens, 1]`.

    Args:
      input: `[..., d]`, of a floating-point dtype.
      weights: `[tokens, 1]`.
    """
    if is_overridden((input, weights)):
        return hand_over((input, weights))  # type: ignore[no-any-return]
    return as_before(WeightedSquaredReLUFunction.apply(flat(input), flat(weights)), input)
