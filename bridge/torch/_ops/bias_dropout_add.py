"""The public bias_dropout_add for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue.bias_dropout_add import bias_dropout_add as _declared
from bridge.catalogue.checks import probability
from bridge.torch._adapter.checks import check_flags, check_tensors
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.entry import fixed
from bridge.torch._adapter.integers import as_integer, drawn_seed
from bridge.torch._adapter.overrides import hand_over, is_overridden

_NAME = "bias_dropout_add"
_NO_SEED = 0.0, None, None


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    p: float = 0.5,
    seed: int | Tensor | torch.Generator | None = None,
    offset: int | Tensor = 0,
    training: bool = True,
) -> Tensor:
    r"""residual + dropout(x + bias), in one pass over memory.

    y = residual + keep/(1 − p)·(x + bias), where an element is kept with the probability 1 − p.
    16-bit and float32 tensors are computed in float32, in float64 if any is float64, and rounded
    once.

    Element i of x, counted in row-major order, takes word i mod 4 of Philox4x32-10 with the 64-bit
    key `seed` and the counter (i ÷ 4, offset), and is kept iff that word is at least
    round(p·2³²). So the same seed and offset give the same mask on every device and in
    `bridge.jax`, and the mask is never stored: the backward pass draws it again. Dropped elements
    are 0 even if x is NaN or infinite there. p = 0 keeps everything, p = 1 nothing.

    Differentiable to any order, in reverse and forward mode, and under `torch.func`. The seed is
    the only residual. One kernel computes the gradients of x and bias; the sums of the latter are
    in float32 (float64 for float64) in a fixed order, and rounded once. The gradient of residual is
    the cotangent itself. Works under `torch.compile(fullgraph=True)`, `torch.export`, autocast
    (which does not change it) and activation checkpointing; never synchronises with the device.

    Under `torch.func.vmap` elements are counted from the start in each batch element: a seed that
    is not batched gives all of them the same mask, as a loop over the function would, and a
    batched seed or offset gives each its own. With `seed=None`, vmap's `randomness` decides:
    `"same"` draws one seed, `"different"` one for each.

    Args:
      x: `[..., d]` or 0-dimensional, of dtype float16, bfloat16, float32 or float64, on the CPU or
        a CUDA device.
      bias: `[d]`, of the same dtypes. None adds nothing.
      residual: of the shape of x, of the same dtypes. None adds nothing.
      p: the probability of dropping an element, a number from 0 to 1.
      seed: selects the mask. One of:
        None: a seed is drawn from the default generator of x's device.
        An integer from −2⁶³ to 2⁶⁴ − 1 (negative numbers count modulo 2⁶⁴).
        A 0-dimensional tensor of an integer dtype on x's device. The kernel reads it when it runs:
        write a new value into it before replaying a CUDA graph.
        A `torch.Generator` of that device, from which a seed is drawn.
      offset: an integer or a 0-dimensional integer tensor, as seed. Selects one of the seed's 2⁶⁴
        independent masks, for example by the number of the step or layer. Use each pair
        (seed, offset) once.
      training: if False, y = residual + x + bias, and p and seed are not used.

    Returns:
      A contiguous tensor of x's shape, of the dtype of residual if there is one, else of x. A
      gradient has its input's dtype.

    Raises:
      TypeError: an argument is not a dense tensor, or has another dtype; p is not a number; seed or
        offset is not an integer.
      ValueError: a bias that is not `[d]`; a residual of another shape than x; p not from 0 to 1;
        seed or offset beyond 64 bits, or with dimensions; tensors on different devices.

    Example:
      >>> bias_dropout_add(torch.ones(8), p=0.5, seed=0).shape
      torch.Size([8])

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
    """
    # Other calls are checked for overrides by the op, but here this precedes the drawing of a seed.
    is_known = training is False and type(p) is float and 0.0 <= p <= 1.0
    if not is_known and is_overridden(given := (x, bias, residual, seed, offset)):
        return hand_over(given)  # type: ignore[no-any-return]
    p, *drawn = _NO_SEED if is_known else _drawn(x, bias, residual, p, seed, offset, training)
    return _bias_dropout_add.run((x, bias, residual, *drawn), None, p)  # type: ignore[no-any-return]


def _drawn(
    x: Any, bias: Any, residual: Any, p: Any, seed: Any, offset: Any, training: Any
) -> tuple[Any, Any, Any]:
    """Returns p, the seed and the offset, checked; 0 and None if nothing is dropped."""
    if type(p) is not float or not 0.0 <= p <= 1.0:
        p = probability(_NAME, "p", fixed(p))
    if type(training) is not bool:
        check_flags(_NAME, training=training)
    if not training or p == 0.0:
        return _NO_SEED
    if not isinstance(x, Tensor):
        check_tensors(_NAME, x=x)  # raises
    if seed is None:
        first = drawn_seed(None, x, bias, residual)
    else:
        first = as_integer(_NAME, "seed", seed, x, bias, residual)
    if type(offset) is int and offset == 0:
        return p, first, None
    return p, first, as_integer(_NAME, "offset", offset, x)


def bias_add_(x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Writes residual + x + bias into x, and returns x.

    x is contiguous, needs no gradient and has the result's dtype.
    """
    return _bias_dropout_add.run((x, bias, residual, None, None), x, 0.0)  # type: ignore[no-any-return]


_bias_dropout_add = DeclaredEntry(_declared)
