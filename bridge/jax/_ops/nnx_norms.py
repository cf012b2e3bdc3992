"""The normalisations as modules of Flax NNX, with the constructors of `flax.nnx`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.catalogue import checks
from bridge.catalogue.gates import ACTIVATIONS
from bridge.jax._adapter.arguments import as_array_likes, as_arrays, as_flag
from bridge.jax._ops.dyt import dyt, poly_norm
from bridge.jax._ops.gated_norms import gated_rms_norm
from bridge.jax._ops.group_norm import group_norm
from bridge.jax._ops.norms import layer_norm, rms_norm
from bridge.ops.scalars import whole_number

# Flax's default. It computes in the widest of the dtypes, and so do the ops by themselves.
_PROMOTE_DTYPE = inspect.signature(nnx.RMSNorm.__init__).parameters["promote_dtype"].default


def _in_dtype(norm: Any, results: Any) -> Any:
    """Casts results to the module's dtype, which a user's `promote_dtype` may not do."""
    if norm.dtype is None:
        return results
    return jax.tree.map(lambda y: y.astype(norm.dtype), results)


def _check_whole(module: str, norm: Any, mask: Any) -> None:
    """Raises ValueError for a mask, and for a mesh axis over which the original would sum."""
    if mask is not None:
        raise ValueError(f"{module}: mask is given, expected None: rows are normalised whole")
    if norm.axis_name is not None:
        raise ValueError(
            f"{module}: axis_name is {norm.axis_name!r}, expected None: split columns are "
            "normalised under jit, without it"
        )


def _promoted(norm: Any, *arrays: Any) -> list[Any]:
    """Returns arrays in the module's dtype, or as they are where the ops promote by themselves."""
    if norm.dtype is None and norm.promote_dtype is _PROMOTE_DTYPE:
        return list(arrays)
    return list(norm.promote_dtype(arrays, dtype=norm.dtype))


def _parameters(norm: Any, *names: str) -> list[Any]:
    """Returns the values of parameters; None for a parameter that the module lacks."""
    parameters = [getattr(norm, name, None) for name in names]
    return [None if p is None or p.get_value() is None else p[...] for p in parameters]


def _checked(module: str, norm: Any, x: Any, other: Any, mask: Any, named: str) -> list[Any]:
    """Returns x, the other operand and the parameters in the module's dtype.

    Raises:
      ValueError: for options of the original that do not normalise whole rows.
    """
    _check_whole(module, norm, mask)
    x, other = as_arrays(*as_array_likes(module, 1, **{"x": x, named: other}))
    for name in ("reduction_axes", "feature_axes"):
        axes = getattr(norm, name)
        if (axes,) not in ((-1,), ((-1,),), (x.ndim - 1,), ((x.ndim - 1,),), ([-1],)):
            raise ValueError(f"{module}: {name} is {axes}, expected the last dimension")
    return _promoted(norm, x, other, *_parameters(norm, "scale", "bias"))


class RMSNorm(nnx.RMSNorm):
    """`flax.nnx.RMSNorm` over the last dimension, by `rms_norm`; the same parameters.

    The constructor is the original's. `use_fast_variance` has no effect. Options that do not
    normalise whole rows raise ValueError when the module is called.

    Example:
      >>> RMSNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __call__(self, x: Any, mask: Any = None, *, residual: Any = None) -> Any:
        """Returns y, or (y, x + residual)."""
        x, residual, scale, _ = _checked("RMSNorm", self, x, residual, mask, "residual")
        return _in_dtype(self, rms_norm(x, scale, residual, eps=self.epsilon))


class LayerNorm(nnx.LayerNorm):
    """`flax.nnx.LayerNorm` over the last dimension, by `layer_norm`; the same parameters.

    The constructor is the original's; see the notes of `RMSNorm`.

    Example:
      >>> LayerNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __call__(self, x: Any, *, mask: Any = None, residual: Any = None) -> Any:
        """Returns y, or (y, x + residual)."""
        x, residual, scale, bias = _checked("LayerNorm", self, x, residual, mask, "residual")
        return _in_dtype(self, layer_norm(x, scale, bias, residual, eps=self.epsilon))


class GatedRMSNorm(nnx.RMSNorm):
    """`gated_rms_norm` with the parameters of `flax.nnx.RMSNorm`.

    Args:
      num_features: d, the size of the last dimension.
      activation, norm_first, groups: as for `gated_rms_norm`.
      options: the other arguments of `flax.nnx.RMSNorm`; see the notes of `RMSNorm`.

    Raises:
      TypeError, ValueError: as for `gated_rms_norm`.

    Example:
      >>> GatedRMSNorm(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8)), jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(
        self,
        num_features: int,
        *,
        activation: str = "silu",
        norm_first: bool = True,
        groups: int = 1,
        **options: Any,
    ) -> None:
        checks.word(ACTIVATIONS)("GatedRMSNorm", "activation", activation)
        super().__init__(num_features, **options)
        self.activation, self.groups = activation, whole_number("GatedRMSNorm", "groups", groups, 1)
        self.norm_first = as_flag("GatedRMSNorm", "norm_first", norm_first)

    def __call__(self, x: Any, gate: Any, mask: Any = None) -> Any:  # type: ignore[override]
        """Returns rms_norm(x)·act(gate), or rms_norm(x·act(gate)); gate has x's shape."""
        x, gate, scale, _ = _checked("GatedRMSNorm", self, x, gate, mask, "gate")
        y = gated_rms_norm(
            x,
            gate,
            scale,
            eps=self.epsilon,
            activation=self.activation,
            norm_first=self.norm_first,
            groups=self.groups,
        )
        return _in_dtype(self, y)


