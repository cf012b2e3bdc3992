"""The ops as modules of Flax NNX, and `replace`, which puts them into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge._installed import need
from bridge.catalogue.bias_gelu import CHECKS as GELU_CHECKS
from bridge.catalogue.checks import check_each, probability
from bridge.catalogue.softmax import check_softmax
from bridge.jax._adapter.arguments import (
    as_any_array,
    as_array_like,
    as_arrays,
    as_flag,
    refuse_traced,
)
from bridge.jax._adapter.avals import spec_of
from bridge.jax._ops.bias_dropout_add import bias_dropout_add
from bridge.jax._ops.bias_gelu import bias_gelu
from bridge.jax._ops.softmax import as_mask, as_scale, softmax
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import whole_number

need("bridge.jax.nnx", "flax")

# ruff: noqa: E402
from flax import nnx

from bridge.jax._ops.nnx_attention import attention_fn
from bridge.jax._ops.nnx_gates import GEGLU, GLU, ReGLU, SwiGLU
from bridge.jax._ops.nnx_norms import (
    DyT,
    GatedRMSNorm,
    GroupNorm,
    LayerNorm,
    PolyNorm,
    RMSNorm,
)
from bridge.jax._ops.vision.nnx_batch_norm import BatchNorm
from bridge.jax._replaced.models import replace
from bridge.replaced import Replaced

__all__ = [
    "GEGLU",
    "GLU",
    "BatchNorm",
    "BiasDropoutAdd",
    "BiasGELU",
    "DyT",
    "FusedScaleMaskSoftmax",
    "GatedRMSNorm",
    "GroupNorm",
    "LayerNorm",
    "PolyNorm",
    "RMSNorm",
    "ReGLU",
    "Replaced",
    "SwiGLU",
    "attention_fn",
    "replace",
]


class BiasGELU(nnx.Module):
    """`bridge.jax.bias_gelu` with its own bias: follows an `nnx.Linear(..., use_bias=False)`.

    Args:
      features: d, the size of the last dimension of the input.
      approximate: `"tanh"`, `"none"` or `"sigmoid"`.
      use_bias: False to have no bias.
      dtype: the dtype that input and bias are cast to. With None the result has their promoted
        dtype.
      param_dtype: the dtype of the bias.
      bias_init: initializer of the bias, called with a key, its shape and dtype.
      rngs: random streams; the stream `params` gives the key.

    Attributes:
      bias: `nnx.Param` of shape `[features]`, or None.

    Raises:
      TypeError: for features that is no integer, a dtype that is not floating, a bias_init that is
        no function, a use_bias that is no bool, or rngs of another type.
      ValueError: for negative features, an unknown `approximate`, a bias of another shape, or rngs
        without the stream.

    Example:
      >>> layer = BiasGELU(3, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((2, 3))).shape
      (2, 3)
    """

    def __init__(
        self,
        features: int,
        *,
        approximate: str = "tanh",
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        bias_init: Callable[..., jax.Array] = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        name = type(self).__name__
        check_each(GELU_CHECKS, name, approximate=approximate)
        self.features = whole_number(name, "features", features)
        self.approximate = approximate
        self.dtype = None if dtype is None else _floating(name, "dtype", dtype)
        self.bias = nnx.data(None)
        if as_flag(name, "use_bias", use_bias):
            param_dtype = _floating(name, "param_dtype", param_dtype)
            if not callable(bias_init):
                raise TypeError(
                    f"{name}: bias_init has type {type(bias_init).__name__}, expected a function "
                    f"of a key, a shape and a dtype"
                )
            key = _stream(name, rngs, "params")()
            bias = bias_init(key, (self.features,), param_dtype)
            if jnp.shape(bias) != (self.features,):
                raise ValueError(
                    f"{name}: bias_init gave shape {list(jnp.shape(bias))}, expected "
                    f"[{self.features}]"
                )
            self.bias = nnx.Param(bias)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns gelu(x + bias), of the shape of x, `[..., features]`."""
        bias = None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            x = as_any_array(type(self).__name__, "x", x).astype(self.dtype)
            bias = None if bias is None else bias.astype(self.dtype)
        return bias_gelu(x, bias, approximate=self.approximate)


