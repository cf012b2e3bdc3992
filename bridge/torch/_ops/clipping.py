"""Clipping of gradients by their global norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import DisableTorchFunction
from bridge.catalogue import optimizers
from bridge.catalogue.checks import number
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import number_of_float32, real_number
from bridge.torch._adapter import arrays
from bridge.torch._adapter.kernels import dtype_word
from bridge.torch._ops.optimizer_operands import arithmetic_of, as_rows, unwritable

_clipped = optimizers.clipped.entry("torch").run
_norm_and_factor = optimizers.norm_and_factor.entry("torch").run
_EXPECTED = "expected tensors, or pairs of a name and a tensor"
_max_norm = number("a number from 0 on", lambda value: value >= 0)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Any,
    max_norm: float | Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""Scales the gradients in place by min(1, max_norm/norm), and returns the norm.

    The norm is √(Σ g²) over all gradients, with the bits of `bridge.jax.optim.clip_by_global_norm`
    if the tensors come in the same order. Each tensor's squares are added in the tree of row sums,
    in row-major order; then the sums of the tensors, in the same tree.

    Args:
      parameters: `model.named_parameters()`, a dict or other pairs of names and tensors, which are
        added in the order of their sorted names; or tensors without names, or a single one, which
        are added in the given order. Tensors without a gradient are left out.
      max_norm: the largest norm, from 0 on.
      norm_type: 2; other norms raise.
      error_if_nonfinite: True to raise if the norm is infinite or NaN.
      foreach: accepted, without effect.

    Returns:
      The norm of the gradients before, 0-dimensional, float32, or float64 if a gradient is float64.

    Raises:
      TypeError: for a gradient that is complex, sparse or of another dtype.
      ValueError: for a negative max_norm, another norm_type, or a gradient whose elements share
        memory. Nothing has been written in all cases.
      RuntimeError: for a norm that is not finite, with error_if_nonfinite.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> model(torch.ones(4, 3)).sum().backward()
      >>> norm = clip_grad_norm_(model.named_parameters(), 1.0)
    """
    name = "clip_grad_norm_"
    limit = number_of_float32(name, "max_norm", _max_norm(name, "max_norm", max_norm))
    if real_number(name, "norm_type", norm_type) != 2.0:
        raise ValueError(f"{name}: norm_type is {norm_type}, expected 2")
    gradients = []
    for key, parameter in _in_order(name, parameters):
        if (g := parameter.grad) is None:
            continue
        if g.layout is not torch.strided or dtype_word(g.dtype) not in FLOATING:
            is_sparse = g.layout is not torch.strided
            found = "is sparse" if is_sparse else f"has dtype {dtype_word(g.dtype)}"
            raise TypeError(
                f"{name}: the gradient of {key} {found}, expected a dense one of "
                f"{', '.join(FLOATING)}"
            )
        if found := unwritable(g):
            raise ValueError(
                f"{name}: the gradient of {key} {found}, expected memory of its own: clone it"
            )
        gradients.append(g)
    if not gradients:
        return torch.zeros(())
    with DisableTorchFunction():  # a mode or a subclass takes over public functions only
        return _clip(name, gradients, limit, error_if_nonfinite)


def _clip(name: str, gradients: list[Tensor], limit: float, error_if_nonfinite: bool) -> Tensor:
    sums = [optimizers.squares(arrays, _whole(g).reshape(-1)) for g in gradients]
    dtype = torch.float64 if any(s.dtype is torch.float64 for s in sums) else torch.float32
    row = torch.cat([s.to(sums[0].device, dtype) for s in sums]).reshape(1, -1)
    norms, factors = _norm_and_factor((row, row.new_full((1,), limit)))
    norm, factor = norms.reshape(()), factors.reshape(())
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(f"{name}: the norm of the gradients is {norm.item()}, expected a number")
    for g in gradients:
        g = as_rows(g)[0]
        own = factor.to(g.device, arithmetic_of(g)).expand(g.shape[:-1])
        _clipped((g, own), g)
    return norm


def _whole(g: Any) -> Tensor:
    return g.full_tensor() if type(g).__name__ == "DTensor" else g  # type: ignore[no-any-return]


def _in_order(function: str, parameters: Any) -> Iterable[tuple[str, Tensor]]:
    """Returns pairs of names and tensors: sorted by names if these are given."""
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    if not isinstance(parameters, Iterable):
        raise TypeError(f"{function}: parameters has type {type(parameters).__name__}, {_EXPECTED}")
    given = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    has_names = bool(given) and not isinstance(given[0], Tensor)
    pairs = given if has_names else [(f"tensor {i}", each) for i, each in enumerate(given)]
    for pair in pairs:
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not isinstance(pair[1], Tensor):
            raise TypeError(
                f"{function}: parameters has a member of type {type(pair).__name__}, {_EXPECTED}"
            )
    return sorted(pairs, key=lambda pair: pair[0]) if has_names else pairs
