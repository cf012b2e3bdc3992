"""Trees of tensors: one registry for both frameworks.

Inner nodes are the nodes of JAX (dicts, lists, tuples, namedtuples, `OrderedDict`, `defaultdict`,
`None`, and every class registered with `jax.tree_util`), the nodes of torch
(`torch.utils._pytree`), dataclasses, and subclasses of dict and of `UserDict`. Dicts keep their
order and may have any keys. Everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from bridge._private.torch import pytree_nodes

Leaf = Callable[[Any], Any]


class At(Exception):
    """An error at a leaf. The path grows at each level while the exception propagates."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error
        self.path = ""


def tree_map(function: Leaf, tree: Any, errors: type[Exception]) -> Any:
    """Returns a tree of the same structure, each leaf replaced by `function(leaf)`.

    Raises:
        At: `function` raised one of `errors`; it has the path. Other exceptions pass through.
    """
    kind = type(tree)
    rebuild = _BUILTIN.get(kind)
    if rebuild is not None:
        return rebuild(function, tree, errors)
    if tree is None:
        return None
    children = None if kind in _LEAF_TYPES else _children(tree)
    if children is None:
        try:
            return function(tree)
        except errors as error:
            raise At(error) from error
    names, values, build = children
    return build(_each(function, zip(names, values, strict=True), errors))


def _each(function: Leaf, named: Iterable[tuple[str, Any]], errors: type[Exception]) -> list[Any]:
    results = []
    for name, value in named:
        try:
            results.append(tree_map(function, value, errors))
        except At as at:
            at.path = name + at.path
            raise
    return results


# The two loops for the most common nodes call the function themselves for known leaf types: a call
# of tree_map would take a tenth of the time of a conversion.


def _map_dict(function: Leaf, tree: dict[Any, Any], errors: type[Exception]) -> Any:
    result: dict[Any, Any] = {}
    key = None
    try:
        for key, value in tree.items():
            result[key] = (
                function(value) if type(value) in _LEAF_TYPES else tree_map(function, value, errors)
            )
    except (At, errors) as error:
        raise _at(error, f"[{key!r}]") from None
    if type(tree) is OrderedDict:
        ordered = OrderedDict(result)
        vars(ordered).update(vars(tree))  # a module's state dict has its versions there
        return ordered
    if type(tree) is defaultdict:
        return defaultdict(tree.default_factory, result)
    return result


def _map_sequence(function: Leaf, tree: Any, errors: type[Exception]) -> Any:
    result: list[Any] = []
    try:
        for value in tree:
            result.append(
                function(value) if type(value) in _LEAF_TYPES else tree_map(function, value, errors)
            )
    except (At, errors) as error:
        raise _at(error, f"[{len(result)}]") from None
    return result if type(tree) is list else tuple(result)


def _at(error: Exception, name: str) -> At:
    at = error if isinstance(error, At) else At(error)
    at.path = name + at.path
    return at


_BUILTIN: dict[type, Callable[[Leaf, Any, type[Exception]], Any]] = {
    dict: _map_dict,
    OrderedDict: _map_dict,
    defaultdict: _map_dict,
    list: _map_sequence,
    tuple: _map_sequence,
}

# Values of these types are always leaves, so no registry is asked.
_LEAF_TYPES: set[type] = {int, float, complex, bool, str, bytes}


def leaf_type(kind: type) -> None:
    """Declares that instances of `kind` are leaves, which makes them quick to recognise."""
    _LEAF_TYPES.add(kind)


Children = tuple[list[str], list[Any], Callable[[list[Any]], Any]]


def _children(tree: Any) -> Children | None:
    """Returns names and values of a node's children, and how to rebuild it; None for a leaf."""
    kind = type(tree)
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        names = [f".{name}" for name in kind._fields]
        return names, list(tree), lambda new: _with_places(tree, new)
    for registry in (_children_by_jax, _children_by_torch):
        found = registry(tree)
        if found is not None:
            return found
    if isinstance(tree, tuple) and hasattr(kind, "n_sequence_fields"):  # torch.return_types
        return [f"[{i}]" for i in range(len(tree))], list(tree), kind
    if isinstance(tree, dict | UserDict):
        keys = list(tree)
        return (
            [f"[{key!r}]" for key in keys],
            [tree[key] for key in keys],
            lambda new: _with_items(tree, dict(zip(keys, new, strict=True))),
        )
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if hasattr(tree, field.name)]
        return (
            [f".{name}" for name in names],
            [getattr(tree, name) for name in names],
            lambda new: _with_fields(tree, dict(zip(names, new, strict=True))),
        )
    return None


def _children_by_jax(tree: Any) -> Children | None:
    jax = sys.modules.get("jax")
    if jax is None:
        return None
    entries, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    names = [jax.tree_util.keystr(path) for path, _ in entries]
    return names, [value for _, value in entries], structure.unflatten


def _children_by_torch(tree: Any) -> Children | None:
    node = pytree_nodes().get(type(tree))
    if node is None:
        return None
    values, context = node.flatten_fn(tree)
    values = list(values)
    names = [f"[{i}]" for i in range(len(values))]
    return names, values, lambda new: node.unflatten_fn(new, context)


def _with_places(tree: Any, values: list[Any]) -> Any:
    # A subclass may have attributes, and a constructor of its own; `_make` bypasses that
    # constructor.
    new = type(tree)._make(values)
    if hasattr(tree, "__dict__"):
        vars(new).update(vars(tree))
    return new


def _with_items(tree: Any, items: dict[Any, Any]) -> Any:
    new = _dict_like(tree)
    if getattr(tree, "__dict__", None) is tree:  # a dict whose attributes are its items
        new.__dict__ = new
    attributes = getattr(new, "__dict__", {})
    for key, value in items.items():
        # If an attribute is also an item, as in a ModelOutput of transformers, update both.
        if key in attributes and attributes[key] is tree[key]:
            attributes[key] = value
        new[key] = value
    return new


def _dict_like(tree: Any) -> Any:
    """Returns a copy with all attributes, unless the class defines its own copy.

    `copy.copy` calls the constructor of a subclass of OrderedDict without arguments, and drops the
    attributes of a subclass of defaultdict.
    """
    kind: Any = type(tree)
    if isinstance(tree, defaultdict) and kind.__copy__ is defaultdict.__copy__:
        new = kind.__new__(kind)
        new.default_factory = tree.default_factory
        dict.update(new, tree)
    elif kind.__reduce__ is OrderedDict.__reduce__ and not hasattr(kind, "__copy__"):
        new = kind.__new__(kind)
        for key in tree:
            OrderedDict.__setitem__(new, key, tree[key])
    else:
        return copy.copy(tree)
    state = tree.__getstate__()
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(new, name, value)
    return new


def _with_fields(tree: Any, fields: dict[str, Any]) -> Any:
    new = copy.copy(tree)
    for name, value in fields.items():
        object.__setattr__(new, name, value)  # a frozen dataclass refuses the plain way
    return new