class BiasDropoutAdd(nnx.Module):
    """`bridge.jax.bias_dropout_add` with a stream of seeds, like `nnx.Dropout`.

    `model.train()`, `model.eval()` and `nnx.view` set `deterministic`. Every call takes a key from
    the stream, and so draws its own mask.

    Args:
      rate: the probability of dropping an element.
      deterministic: True to switch dropout off. With None every call must state it.
      rng_collection: the name of the stream.
      rngs: the streams, or one stream. It is forked, so that it advances with this module alone.
        With None every call must give one.

    Raises:
      TypeError: for a rate that is no number, a `deterministic` that is no bool, a name that is no
        string, or rngs of another type.
      ValueError: for a rate that is not from 0 to 1, or rngs without the stream.

    Example:
      >>> layer = BiasDropoutAdd(0.1, rngs=nnx.Rngs(dropout=0))
      >>> layer(jnp.ones((2, 3)), jnp.ones(3), jnp.ones((2, 3))).shape
      (2, 3)
    """

    def __init__(
        self,
        rate: float,
        *,
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> None:
        name = type(self).__name__
        refuse_traced(name, "rate", rate)
        self.rate = probability(name, "rate", rate)
        self.deterministic: bool | None = None
        self.set_view(deterministic)
        if not isinstance(rng_collection, str):
            raise TypeError(
                f"{name}: rng_collection has type {type(rng_collection).__name__}, expected the "
                f"name of a stream"
            )
        self.rng_collection = rng_collection
        own = None if rngs is None else _stream(name, rngs, rng_collection).fork()
        self.rngs = nnx.data(None) if own is None else own

    def __call__(
        self,
        x: jax.Array,
        bias: jax.Array | None = None,
        residual: jax.Array | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Returns residual + dropout(x + bias).

        Args:
          x: `[..., d]`.
          bias: `[d]` or None.
          residual: of the shape of x, or None.
          deterministic, rngs: override the module's own; `rngs` may also be a key.

        Raises:
          TypeError: if `deterministic` is no bool, or `rngs` gives no key.
          ValueError: if neither the module nor the call gives `deterministic`, or a needed key.
            Otherwise as `bias_dropout_add`.
        """
        if deterministic is None:
            deterministic = self.deterministic
        if deterministic is None:
            raise ValueError(
                "BiasDropoutAdd: deterministic is None in the constructor and in the call, "
                "expected one of them to be True or False"
            )
        deterministic = as_flag(type(self).__name__, "deterministic", deterministic)
        seed = None
        if not deterministic and self.rate != 0.0:
            seed = self._key(self.rngs if rngs is None else rngs)
        return bias_dropout_add(
            x, bias, residual, p=self.rate, seed=seed, training=not deterministic
        )

    def _key(self, rngs: Any) -> Any:
        if rngs is None:
            raise ValueError(
                "BiasDropoutAdd: rngs is None in the constructor and in the call, expected one of "
                "them to give a key, or deterministic=True"
            )
        if isinstance(rngs, jax.Array):
            return rngs
        return _stream(type(self).__name__, rngs, self.rng_collection)()

    def set_view(self, deterministic: bool | None = None) -> None:
        """Called by `nnx.view`."""
        if deterministic is not None:
            deterministic = as_flag(type(self).__name__, "deterministic", deterministic)
            self.deterministic = deterministic


def _floating(function: str, argument: str, dtype: Any) -> Any:
    """Returns the dtype unchanged if the ops support it, else raises TypeError."""
    try:
        name = None if dtype is None else jnp.dtype(dtype).name
    except TypeError:
        name = None
    if name not in FLOATING:
        raise TypeError(
            f"{function}: {argument} is {dtype!r}, expected one of {', '.join(FLOATING)}"
        )
    return dtype


def _stream(function: str, rngs: Any, name: str) -> nnx.RngStream:
    """Returns the stream of this name, or `rngs` itself if it is a stream."""
    if isinstance(rngs, nnx.RngStream):
        return rngs
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(
            f"{function}: rngs has type {type(rngs).__name__}, expected nnx.Rngs or nnx.RngStream"
        )
    if not hasattr(rngs, name):
        raise ValueError(
            f"{function}: rngs has no stream {name!r} and no default, expected one of them"
        )
    return rngs[name]


_CAUSAL_OF = {
    "padding": False,
    "causal": True,
    "no_mask": False,
    "padding_causal": True,
    "arbitrary": False,
    "causal_bottom_right": True,
}


class FusedScaleMaskSoftmax(nnx.Module):
    """Softmax of scaled attention scores under a mask, a causal rule and a window.

    This is Megatron-LM's module of this name without the arguments that choose its implementation
    or dtypes: there is one implementation, and the result has the dtype of the input. 16-bit scores
    are computed in float32.

    Args:
      attn_mask_type: `"padding"`, `"causal"`, `"no_mask"`, `"padding_causal"`, `"arbitrary"` or
        `"causal_bottom_right"`; the name, or any object with such a `name`. The types with "causal"
        hide key j from query i where j > i + (keys − queries).
      scale: a finite number, or None for 1.
      window_size: None, or (left, right): query i sees only the keys from i + (keys − queries) −
        left to i + (keys − queries) + right; −1 means no limit. It applies in addition to mask and
        causal rule.

    Raises:
      TypeError: for a scale that is traced or no number.
      ValueError: for an unknown `attn_mask_type`, a window that is no pair of integers ≥ −1, or a
        scale that is not finite.

    Source: `megatron/core/fusions/fused_softmax.py` of Megatron-LM.
    """

    def __init__(
        self,
        attn_mask_type: Any = "padding",
        scale: float | None = None,
        window_size: tuple[int, int] | None = None,
    ) -> None:
        kind = getattr(attn_mask_type, "name", attn_mask_type)
        if not isinstance(kind, str) or kind not in _CAUSAL_OF:
            raise ValueError(
                f"FusedScaleMaskSoftmax: attn_mask_type is {attn_mask_type!r}, expected one of "
                f"{', '.join(map(repr, _CAUSAL_OF))}"
            )
        if window_size is not None and not _is_window(window_size):
            raise ValueError(
                f"FusedScaleMaskSoftmax: window_size is {window_size!r}, expected a pair of "
                f"integers from -1 on"
            )
        self.attn_mask_type = kind
        self.scale = None if scale is None else as_scale("FusedScaleMaskSoftmax", scale)
        self.window_size = window_size

    def __call__(
        self,
        scores: jax.Array,
        mask: jax.Array | None = None,
        softmax_offset: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the probabilities, of the shape and dtype of the scores.

        Args:
          scores: `[..., queries, keys]`.
          mask: None, or a bool or uint8 array that broadcasts to the scores; True hides an element.
          softmax_offset: one logit per head, `[heads]` or of a shape that broadcasts to `[...,
            queries, 1]`. It takes part in the sum and has no element in the result, like `sink` of
            `scaled_softmax`. It is not scaled.
        """
        name = "FusedScaleMaskSoftmax"
        (scores,) = as_arrays(as_array_like(name, "scores", scores))
        (mask,) = as_arrays(None if mask is None else as_mask(name, mask))
        scale = 1.0 if self.scale is None else self.scale
        causal = _CAUSAL_OF[self.attn_mask_type]
        has_two = causal or self.window_size is not None  # queries and keys are two dimensions
        check_softmax(
            name, spec_of(scores), spec_of(mask), scale, causal=has_two, argument="scores"
        )
        if self.window_size is not None:
            outside = _outside(self.window_size, *scores.shape[-2:])
            mask = outside if mask is None else _either(outside, mask.astype(bool))
        return softmax(name, scores, mask, scale, softmax_offset, causal=causal)


def _is_window(window: Any) -> bool:
    return (
        isinstance(window, (tuple, list))
        and len(window) == 2
        and all(isinstance(n, (int, np.integer)) and type(n) is not bool for n in window)
        and min(window) >= -1
    )


def _outside(window: tuple[int, int], queries: int, keys: int) -> jax.Array:
    """Returns a mask that is True where the window hides a key from a query."""
    left, right = map(int, window)
    away = jnp.arange(keys)[None] - jnp.arange(queries)[:, None] - (keys - queries)
    outside = jnp.zeros((queries, keys), bool)
    if left >= 0:
        outside |= away < -left
    if right >= 0:
        outside |= away > right
    return outside


def _either(*masks: jax.Array) -> jax.Array:
    """Returns the union of two masks; they broadcast, even if JAX does not promote ranks."""
    ndim = max(mask.ndim for mask in masks)
    one, other = (jax.lax.expand_dims(mask, range(ndim - mask.ndim)) for mask in masks)
    return one | other
