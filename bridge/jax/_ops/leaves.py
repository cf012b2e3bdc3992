"""A tree of gradients, leaf by leaf beside the parameters and an optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bridge.catalogue import optimizers
from bridge.jax._adapter.arguments import as_flag
from bridge.jax._adapter.avals import split_as, unsplit
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import number_of_float32


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


class Leaves:
    """The arrays of a tree of gradients, with the parameters that belong to them."""

    def __init__(self, function: str, grads: Any, params: Any) -> None:
        if params is None:
            raise ValueError(
                f"{function}: params is None, expected the parameters: update(grads, state, params)"
            )
        self.function = function
        self._tree: Any
        self._given, self._tree = jax.tree_util.tree_flatten_with_path(grads)
        self._whole = params
        self.grads = [g for _, g in self._given]
        self.params = self.alike("params", params)
        for (path, g), p in zip(self._given, self.params, strict=True):
            self._check(path, g, p)

    def _check(self, path: Any, g: Any, p: Any) -> None:
        where = f"{self.function}: {_name(path) or 'the gradient'}"
        for kind, leaf in (("a gradient", g), ("a parameter", p)):
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

    def _check_state(self, path: Any, p: Any, state: Any) -> None:
        found = f"{state.dtype.name} {list(state.shape)}"
        expected = f"{jnp.dtype(arithmetic_of(p)).name} {list(p.shape)}"
        if found != expected:
            raise ValueError(
                f"{self.function}: {_name(path) or 'the parameter'} has a state {found}, expected "
                f"{expected}"
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
                f"{self.function}: {argument} has {text}, expected one gradient for each array"
            ) from error

    def flags(self, mask: Any) -> list[bool]:
        """Returns for each leaf whether the mask lets it decay."""
        if mask is None:
            return [True] * len(self.grads)
        tree = mask(self._whole) if callable(mask) else mask
        try:
            filled = jax.tree.map(
                lambda flag, part: jax.tree.map(lambda _: flag, part), tree, self._whole
            )
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self.function}: mask has another structure than the parameters: {error}"
            ) from error
        return [as_flag(self.function, "mask", flag) for flag in self.alike("mask", filled)]

    def scalar(self, name: str, value: Any, dtype: Any) -> Any:
        if not isinstance(value, (jax.Array, np.ndarray)):
            number_of_float32(self.function, name, value)
        found = jnp.asarray(value, jax.dtypes.canonicalize_dtype(dtype))
        if found.shape:
            raise ValueError(
                f"{self.function}: {name} has shape {list(found.shape)}, expected a number or an "
                "array without dimensions"
            )
        return found

    def number(self, name: str, value: Any, p: Any) -> Any:
        """Returns a number in the type of the arithmetic on p."""
        return self.scalar(name, value, arithmetic_of(p))

    def run(self, function: Callable[..., Any], count: int, trees: Any = (), *others: Any) -> Any:
        """Calls function(p, g, *state, *others) for each leaf, all arrays seen as rows.

        Returns:
          A list of `count` trees.
        """
        state = [self.alike("the state", tree) for tree in trees]
        for (path, _), p, *own in zip(self._given, self.params, *state, strict=True):
            for each in own:
                self._check_state(path, p, each)
        results = []
        for i, (p, g) in enumerate(zip(self.params, self.grads, strict=True)):
            shape = optimizers.row_shape(g.shape)
            arrays = [reshaped(each, shape) for each in (p, g, *(leaves[i] for leaves in state))]
            found = function(*arrays, *(each[i] for each in others))
            aval = jax.typeof(p)
            results.append([split_as(each.reshape(g.shape), aval) for each in found])
        columns = zip(*results, strict=True) if results else [()] * count
        return [self._tree.unflatten(column) for column in columns]


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """Returns x in another shape, whose leading dimensions may be the same.

    Under a mesh with explicit axes the other dimensions are gathered first.
    """
    same = 0
    while same < min(x.ndim, len(shape)) and x.shape[same] == shape[same]:
        same += 1
    return x if x.shape == shape else unsplit(x, slice(same, None)).reshape(shape)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def arithmetic_of(p: Any) -> Any:
    # JAX converts an array of NumPy to float32, unless x64 is on.
    is_wide = getattr(p, "dtype", None) == jnp.float64  # an update refuses leaves without a dtype
    return jax.dtypes.canonicalize_dtype(jnp.float64 if is_wide else jnp.float32)