class GroupNorm(nnx.GroupNorm):
    """`flax.nnx.GroupNorm` by `group_norm`, with an activation; the same parameters.

    Args:
      num_features: c, the number of channels, in the last dimension.
      num_groups: the number of groups, or None with a group_size.
      group_size: the number of channels of a group, or None with num_groups.
      activation: None, or the name of a function of the result, as for `group_norm`.
      options: the other arguments of `flax.nnx.GroupNorm`. `use_fast_variance` has no effect, and
        options that do not normalise whole groups raise ValueError when the module is called.

    Raises:
      ValueError: as the original, and for an unknown activation.

    Example:
      >>> GroupNorm(6, 2, activation="silu", rngs=nnx.Rngs(0))(jnp.ones((3, 4, 4, 6))).shape
      (3, 4, 4, 6)
    """

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = 32,
        group_size: int | None = None,
        *,
        activation: str | None = None,
        **options: Any,
    ) -> None:
        checks.optional(checks.word(ACTIVATIONS))("GroupNorm", "activation", activation)
        super().__init__(num_features, num_groups, group_size, **options)
        self.activation = activation

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """Returns the normalised x `[n, ..., c]`, of its shape."""
        _check_whole("GroupNorm", self, mask)
        (x,) = as_arrays(*as_array_likes("GroupNorm", 1, x=x))
        axes: Any = self.reduction_axes
        if axes is not None and sorted(axis % x.ndim for axis in axes) != list(range(1, x.ndim)):
            raise ValueError(
                f"GroupNorm: reduction_axes is {axes}, expected None or all dimensions but the "
                "first"
            )
        features = self.num_groups * self.group_size
        if x.ndim > 1 and x.shape[-1] != features:
            raise ValueError(
                f"GroupNorm: x has shape {list(x.shape)}, expected {features} in the last dimension"
            )
        x, scale, bias = _promoted(self, x, *_parameters(self, "scale", "bias"))
        y = group_norm(
            x,
            self.num_groups,
            scale,
            bias,
            eps=self.epsilon,
            activation=self.activation,
            channels_last=True,
        )
        return _in_dtype(self, y)


class DyT(nnx.Module):
    """`dyt` with its parameters: alpha `[1]`, scale and bias `[num_features]`.

    Args:
      num_features: d, the size of the last dimension.
      init_alpha: the first value of alpha.
      dtype, param_dtype, use_scale, use_bias, scale_init, bias_init, promote_dtype, rngs: as for
        `flax.nnx.LayerNorm`.

    Raises:
      TypeError, ValueError: num_features is no integer, or negative.

    Example:
      >>> DyT(8, rngs=nnx.Rngs(0))(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(
        self,
        num_features: int,
        *,
        init_alpha: float = 0.5,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_scale: bool = True,
        use_bias: bool = True,
        scale_init: Callable[..., jax.Array] = nnx.initializers.ones,
        bias_init: Callable[..., jax.Array] = nnx.initializers.zeros,
        promote_dtype: Any = _PROMOTE_DTYPE,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_features = whole_number("DyT", "num_features", num_features)
        self.dtype, self.param_dtype, self.promote_dtype = dtype, param_dtype, promote_dtype
        self.alpha = nnx.Param(jnp.full((1,), init_alpha, param_dtype))
        for name, wanted, initial in (
            ("scale", use_scale, scale_init),
            ("bias", use_bias, bias_init),
        ):
            value = initial(rngs.params(), (num_features,), param_dtype) if wanted else None
            setattr(self, name, nnx.data(None) if value is None else nnx.Param(value))

    def __call__(self, x: Any) -> Any:
        """Returns tanh(alpha·x)·scale + bias."""
        (x,) = as_arrays(*as_array_likes("DyT", 1, x=x))
        values = _promoted(self, x, *_parameters(self, "alpha", "scale", "bias"))
        return _in_dtype(self, dyt(*values))


class PolyNorm(nnx.Module):
    """`poly_norm` with its parameters: scale `[3]`, a third each, and bias `[]`, 1.

    Args:
      epsilon: a positive finite number.
      dtype, param_dtype, promote_dtype: as for `flax.nnx.LayerNorm`.
      rngs: not used; other norms need it.

    Raises:
      TypeError, ValueError: epsilon is no such number.

    Example:
      >>> PolyNorm()(jnp.ones((2, 8))).shape
      (2, 8)
    """

    def __init__(
        self,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        promote_dtype: Any = _PROMOTE_DTYPE,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.epsilon = checks.eps("PolyNorm", "epsilon", epsilon)
        self.dtype, self.param_dtype, self.promote_dtype = dtype, param_dtype, promote_dtype
        self.scale = nnx.Param(jnp.full((3,), 1.0 / 3.0, param_dtype))
        self.bias = nnx.Param(jnp.ones((), param_dtype))

    def __call__(self, x: Any) -> Any:
        """Returns scale₀·norm(x³) + scale₁·norm(x²) + scale₂·norm(x) + bias."""
        (x,) = as_arrays(*as_array_likes("PolyNorm", 1, x=x))
        x, scale, bias = _promoted(self, x, *_parameters(self, "scale", "bias"))
        return _in_dtype(self, poly_norm(x, scale, bias, eps=self.epsilon))
