"""The form of `torch.nn.MultiheadAttention`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bridge.torch._ops.attention import attention
from bridge.torch._ops.products import linear, matmul
from bridge.torch._ops.softmax import scaled_masked_softmax, scaled_softmax


def why_no_attention(layer: Any) -> str | None:
    """Returns the reason why bridge does not compute a layer of attention."""
    if layer.dropout:
        return (
            f"dropout is {layer.dropout}, expected 0: bridge's attention has no dropout of "
            "probabilities"
        )
    if layer.bias_k is not None or layer.add_zero_attn:
        return "add_bias_kv or add_zero_attn is True, expected False"
    return None


def why_bypassed(layer: nn.Module) -> str | None:
    """Returns a warning for a layer that may compute with the weights of its parts."""
    if isinstance(layer, nn.TransformerEncoderLayer) and torch.backends.mha.get_fastpath_enabled():
        return (
            "in evaluation without gradients it runs one fused operation of torch with its parts' "
            "weights: call torch.backends.mha.set_fastpath_enabled(False)"
        )
    return None


def multi_head(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Computes the layer with three products, `attention` and a fourth product.

    A call with a mask of numbers, dropout or nested tensors runs the original computation.
    """
    masks = [mask for mask in (key_padding_mask, attn_mask) if mask is not None]
    if (
        why_no_attention(layer) is not None
        or (is_causal and attn_mask is None)  # the original raises an error
        or query.is_nested
        or query.ndim not in (2, 3)
        or any(mask.dtype != torch.bool for mask in masks)
    ):
        return nn.MultiheadAttention.forward(
            layer,
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
        )
    has_batch, images = query.ndim == 3, 0 if layer.batch_first else 1
    given = [x if has_batch else x.unsqueeze(images) for x in (query, key, value)]
    given = given if layer.batch_first else [x.transpose(0, 1) for x in given]
    q, k, v = (
        linear(x, weight, bias).unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2)
        for x, weight, bias in zip(given, _weights(layer), _biases(layer), strict=True)
    )
    hidden = _hidden(layer, key_padding_mask, attn_mask)
    y = attention(q, k, v, mask=hidden).transpose(1, 2).flatten(2)
    y = linear(y, layer.out_proj.weight, layer.out_proj.bias)
    y = y if layer.batch_first else y.transpose(0, 1)
    weights = _probabilities(q, k, hidden, average_attn_weights) if need_weights else None
    if has_batch:
        return y, weights
    return y.squeeze(images), weights if weights is None else weights.squeeze(0)


def _weights(layer: Any) -> tuple[Tensor, ...]:
    if layer.in_proj_weight is None:
        return layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
    # The gradients of the parts are joined, not added to zeros.
    return tuple(layer.in_proj_weight.chunk(3))


def _biases(layer: Any) -> tuple[Tensor | None, ...]:
    return (None,) * 3 if layer.in_proj_bias is None else tuple(layer.in_proj_bias.chunk(3))


def _hidden(layer: Any, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Returns the mask of `attention`, in which True hides a key: so it does in the original."""
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, layer.num_heads))
    if padding is None:
        return mask
    padding = padding if padding.ndim == 2 else padding[None]
    return padding[:, None, None] if mask is None else padding[:, None, None] | mask


def _probabilities(q: Tensor, k: Tensor, hidden: Tensor | None, average: bool) -> Tensor:
    scale = q.shape[-1] ** -0.5
    scores = matmul(q, k.mT)
    if hidden is None:
        found = scaled_softmax(scores, scale)
    else:
        found = scaled_masked_softmax(scores, hidden, scale)
    return found.mean(1) if average else found
