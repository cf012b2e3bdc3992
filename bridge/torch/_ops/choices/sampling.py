"""Tokens drawn from logits, for PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue.choices.sampling import NAME, check_offsets, checked
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.integers import as_integer
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._adapter.selections import columns_of


def seeded_sample(
    logits: Tensor,
    seed: Any,
    offset: Any,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    r"""A token for each row, drawn from softmax(logits/temperature), from a seed and an offset.

    The same logits, seed and offset give the same token in `bridge.jax`, on every device, and for
    any other rows beside it. The filters apply in the order top_k, top_p, min_p, each to what the
    one before has left. Columns count from the most probable one on, equal logits in the order of
    their columns.

    Column j takes word j mod 4 of Philox4x32-10 with the 64-bit key `seed` and the counter
    (j ÷ 4, offset), as u = (word + ½)/2³². The token is the column with the largest sum of
    logits/temperature and −log(−log u): Gumbel noise, so that its probability is that of the
    softmax. The arithmetic is float64 for every dtype. The sums of top_p are exact: probabilities
    count in units of 2⁻⁴⁰ of the largest. Tokens have no gradient.

    Under `torch.func.vmap` rows are counted from the start in each batch element.

    Args:
      logits: `[..., V]` of dtype float16, bfloat16, float32 or float64, of any strides.
      seed: an integer from −2⁶³ to 2⁶⁴ − 1, a 0-dimensional integer tensor, or a generator of the
        logits' device.
      offset: of an integer dtype, `[...]`: a number for each row. Or one integer: then row i,
        counted in row-major order, has offset + i. Use each (seed, offset) once.
      temperature: from 0 on; 0 gives the first column with the largest logit.
      top_k: draw from so many most probable columns, from 1 to V.
      top_p: draw from the fewest most probable columns whose probabilities sum up to at least this
        part, above 0 and at most 1.
      min_p: draw from columns with at least this part of the largest probability, from 0 to 1.

    Returns:
      Columns `[...]` in int64; −1 for a row with NaN or with nothing but −∞.

    Raises:
      TypeError: logits are no dense tensor or have another dtype; a number is none.
      ValueError: logits have no columns; offset has another shape; a number is out of range.

    Example:
      >>> seeded_sample(torch.tensor([[0.0, 5.0, 1.0]]), 0, 0, temperature=0.0)
      tensor([1])

    Source: Gumbel noise, Maddison et al., arXiv:1411.0030; top_p, arXiv:1904.09751; min_p,
    arXiv:2407.01082.
    """
    if is_overridden(given := (logits, seed, offset)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors(NAME, 1, logits=logits)
    params = checked(arrays, spec_of(logits), temperature, top_k, top_p, min_p)
    rows = logits.shape[:-1]
    key = as_integer(NAME, "seed", seed, logits)
    if key.dim() != 0:
        raise ValueError(f"{NAME}: seed has shape {[*key.shape]}, expected a 0-dimensional tensor")
    if isinstance(offset, Tensor):
        check_tensors(NAME, 2, logits=logits, offset=offset)
        check_offsets(spec_of(offset), rows)
        number = offset.to(torch.int64)
    else:
        number = as_integer(NAME, "offset", offset, logits)
    if number.dim() == 0:
        number = number + torch.arange(rows.numel(), device=logits.device).reshape(rows)
    words = torch.stack([key.expand(rows), number], -1)
    return columns_of(logits, words, params)[..., 0]
