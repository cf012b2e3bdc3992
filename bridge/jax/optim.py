"""Optimizers with the bits of `bridge.torch.optim`, as gradient transformations of optax.

optax is not imported: an optimizer here has the fields that optax reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bridge.catalogue import optimizers
from bridge.catalogue.checks import Check, check_each, number
from bridge.jax._adapter.arguments import refuse_traced
from bridge.lang.dtypes import FLOATING

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
_max_norm = number("a number from 0 on", lambda value: value >= 0)


class AdamWState(NamedTuple):
    """The state of `adamw`: the number of steps, int32, and m and v of each parameter."""

    count: Any
    mu: Any
    nu: Any


class SGDState(NamedTuple):
    """The state of `sgd`: the number of steps, int32, and the buffers, () without momentum."""

    count: Any
    trace: Any


class ClipState(NamedTuple):
    """The state of `clip_by_global_norm`: the norm of the last gradients, before they are scaled."""

    norm: Any


class Optimizer(NamedTuple):
    """A gradient transformation, for `optax.chain`, `flax.nnx.Optimizer` and others.

    Attributes:
      init: init(params) returns the state.
      update: update(grads, state, params) returns the updates and the new state.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]

    def step(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Returns the new parameters and the new state, with the bits of `update` and a sum.

        One kernel writes both, so this takes less memory traffic than `update` followed by
        `optax.apply_updates`.
        """
        return self.update(grads, state, params, returns_params=True)  # type: ignore[no-any-return]


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
    rounded where it stands: in float32 for parameters of 16 and 32 bits, whose state is float32, and
    in float64 for float64.

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
        leaves = _Leaves("adamw", grads, params)
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
        leaves = _Leaves("sgd", grads, params)
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


def clip_by_global_norm(max_norm: Any) -> Optimizer:
    r"""Scales all gradients by min(1, max_norm/norm) with norm = √(Σ g²).

    It has the bits of `bridge.torch.optim.clip_grad_norm_` with names. Each array's squares are
    added in the tree of row sums, in row-major order; then the sums of the arrays, in the same tree,
    in the order of their sorted names. A name has the keys of the path in the tree, joined by dots:
    `layers.0.weight`.

    Args:
      max_norm: a number from 0 on, or an array without dimensions, which may be traced.

    Returns:
      An `Optimizer` for a chain, whose state has the last norm: float32, or float64 if a gradient is
      float64. It needs no parameters.

    Raises:
      TypeError, ValueError: for a negative max_norm, and at an update for an array of another dtype.

    Example:
      >>> clip = clip_by_global_norm(1.0)
      >>> grads = {"w": jnp.ones((2, 3))}
      >>> clipped, state = clip.update(grads, clip.init(grads))
    """
    name = "clip_by_global_norm"
    if not isinstance(max_norm, jax.Array):
        max_norm = _max_norm(name, "max_norm", max_norm)

    def norm_dtype(tree: Any) -> Any:
        is_wide = any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(tree))
        return jnp.float64 if is_wide else jnp.float32

    def init(params: Any) -> ClipState:
        return ClipState(jnp.zeros((), norm_dtype(params)))

    def update(
        grads: Any, state: ClipState, params: Any = None, **_: Any
    ) -> tuple[Any, ClipState]:
        leaves = _Leaves(name, grads, grads)
        if not leaves.grads:
            return grads, state
        flat = [g.reshape(1, -1) for _, g in sorted(leaves.named(), key=lambda pair: pair[0])]
        dtype = norm_dtype(grads)
        sums = [optimizers.sum_of_squares.jax(g).astype(dtype) for g in flat]
        limit = leaves.scalar("max_norm", max_norm, dtype).reshape(1)
        norms, factors = optimizers.norm_and_factor.jax(jnp.stack(sums, -1), limit)
        factor = factors.reshape(())

        def run(g: Any, _: Any) -> Any:
            return (optimizers.clipped.jax(g, factor.astype(_arithmetic(g))),)

        (scaled,) = leaves.run(run, 1)
        return scaled, ClipState(norms.reshape(()))

    return Optimizer(init, update)


def apply_updates(params: Any, updates: Any) -> Any:
    """Returns p + update for each parameter, rounded once to the parameter's dtype.

    `optax.apply_updates` has the same bits, but for numbers below the normal range of float32, which
    XLA sets to zero on CPUs.

    Args:
      params: a tree of floating arrays.
      updates: a tree of the same structure; None leaves a parameter unchanged.

    Raises:
      TypeError: for an array that is not floating.

    Example:
      >>> apply_updates({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"]
      Array([2., 2.], dtype=float32)
    """

    def add(p: Any, update: Any) -> Any:
        if update is None or p is None:
            return p
        shape = optimizers.row_shape(p.shape)
        added = optimizers.parameter_plus_update.jax(p.reshape(shape), update.reshape(shape))
        return added.reshape(p.shape)

    return jax.tree.map(add, params, updates, is_leaf=lambda leaf: leaf is None)


class _Leaves:
    """The arrays of a tree of gradients, with the parameters that belong to them."""

    def __init__(self, function: str, grads: Any, params: Any) -> None:
        if params is None:
            raise ValueError(
                f"{function}: params is None, expected the parameters: update(grads, state, params)"
            )
        self.function = function
        self._given, self._tree = jax.tree_util.tree_flatten_with_path(grads)
        self._whole = params
        self.grads = [g for _, g in self._given]
        self.params = self.alike("params", params)
        for (path, g), p in zip(self._given, self.params, strict=True):
            self._check(path, g, p)

    def _check(self, path: Any, g: Any, p: Any) -> None:
        where = f"{self.function}: {_name(path) or 'the gradient'}"
        for kind, leaf in (("a parameter", p), ("a gradient", g)):
            if (dtype := getattr(leaf, "dtype", None)) is None or dtype.name not in FLOATING:
                found = type(leaf).__name__ if dtype is None else dtype.name
                raise TypeError(
                    f"{where} has {kind} of {found}, expected one of {', '.join(FLOATING)}"
                )
        if g.shape != p.shape:
            raise ValueError(
                f"{where} has a gradient of shape {list(g.shape)}, expected {list(p.shape)}"
            )
        if g.dtype == jnp.float64 and p.dtype != g.dtype:
            raise TypeError(
                f"{where} has a gradient of float64, expected one of the parameter's {p.dtype.name}"
            )

    def named(self) -> list[tuple[str, Any]]:
        return [(_name(path), g) for path, g in self._given]

    def alike(self, argument: str, tree: Any) -> list[Any]:
        """Returns the leaves of a tree that has the structure of the gradients."""
        try:
            return self._tree.flatten_up_to(tree)  # type: ignore[no-any-return]
        except (ValueError, TypeError) as error:
            paths = {_name(path) for path, _ in self._given}
            theirs = {_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}
            missing = ", ".join(map(repr, sorted(theirs - paths)))
            text = f"no gradient for {missing}" if missing else f"another structure: {error}"
            raise ValueError(
                f"{self.function}: {argument} has {text}, expected a gradient for each of its arrays"
            ) from error

    def flags(self, mask: Any) -> list[bool]:
        """Returns for each leaf whether the mask lets it decay."""
        if mask is None:
            return [True] * len(self.grads)
        tree = mask(self._whole) if callable(mask) else mask
        filled = jax.tree.map(lambda flag, part: jax.tree.map(lambda _: flag, part), tree, self._whole)
        return [bool(flag) for flag in self.alike("mask", filled)]

    def scalar(self, name: str, value: Any, dtype: Any) -> Any:
        found = jnp.asarray(value, dtype)
        if found.shape:
            raise ValueError(
                f"{self.function}: {name} has shape {list(found.shape)}, expected a number or an "
                "array without dimensions"
            )
        return found

    def number(self, name: str, value: Any, p: Any) -> Any:
        """Returns a number in the type of the arithmetic on p."""
        return self.scalar(name, value, _arithmetic(p))

    def run(self, function: Callable[..., Any], count: int, trees: Any = (), *others: Any) -> Any:
        """Calls function(p, g, *state, *others) for each leaf, all arrays seen as rows.

        Returns:
          A list of `count` trees.
        """
        state = [self.alike("the state", tree) for tree in trees]
        results = []
        for i, (p, g) in enumerate(zip(self.params, self.grads, strict=True)):
            shape = optimizers.row_shape(g.shape)
            arrays = [each.reshape(shape) for each in (p, g, *(leaves[i] for leaves in state))]
            found = function(*arrays, *(each[i] for each in others))
            results.append([each.reshape(g.shape) for each in found])
        columns = zip(*results, strict=True) if results else [()] * count
        return [self._tree.unflatten(column) for column in columns]


def _decay(leaves: _Leaves, value: Any, p: Any) -> Any:
    """Returns the weight decay; None for the number 0."""
    if not isinstance(value, jax.Array) and value == 0:
        return None
    return leaves.number("weight_decay", value, p)


def _check(function: str, checks: dict[str, Check], values: dict[str, Any]) -> None:
    for name, value in values.items():
        refuse_traced(function, name, value)
    check_each(checks, function, **values)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _at(value: Any, count: Any) -> Any:
    return value(count) if callable(value) else value


def _counted(count: Any) -> Any:
    """Returns count + 1; the largest int32 stays, where the corrections are 1 long since."""
    return jnp.where(count < _MOST, count + 1, count)


def _arithmetic(p: Any) -> Any:
    return jnp.float64 if p.dtype == jnp.float64 else jnp.float32


def _zeros(params: Any) -> Any:
    return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=_arithmetic(p)), params)
