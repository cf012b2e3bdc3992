"""Splits JAX modules into named arrays, and joins them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from bridge.ops.scalars import told_apart


class Part(NamedTuple):
    """One array of a module, as torch holds it.

    Attributes:
      name: its path in the module, `layers.0.kernel`.
      value: the array. Unsigned integers are signed ones of the same bits, because much of torch,
        such as its process groups, supports no unsigned dtype but uint8.
      is_parameter: the array is trained.
      dtype: the array's dtype in the module.
      key: the implementation of a random key, if the numbers are one; else None.
    """

    name: str
    value: Any
    is_parameter: bool
    dtype: Any
    key: Any


class Parts:
    """A module as a list of parts, parameters first, and the module's structure without them.

    Immutable, so that copies of a torch module share it.
    """

    def __init__(self, named: list[tuple[str, Any, bool]]) -> None:
        self.parts = [_part(*entry) for entry in named]

    def __getstate__(self) -> dict[str, Any]:
        """Drops the initial values: the torch module has the current ones."""
        return {**vars(self), "parts": [part._replace(value=None) for part in self.parts]}

    def leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """Returns the arrays in the module's own dtypes; random keys get their type back."""
        pairs = zip(self.parts, arrays, strict=True)
        return [_restored(part, array) for part, array in pairs]

    def join(self, training: bool, leaves: Sequence[Any]) -> Any:
        """Returns the module with these leaves, in training mode or not."""
        raise NotImplementedError

    def after(self, module: Any, leaves: Sequence[Any]) -> dict[int, Any]:
        """Returns the arrays that the module has replaced, by the numbers of their leaves."""
        raise NotImplementedError


class NnxParts(Parts):
    """The parts of a Flax NNX module, or a pytree of them; each `nnx.Param` is a parameter."""

    def __init__(self, module: Any) -> None:
        from flax import nnx

        self._graphs = {}
        settings = {}
        for training in (False, True):
            copy = nnx.clone(module)
            for part in _nodes(copy, nnx.Module):
                part.train() if training else part.eval()
            self._graphs[training] = nnx.graphdef(copy)
            settings[training] = _settings(copy)
        # The module itself may change its mode as it runs, but nothing else.
        self._settings = dict(settings[False].items() & settings[True].items())
        _, *states = nnx.split(module, nnx.Param, ...)
        flat, self._trees = zip(*map(jax.tree_util.tree_flatten_with_path, states), strict=True)
        self._paths = [path for entries in flat for path, _ in entries]
        for path in () if isinstance(module, nnx.Pytree) else self._paths:
            if not _is_of_variable(path):
                raise TypeError(
                    f"JaxModule: module has type {type(module).__name__}, with modules of Flax "
                    f"NNX and the array {_name(path)}, expected nnx.Param for an array that is "
                    "trained and another nnx.Variable for one that is not"
                )
        super().__init__(
            [
                (_name(path), leaf, i == 0 and _is_inexact(leaf))
                for i, entries in enumerate(flat)
                for path, leaf in entries
            ]
        )

    def join(self, training: bool, leaves: Sequence[Any]) -> Any:
        from flax import nnx

        remaining = iter(leaves)
        states = [
            tree.unflatten([next(remaining) for _ in range(tree.num_leaves)])
            for tree in self._trees
        ]
        return nnx.merge(self._graphs[training], *states)

    def after(self, module: Any, leaves: Sequence[Any]) -> dict[int, Any]:
        from flax import nnx

        for path, (kind, value) in _settings(module).items():
            before = self._settings.get(path, (kind, value))
            if before != (kind, value):
                raise TypeError(
                    f"JaxModule: the module has changed {'.'.join(map(str, path))} from "
                    f"{before[1]!r} to {value!r} as it ran, which the next call would not see; "
                    "use an nnx.Variable for values that change"
                )
        # Variables that the module has added as it ran (sown intermediates) are ignored.
        now = dict(jax.tree_util.tree_flatten_with_path(nnx.state(module))[0])
        return {
            i: _numbers(now[path])
            for i, (path, old) in enumerate(zip(self._paths, leaves, strict=True))
            if now.get(path, old) is not old
        }


