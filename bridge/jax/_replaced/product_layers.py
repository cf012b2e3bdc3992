"""The forms of Flax's layers that multiply by a matrix, look up its rows, or convolve.

A form reads the layer's settings at each call. It returns NotImplemented for a call that the
original must compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.catalogue.products import Products
from bridge.jax._adapter import arrays
from bridge.jax._adapter.products import PRIMITIVES
from bridge.jax._ops.convolution_arguments import as_operands
from bridge.jax._ops.dot_general import dot_general
from bridge.jax._ops.embedding import embedding
from bridge.jax._ops.planned_convolutions import general_convolution, transposed_convolution
from bridge.lang.dtypes import FLOATING

_products = Products(arrays, PRIMITIVES)
_OWN_PADDINGS = ("SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL")


def why_no_product(layer: Any) -> str | None:
    """Returns the reason why a layer's products stay with the layer, or None."""
    if getattr(layer, "dot_general_cls", None) is not None:
        return "dot_general_cls is given, expected None"
    for name, own in (
        ("dot_general", (jax.lax.dot_general, dot_general, None)),
        ("conv_general_dilated", (jax.lax.conv_general_dilated,)),
    ):
        if getattr(layer, name, None) not in (*own, None):
            return f"{name} is given, expected jax.lax.{name}"
    if getattr(layer, "preferred_element_type", None) is not None:
        return "preferred_element_type is given, expected None"
    if getattr(layer, "batch_axis", None):
        return "batch_axis is given, expected none"
    return None


def why_no_convolution(layer: Any) -> str | None:
    """Returns the reason why a convolution stays with the layer, or None."""
    if found := why_no_product(layer):
        return found
    padding = layer.padding
    allowed = ("SAME", "VALID") if isinstance(layer, nnx.ConvTranspose) else _OWN_PADDINGS
    if isinstance(padding, str) and padding not in allowed:
        return f"padding is {padding!r}, expected one of {', '.join(allowed)} or numbers"
    return None


def _values(layer: Any, x: jax.Array) -> Any:
    """Returns x, kernel and bias in the layer's dtype."""
    kernel, bias = layer.kernel[...], None if layer.bias is None else layer.bias[...]
    if getattr(layer, "mask", None) is not None:
        kernel = kernel * layer.mask
    return layer.promote_dtype((x, kernel, bias), dtype=layer.dtype)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array) and x.dtype.name in FLOATING


def linear(layer: Any, inputs: jax.Array, out_sharding: Any = None) -> Any:
    if not _is_array(inputs) or out_sharding is not None or why_no_product(layer):
        return NotImplemented
    x, kernel, bias = _values(layer, inputs)
    return _products.linear(x, kernel, bias, None, input_first=True)


def linear_general(layer: Any, inputs: jax.Array, out_sharding: Any = None) -> Any:
    if not _is_array(inputs) or out_sharding is not None or why_no_product(layer):
        return NotImplemented
    axes = sorted(axis % inputs.ndim for axis in layer.axis)
    x, kernel, bias = _values(layer, inputs)
    rest = [d for d in range(x.ndim) if d not in axes]
    if [*rest, *axes] != [*range(x.ndim)]:
        x = jnp.transpose(x, [*rest, *axes])
    into, out = kernel.shape[: len(axes)], kernel.shape[len(axes) :]
    if x.shape[len(rest) :] != into:
        return NotImplemented  # the original names the shapes
    y = _products.linear(
        jnp.reshape(x, (*x.shape[: len(rest)], math.prod(into))),
        jnp.reshape(kernel, (math.prod(into), math.prod(out))),
        None if bias is None else jnp.reshape(bias, (-1,)),
        None,
        input_first=True,
    )
    return jnp.reshape(y, (*y.shape[:-1], *out))


