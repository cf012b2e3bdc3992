"""Attention for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.attention import NAME, Attention
from bridge.catalogue.attention_arguments import Prepared, checked_options
from bridge.torch._adapter import arrays
from bridge.torch._adapter.autocast import cast
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._compositions import functions
from bridge.torch._compositions.composition import Composition
from bridge.torch._ops.sinks import Sink, as_sink, sinks


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    sink: Sink = None,
    softcap: float | None = None,
) -> Tensor:
    r"""softmax(scale·q kᵀ) v, a few rows of queries at a time: attention.

        y[i] = Σ_j p[i, j]·v[j],   p[i] = softmax_j(s[i, j]) over the keys that query i sees
        s[i, j] = scale·Σ_c q[i, c]·k[j, c], with a softcap c: c·tanh(s[i, j] / c)

    **The mask is True where a key is masked OUT**, as in `scaled_masked_softmax`. The mask of
    `torch.nn.functional.scaled_dot_product_attention` has the opposite polarity: pass its `~mask`.

    Same bits in `bridge.torch` and `bridge.jax`, for values and all gradients. **The result of a
    query depends on that query and on the keys and values that it sees, in their order, and on
    nothing else**: a query that is decoded alone against a cache of n keys has the bits of position
    n of a whole sequence, in any batch. A key that a query does not see is absent from its sums,
    whatever k and v hold there (NaN included). A query that sees no key gives 0 and no gradient.
    Derivatives of gradients need finite numbers in hidden keys too.

    Scores and their softmax are computed in float32 (float64 for float64). p is rounded once to
    the dtype of q, for the product with v. Memory is proportional to a chunk of rows times the
    keys: the backward pass stores q, k, v, the sinks and the mask, and computes the probabilities
    of a chunk again.

    Differentiable to any order, in reverse and forward mode, under `torch.func` (vmap included) and
    `torch.compile(fullgraph=True)`. Derivatives of gradients, forward mode and `torch.func.grad`
    run the parts one by one: they store the probabilities. Autocast casts q, k and v. DTensors that
    are split by batches, or by heads into parts with whole key heads, stay so; other splits are
    gathered.

    Args:
      q: `[..., heads, queries, d]` of dtype float16, bfloat16, float32 or float64.
      k: `[..., key heads, keys, d]` of q's dtype. The number of key heads divides that of heads:
        query heads h·g to h·g + g − 1 share key head h, g = heads / key heads.
      v: `[..., key heads, keys, d of v]` of q's dtype.
      mask: bool, or uint8 with non-zero for True; broadcasts to `[..., heads, queries, keys]` from
        the right. It is read through its strides, never expanded in memory.
      causal: query i sees key j only if j ≤ i + (keys − queries): the last query sees every key.
      window: with `causal`, query i sees only the last `window` of these keys.
      scale: a finite number; None is 1/√d.
      sink: a number, or `[heads]` of any of these dtypes: one more logit of each query of a head,
        which takes part in the sum of the softmax and has no value. It is neither scaled nor
        capped.
      softcap: a positive number c, or None.

    Returns:
      `[..., heads, queries, d of v]` of q's dtype.

    Raises:
      TypeError: an argument is not a dense tensor of an allowed dtype, or the dtypes of q, k and v
        differ; an option has a wrong type.
      ValueError: shapes that do not fit; heads that do not divide; a window without `causal`, or
        less than 1; a scale that is not finite; a softcap that is not positive;
        tensors on different devices.

    Source: Vaswani et al., "Attention Is All You Need", arXiv:1706.03762; grouped queries: Ainslie
    et al., arXiv:2305.13245; chunks that are computed again: Rabe and Staats, arXiv:2112.05682.

    Example:
      >>> attention(torch.ones(1, 2, 4), torch.ones(1, 2, 4), torch.eye(2)[None], causal=True)
      tensor([[[1.0000, 0.0000],
               [0.5000, 0.5000]]])
    """
    if is_overridden(given := (q, k, v, mask, sink)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors(NAME, 3, q=q, k=k, v=v, mask=mask)
    q, k, v = cast(q, k, v)
    if sink is not None:
        sink = as_sink(NAME, "sink", sink, q)
        check_tensors(NAME, 2, q=q, sink=sink)
    operands = _prepared.operands(q, k, v, mask, sink)
    options = checked_options(arrays, q.shape[-1], causal, window, scale, softcap)
    if any(type(each).__name__ == "DTensor" for each in operands):
        from bridge.torch._sharded import attention as sharded

        return sharded.run(NAME, operands, lambda parts: _composition.run(parts, options))
    return _composition.run(operands, options)


_attention = Attention(functions)
_prepared = Prepared(arrays, sinks)
_composition = Composition(_attention)