class _Hole:
    """A placeholder for an array."""


class TreeParts(Parts):
    """The parts of a pytree: inexact arrays are parameters; leaves other than arrays stay in it."""

    def __init__(self, module: Any) -> None:
        self._templates: dict[bool, Any] = {}
        for training in (False, True):
            flat, self._tree = jax.tree_util.tree_flatten_with_path(_in_mode(module, training))
            self._templates[training] = [None if _is_array(leaf) else leaf for _, leaf in flat]
        arrays = [(i, path, leaf) for i, (path, leaf) in enumerate(flat) if _is_array(leaf)]
        # Parameters come first; otherwise the order is the tree's.
        arrays.sort(key=lambda entry: not _is_inexact(entry[2]))
        self._order = [i for i, _, _ in arrays]
        super().__init__([(_name(path), leaf, _is_inexact(leaf)) for _, path, leaf in arrays])

    def __getstate__(self) -> dict[str, Any]:
        """Stores templates as trees: a flattened tree does not pickle in general."""
        state = super().__getstate__()
        del state["_tree"]
        state["_templates"] = {
            training: self.join(training, [_Hole()] * len(self._order))
            for training in self._templates
        }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _templates={})
        for training, tree in state["_templates"].items():
            leaves, self._tree = jax.tree_util.tree_flatten(tree)
            self._templates[training] = [
                None if isinstance(leaf, _Hole) else leaf for leaf in leaves
            ]

    def join(self, training: bool, leaves: Sequence[Any]) -> Any:
        values = list(self._templates[training])
        for i, leaf in zip(self._order, leaves, strict=True):
            values[i] = leaf
        return jax.tree_util.tree_unflatten(self._tree, values)

    def after(self, module: Any, leaves: Sequence[Any]) -> dict[int, Any]:
        return {}


def split(module: Any) -> Parts:
    """Splits a module of Flax NNX or Equinox, or any other pytree."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and _nodes(module, nnx.Pytree):
        return NnxParts(module)
    return TreeParts(module)


def _nodes(tree: Any, kind: type) -> list[Any]:
    """Returns the nodes of this type that are in no other."""
    nodes = jax.tree_util.tree_leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def _settings(module: Any) -> dict[Any, tuple[Any, Any]]:
    """Returns numbers and strings among the attributes: by path, a key as in caches and a value."""
    from flax import nnx

    plain = (bool, int, float, complex, str)
    nodes = nnx.iter_graph(module)
    return {path: (told_apart(x), x) for path, x in nodes if type(x) in plain}


def _in_mode(module: Any, training: bool) -> Any:
    equinox = sys.modules.get("equinox")
    if equinox is None or not _nodes(module, equinox.Module):
        return module
    return equinox.nn.inference_mode(module, value=not training)


def _part(name: str, leaf: Any, is_parameter: bool) -> Part:
    leaf = jnp.asarray(leaf)
    key = jax.random.key_impl(leaf) if _is_key(leaf) else None
    numbers = leaf if key is None else jax.random.key_data(leaf)
    return Part(name, _numbers(leaf), is_parameter and key is None, numbers.dtype, key)


def _numbers(leaf: Any) -> Any:
    """Returns a leaf as torch holds it: keys as numbers, unsigned integers as signed."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if leaf.dtype.kind == "u" and leaf.dtype.itemsize > 1:
        leaf = lax.bitcast_convert_type(leaf, f"int{8 * leaf.dtype.itemsize}")
    return leaf


def _restored(part: Part, array: Any) -> Any:
    """Inverts `_numbers`."""
    if part.dtype.kind == "u" and array.dtype != part.dtype:
        array = lax.bitcast_convert_type(array, part.dtype)
    return array if part.key is None else jax.random.wrap_key_data(array, impl=part.key)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: Any) -> str:
    """Returns `layers.0.kernel`, without the step from a variable of NNX to its value."""
    if len(path) > 1 and _is_of_variable(path):
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def _is_of_variable(path: Any) -> bool:
    """True if the path's last step is from a variable of NNX to its value."""
    return str(path[-1]) == ".value"


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _is_inexact(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, np.inexact)