def embed(layer: Any, inputs: jax.Array, out_sharding: Any = None) -> Any:
    ids = inputs
    if out_sharding is not None or not isinstance(ids, jax.Array) or ids.dtype.kind not in "iu":
        return NotImplemented
    (table,) = layer.promote_dtype((layer.embedding[...],), dtype=layer.dtype, inexact=False)
    if layer.num_embeddings == 1:
        ids = jnp.zeros_like(ids)  # as the original, which takes any number for the only row
    elif ids.dtype.kind == "i":
        # Negative numbers count from the end, and numbers out of range give NaN.
        ids = jnp.where(ids < 0, ids + layer.num_embeddings, ids)
    return _embedded(ids, table)


def _embedded(ids: jax.Array, table: jax.Array) -> jax.Array:
    return jax.jit(embedding)(ids, table)  # under jit an id out of range is NaN, not an error


def attend(layer: Any, query: jax.Array, out_sharding: Any = None) -> Any:
    """Computes `nnx.Embed.attend`, the logits of tied weights."""
    if not _is_array(query) or out_sharding is not None:
        return NotImplemented
    x, table = layer.promote_dtype((query, layer.embedding[...]), dtype=layer.dtype)
    return _products.linear(x, table, None, None)


def convolution(layer: Any, inputs: jax.Array, out_sharding: Any = None) -> Any:
    dims = len(layer.kernel_size)
    if not _is_array(inputs) or out_sharding is not None or why_no_convolution(layer):
        return NotImplemented
    batch, x = _one_batch(inputs, dims)
    reach = _each(layer.kernel_dilation, dims)
    padding = layer.padding
    spans = [d * (k - 1) + 1 for d, k in zip(reach, layer.kernel_size, strict=True)]
    if padding in ("CIRCULAR", "REFLECT"):
        pads = [(0, 0), *(((k - 1) // 2, k // 2) for k in spans), (0, 0)]
        x = jnp.pad(x, pads, mode="wrap" if padding == "CIRCULAR" else "reflect")
        padding = "VALID"
    elif padding == "CAUSAL":
        if dims != 1:
            return NotImplemented  # the original refuses it
        padding = [(spans[0] - 1, 0)]
    x, kernel, bias = _values(layer, x)
    name = "conv_general_dilated"
    x, kernel, dtype = as_operands(name, x, kernel, None, None)
    y = general_convolution(
        name,
        x,
        kernel,
        bias,
        dtype,
        _each(layer.strides, dims),
        _pairs(padding, dims),
        _each(layer.input_dilation, dims),
        reach,
        _numbers(dims),
        layer.feature_group_count,
    )
    return jnp.reshape(y, (*batch, *y.shape[1:]))


def conv_transpose(layer: Any, inputs: jax.Array) -> Any:
    dims = len(layer.kernel_size)
    if not _is_array(inputs) or why_no_convolution(layer):
        return NotImplemented
    batch, x = _one_batch(inputs, dims)
    x, kernel, bias = _values(layer, x)
    x, kernel, dtype = as_operands("conv_transpose", x, kernel, None, None)
    y = transposed_convolution(
        "conv_transpose",
        x,
        kernel,
        bias,
        dtype,
        _each(layer.strides, dims),
        _pairs(layer.padding, dims),
        _each(layer.kernel_dilation, dims),
        None,
        layer.transpose_kernel,
    )
    return jnp.reshape(y, (*batch, *y.shape[1:]))


def _one_batch(x: jax.Array, dims: int) -> tuple[tuple[int, ...], jax.Array]:
    """Returns the dimensions of the batch, and x with one dimension in their place."""
    count = x.ndim - dims - 1
    batch = x.shape[:count] if count > 0 else ()
    return batch, jnp.reshape(x, (math.prod(batch), *x.shape[max(count, 0) :]))


def _each(given: Any, dims: int) -> tuple[int, ...]:
    given = 1 if given is None else given
    return (given,) * dims if isinstance(given, int) else tuple(given)


def _pairs(padding: Any, dims: int) -> Any:
    if isinstance(padding, str):
        return padding
    if isinstance(padding, int):
        return [(padding, padding)] * dims
    given: Sequence[Any] = padding
    return [(p, p) if isinstance(p, int) else tuple(p) for p in given]


def _numbers(dims: int) -> tuple[str, str, str]:
    space = "DHW"[3 - dims :]
    return f"N{space}C", f"{space}IO", f"N{space}C"
