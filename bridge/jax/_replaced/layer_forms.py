"""The forms of Flax's own layers, which are known by their `__call__` itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.jax._ops.group_norm import group_norm
from bridge.jax._ops.nnx_attention import attention_fn
from bridge.jax._ops.nnx_norms import LayerNorm, RMSNorm
from bridge.jax._ops.vision.nnx_batch_norm import BatchNorm, normalised
from bridge.jax._replaced import product_layers
from bridge.jax._replaced.norm_forms import has_rows_for_form
from bridge.jax._replaced.product_layers import why_no_convolution, why_no_product
from bridge.jax._replaced.trial import Form
from bridge.lang.dtypes import FLOATING

_DEFAULT_ATTENTION = nnx.dot_product_attention


def _is_floating(x: Any) -> bool:
    """True for an array that an op takes; Flax promotes integers and lists itself."""
    return isinstance(x, jax.Array) and x.dtype.name in FLOATING


def _batch_norm(
    layer: Any, x: Any, use_running_average: bool | None = None, *, mask: Any = None, **how: Any
) -> Any:
    mode = layer.use_running_average if use_running_average is None else use_running_average
    if mask is not None or mode is None or not _is_floating(x) or _why_no_batch(layer):
        return NotImplemented
    return normalised(layer, x, use_running_average, **how)


def _why_no_batch(layer: Any) -> str | None:
    if layer.axis_index_groups is not None:
        return "axis_index_groups is given, expected None"
    if not isinstance(layer.axis, int):
        return f"axis is {layer.axis}, expected one dimension"
    return None if layer.epsilon > 0 else f"epsilon is {layer.epsilon}, expected a positive number"


def _layer_norm(layer: Any, x: Any, *, mask: Any = None) -> Any:
    if mask is not None or not _is_floating(x) or not _has_whole_rows(layer, x):
        return NotImplemented
    return LayerNorm.__call__(layer, x)


def _rms_norm(layer: Any, x: Any, mask: Any = None) -> Any:
    if mask is not None or not _is_floating(x) or not _has_whole_rows(layer, x):
        return NotImplemented
    return RMSNorm.__call__(layer, x)


def _has_whole_rows(layer: Any, x: jax.Array) -> bool:
    return x.ndim > 0 and _is_plain(layer) and has_rows_for_form(layer, x)


def _is_plain(layer: Any) -> bool:
    """True if a norm of Flax normalises the last dimension; a trial decides for others."""
    axes = [layer.reduction_axes, layer.feature_axes]
    none = layer.axis_name is None and layer.axis_index_groups is None
    return none and layer.epsilon > 0 and all(each in (-1, (-1,), [-1]) for each in axes)


def _group_norm(layer: Any, x: Any, *, mask: Any = None) -> Any:
    if mask is not None or not _is_floating(x) or x.ndim < 2 or _why_no_groups(layer):
        return NotImplemented
    scale, bias = (None if v is None else v[...] for v in (layer.scale, layer.bias))
    x, scale, bias = layer.promote_dtype((x, scale, bias), dtype=layer.dtype)
    y = group_norm(x, layer.num_groups, scale, bias, eps=layer.epsilon, channels_last=True)
    return y if layer.dtype is None else y.astype(layer.dtype)


def _why_no_groups(layer: Any) -> str | None:
    for name in ("axis_name", "axis_index_groups", "reduction_axes"):
        if getattr(layer, name) is not None:
            return f"{name} is given, expected None"
    return None if layer.epsilon > 0 else f"epsilon is {layer.epsilon}, expected a positive number"


def _attention(_: None, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
    is_dropped = named.get("dropout_rate", 0.0) and not named.get("deterministic", False)
    if given or is_dropped or any(named.get(name) is not None for name in ("bias", "module")):
        return NotImplemented
    return attention_fn(query, key, value, **named)


_TIED = (("attend", product_layers.attend),)
# For each layer: its form, and the reason against it.
_LAYERS: dict[Any, tuple[str, Form, Callable[[Any], str | None]]] = {
    nnx.Linear.__call__: (
        "products",
        Form("linear", product_layers.linear, is_call=True),
        why_no_product,
    ),
    nnx.LinearGeneral.__call__: (
        "products",
        Form("linear", product_layers.linear_general, is_call=True),
        why_no_product,
    ),
    nnx.Conv.__call__: (
        "products",
        Form("conv_general_dilated", product_layers.convolution, is_call=True),
        why_no_convolution,
    ),
    nnx.ConvTranspose.__call__: (
        "products",
        Form("conv_transpose", product_layers.conv_transpose, is_call=True),
        why_no_convolution,
    ),
    nnx.Embed.__call__: (
        "products",
        Form("embedding", product_layers.embed, is_call=True, methods=_TIED),
        lambda layer: None,
    ),
    nnx.BatchNorm.__call__: (
        "norms",
        Form("batch_norm", _batch_norm, is_call=True),
        _why_no_batch,
    ),
    nnx.GroupNorm.__call__: (
        "norms",
        Form("group_norm", _group_norm, is_call=True),
        _why_no_groups,
    ),
}
_ROWS = {
    nnx.LayerNorm.__call__: Form("layer_norm", _layer_norm, is_call=True),
    nnx.RMSNorm.__call__: Form("rms_norm", _rms_norm, is_call=True),
}
_UNBIASED = Form("batch_norm", _batch_norm, (("unbiased", True),), is_call=True)
_ATTENTION = Form("attention", _attention, is_call=True)


def layer_form(layer: Any, wanted: list[str], unbiased: bool) -> Form | str | None:
    """Returns the form of a layer of Flax, the reason for none, or None for another layer.

    Args:
      unbiased: batch norms update the running variance by torch's rule.
    """
    if isinstance(layer, BatchNorm):
        return None
    call = type(layer).__call__
    if call in _ROWS and "norms" in wanted and _is_plain(layer) and _has_floats(layer):
        return _ROWS[call]
    found = _LAYERS.get(call)
    if found is None or found[0] not in wanted:
        return None
    _, form, why = found
    if not _has_floats(layer):
        return "its parameters are no floating-point arrays, as in quantised layers"
    if (reason := why(layer)) is not None:
        return reason
    return _UNBIASED if unbiased and form.name == "batch_norm" else form


def _has_floats(layer: Any) -> bool:
    own = [v.get_value() for v in vars(layer).values() if isinstance(v, nnx.Variable)]
    dtypes = [getattr(value, "dtype", None) for value in own if value is not None]
    return all(dtype is not None and jnp.dtype(dtype).name in FLOATING for dtype in dtypes)


def attention_form(function: Any) -> Form | str | None:
    """Returns the form of an `attention_fn`, the reason for none, or None for bridge's own."""
    if function is attention_fn:
        return None
    if function is _DEFAULT_ATTENTION:
        return _ATTENTION
    return "attention_fn is given, expected flax.nnx.dot_product_attention"
