"""Optimizers with the bits of `bridge.torch.optim`, as gradient transformations of optax.

optax is not imported: an optimizer here has the fields that optax reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import optimizers
from bridge.catalogue.checks import check_each
from bridge.jax._adapter.arguments import refuse_traced
from bridge.jax._adapter.avals import split_as
from bridge.jax._ops.clipping import ClipState, clip_by_global_norm
from bridge.jax._ops.leaves import Leaves, Optimizer, arithmetic_of, reshaped

__all__ = [
    "AdamWState",
    "ClipState",
    "Optimizer",
    "SGDState",
    "adamw",
    "apply_updates",
    "clip_by_global_norm",
    "sgd",
]

_MOST = 2**31 - 1


class AdamWState(NamedTuple):
    """The state of `adamw`: the number of steps, int32, and m and v of each parameter."""

    count: Any
    mu: Any
    nu: Any


class SGDState(NamedTuple):
    """The state of `sgd`: the number of steps, int32, and the buffers, () without momentum."""

    count: Any
    trace: Any


def adamw(
    learning_rate: Any,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: Any = 1e-4,
    mask: Any = None,
) -> Optimizer:
    r"""AdamW, with the bits of `bridge.torch.optim.AdamW`.

    m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g², and the update is
    −lr·(m̂/(√v̂ + eps) + weight_decay·p), with m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ)
    (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). Every operation is
    rounded where it stands: in float32 for parameters of 16 and 32 bits, whose state is float32,
    and in float64 for float64.

    Args:
      learning_rate: a number, an array without dimensions, which may be traced, or a function of
        the number of steps before this one.
      b1, b2, eps: numbers; `optax.inject_hyperparams` needs their names in `static_args`.
      weight_decay: as learning_rate.
      mask: a tree of bools, or a function of the parameters that returns one: True for parameters
        with weight decay. None: all.

    Returns:
      An `Optimizer`. `update` returns updates in the type of the state, float32 or float64, so
      `optax.apply_updates` rounds the sum once; `step` returns the new parameters.

    Raises:
      TypeError, ValueError: for a number out of range, and at an update for a missing gradient,
        parameters that are not given, or an array of another dtype.

    Example:
      >>> optimizer = adamw(1e-3)
      >>> params = {"w": jnp.ones((2, 3))}
      >>> params, state = optimizer.step({"w": jnp.ones((2, 3))}, optimizer.init(params), params)
    """
    betas = {"b1": b1, "b2": b2, "eps": eps}
    _check("adamw", optimizers.ADAMW_CHECKS, betas)
    chosen = {name: float(value) for name, value in betas.items()}

    def init(params: Any) -> AdamWState:
        return AdamWState(jnp.zeros((), jnp.int32), _zeros(params), _zeros(params))

    def update(
        grads: Any, state: AdamWState, params: Any = None, *, returns_params: bool = False, **_: Any
    ) -> tuple[Any, AdamWState]:
        leaves = Leaves("adamw", grads, params)
        count = _counted(state.count)
        lr, decay = _at(learning_rate, state.count), _at(weight_decay, state.count)
        op = optimizers.adamw if returns_params else optimizers.adamw_update

        def run(p: Any, g: Any, m: Any, v: Any, decays: bool) -> Any:
            numbers = leaves.number("learning_rate", lr, p), count
            own = _decay(leaves, decay, p) if decays else None
            return op.jax(p, g, m, v, *numbers, own, **chosen)

        decays = leaves.flags(mask)
        first, mu, nu = leaves.run(run, 3, (state.mu, state.nu), decays)
        return first, AdamWState(count, mu, nu)

    return Optimizer(init, update)


def sgd(
    learning_rate: Any,
    momentum: float | None = None,
    nesterov: bool = False,
    *,
    dampening: float = 0.0,
    weight_decay: Any = 0.0,
    mask: Any = None,
) -> Optimizer:
    r"""SGD with momentum, with the bits of `bridge.torch.optim.SGD`.

    d = g + weight_decay·p; the buffer is d in the first step, then momentum·buffer +
    (1 − dampening)·d; the update is −lr·buffer, or −lr·(d + momentum·buffer) with Nesterov's
    momentum (Sutskever et al., "On the importance of initialization and momentum in deep learning",
    2013). Every operation is rounded where it stands: in float32 for parameters of 16 and 32 bits,
    whose buffer is float32, and in float64 for float64.

    Args:
      learning_rate: a number, an array without dimensions, which may be traced, or a function of
        the number of steps before this one.
      momentum: a number from 0 on; None or 0 for no buffer.
      nesterov: True for Nesterov's momentum, which needs a momentum and no dampening.
      dampening: a number.
      weight_decay: as learning_rate.
      mask: as for `adamw`.

    Returns:
      An `Optimizer`, as `adamw` returns.

    Raises:
      TypeError, ValueError: as for `adamw`.

    Example:
      >>> optimizer = sgd(0.1, momentum=0.9)
      >>> params = {"w": jnp.ones((2, 3))}
      >>> params, state = optimizer.step({"w": jnp.ones((2, 3))}, optimizer.init(params), params)
    """
    given = {"momentum": 0.0 if momentum is None else momentum, "dampening": dampening}
    _check("sgd", optimizers.SGD_CHECKS, given)
    chosen: dict[str, Any] = {name: float(value) for name, value in given.items()}
    has_buffer = chosen["momentum"] != 0
    if nesterov and (not has_buffer or dampening != 0):
        raise ValueError(
            f"sgd: nesterov is True with momentum {momentum} and dampening {dampening}, expected a "
            "momentum above 0 and no dampening"
        )
    chosen["nesterov"] = bool(nesterov)

    def init(params: Any) -> SGDState:
        return SGDState(jnp.zeros((), jnp.int32), _zeros(params) if has_buffer else ())

    def update(
        grads: Any, state: SGDState, params: Any = None, *, returns_params: bool = False, **_: Any
    ) -> tuple[Any, SGDState]:
        leaves = Leaves("sgd", grads, params)
        count = _counted(state.count)
        lr, decay = _at(learning_rate, state.count), _at(weight_decay, state.count)
        op = optimizers.sgd if returns_params else optimizers.sgd_update

        def run(p: Any, g: Any, *rest: Any) -> Any:
            *buffer, decays = rest
            own = _decay(leaves, decay, p) if decays else None
            memory = (*buffer, count) if buffer else (None, None)
            found = op.jax(p, g, leaves.number("learning_rate", lr, p), *memory, own, **chosen)
            return found if buffer else (found,)

        trees = (state.trace,) if has_buffer else ()
        first, *trace = leaves.run(run, 1 + len(trees), trees, leaves.flags(mask))
        return first, SGDState(count, *(trace or [()]))

    return Optimizer(init, update)


def apply_updates(params: Any, updates: Any) -> Any:
    """Returns p + update for each parameter, rounded once to the parameter's dtype.

    `optax.apply_updates` has the same bits, but for numbers below the normal range of float32,
    which XLA sets to zero on CPUs.

    Args:
      params: a tree of floating arrays.
      updates: a tree of the same structure; None leaves a parameter unchanged.

    Raises:
      TypeError: for an array that is not floating.
      ValueError: for an update of another shape.

    Example:
      >>> apply_updates({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"]
      Array([2., 2.], dtype=float32)
    """

    def add(p: Any, update: Any) -> Any:
        if update is None or p is None:
            return p
        if np.shape(update) != np.shape(p):
            raise ValueError(
                f"apply_updates: an update has shape {list(np.shape(update))}, expected "
                f"{list(np.shape(p))}, that of its parameter"
            )
        p = jnp.asarray(p)
        shape = optimizers.row_shape(p.shape)
        rows = reshaped(p, shape), reshaped(update, shape)
        added = optimizers.parameter_plus_update.jax(*rows).reshape(p.shape)
        return split_as(added, jax.typeof(p))

    return jax.tree.map(add, params, updates, is_leaf=lambda leaf: leaf is None)


def _decay(leaves: Leaves, value: Any, p: Any) -> Any:
    """Returns the weight decay; None for the number 0."""
    if not isinstance(value, jax.Array) and value == 0:
        return None
    return leaves.number("weight_decay", value, p)


def _check(function: str, checks: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        refuse_traced(function, name, value)
    check_each(checks, function, **values)


def _at(value: Any, count: Any) -> Any:
    return value(count) if callable(value) else value


def _counted(count: Any) -> Any:
    """Returns count + 1; the largest int32 stays, where the corrections are 1 long since."""
    return jnp.where(count < _MOST, count + 1, count)


def _zeros(params: Any) -> Any:
    return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=arithmetic_of(p)), params)
