"""Replaces layers of Flax NNX models by ops of bridge."""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bridge.jax._ops.nnx_norms import LayerNorm, RMSNorm
from bridge.jax._replaced.function_forms import (
    FunctionByBridge,
    activation_form,
    function_form,
    functions_of,
)
from bridge.jax._replaced.layer_forms import attention_form, layer_form
from bridge.jax._replaced.mlp_forms import mlp_form
from bridge.jax._replaced.norm_forms import has_rows_for_form, norm_form
from bridge.jax._replaced.settings import settings_of
from bridge.jax._replaced.trial import Form, arrays_of_call, unseen
from bridge.replaced import Replaced, names_read_by

_SCOPE = type(jax.named_scope("bridge"))
_WRAPPED = "its __call__ is wrapped, as by nnx.jit or nnx.remat: expected a plain method"
_ATTENTION = "attention_fn"
_BY_NAME = (
    "its {} calls {} by its name: keep the function in an attribute that replace can set, or call "
    "bridge.jax.{}"
)
# Functions that are replaced as attributes, and their ops.
_FUNCTIONS = {
    "gelu": ("activations", "bias_gelu"),
    "softmax_cross_entropy_with_integer_labels": ("losses", "cross_entropy"),
}


class _Change(NamedTuple):
    name: str
    form: Form
    owner: Any
    attribute: str | None


def replace(
    model: nnx.Module,
    *,
    norms: bool = True,
    mlps: bool = True,
    activations: bool = True,
    losses: bool = True,
    products: bool = True,
    attention: bool = True,
    unbiased: bool = False,
) -> Replaced:
    """Replaces the computation of layers in a model of Flax NNX by ops of bridge.

    No variable is changed, moved or renamed: `nnx.state`, checkpoints and optimizers stay valid.
    Each layer stays an instance of its class. Flax's own layers are known by their `__call__`. For
    others the op is not chosen by the layer's name: the layer's own `__call__` runs on random rows,
    and an op replaces it if it gives the same results. A layer that no op computes stays as it is.
    A replaced layer runs its original computation for a call with other arguments than the array,
    such as a mask.

    Call `replace` outside of `jax.jit` and other transformations. The model may be abstract, as
    from `nnx.eval_shape`.

    Args:
      model: any module; nothing is changed before all trials have ended.
      norms: RMS norms and layer norms, with weight or 1 + weight; Flax's batch and group norms.
      mlps: MLPs with the modules gate_proj, up_proj and down_proj (or gate, up and down, or w1, w3
        and w2, or wi_0, wi_1 and wo), or with gate_up_proj and down_proj.
      activations: the forms of GELU, the squared ReLU, SiLU, sigmoid, tanh, mish, hard swish,
        leaky ReLU and ELU, as attributes, elements of `nnx.List` and
        `nnx.Sequential`, or modules.
      losses: cross-entropies of logits and integer labels, as attributes with "loss" or
        "cross_entropy" in their name.
      products: Flax's Linear, LinearGeneral, Conv, ConvTranspose and Embed.
      attention: `attention_fn` of `nnx.MultiHeadAttention`.
      unbiased: batch norms update their running variance by torch's rule, with n − 1, not by
        Flax's.

    Returns:
      A record of the replaced layers and of the others, which can undo the replacement.

    Raises:
      TypeError: the model is no `nnx.Module`.
      ValueError: the call is traced, or the model's variables are.

    Example:
      >>> model = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.gelu)
      >>> print(replace(model))
      1 × linear
      1 × bias_gelu, tanh
    """
    _check(model)
    kinds = {"norms": norms, "mlps": mlps, "activations": activations, "losses": losses}
    kinds |= {"products": products, "attention": attention}
    wanted = [kind for kind, is_wanted in kinds.items() if is_wanted]
    replaced, changes = Replaced(), []
    known: dict[Any, Any] = {}
    modules = {id(layer): (path, layer) for path, layer in nnx.iter_modules(model)}
    with unseen():
        for path, layer in modules.values():
            name = ".".join(map(str, path))
            if isinstance(layer, ByBridge):
                replaced.before[name] = layer.form.name
            elif isinstance(layer, (LayerNorm, RMSNorm)):
                continue
            elif isinstance(found := _form_of(layer, wanted, known, unbiased), str):
                replaced.left[name] = found
            elif found is not None:
                changes.append(_Change(name, found, layer, None))
            else:
                changes += _functions(replaced, name, layer, wanted, known)
                if "attention" in wanted:
                    changes += _attention(replaced, name, layer)
                _names_functions(replaced, name, layer, wanted)
    try:
        for change in changes:
            _apply(replaced, change)
    except BaseException:
        replaced.undo()
        raise
    return replaced


def _check(model: Any) -> None:
    if not isinstance(model, nnx.Module):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise TypeError(f"replace: model has type {kind}, expected a flax.nnx.Module")
    values = [jnp.zeros(()), *jax.tree.leaves(nnx.state(model))]
    if any(isinstance(value, jax.core.Tracer) for value in values):
        raise ValueError(
            "replace: the call is inside of jit, grad or another transformation, expected it to be "
            "outside: replace the model's layers once, before them"
        )


def _form_of(
    layer: Any, wanted: list[str], known: dict[Any, Any], unbiased: bool
) -> Form | str | None:
    """Returns the form of a layer, or the reason why it has none, or None for another layer."""
    if (found := layer_form(layer, wanted, unbiased)) is not None:
        return found
    key = _key(layer)
    if key not in known:
        known[key] = _find(layer, wanted)
    return known[key]  # type: ignore[no-any-return]


def _find(layer: Any, wanted: list[str]) -> Form | str | None:
    for kind, find in (("norms", norm_form), ("mlps", mlp_form), ("activations", activation_form)):
        if kind not in wanted or (found := find(layer)) is None:
            continue
        return found if _scopes_of(type(layer)) is not None else _WRAPPED
    return None


def _scopes_of(kind: type) -> list[Any] | None:
    """Returns the decorations of a class's `__call__` by `jax.named_scope`, from outside.

    None means another wrapper.
    """
    call = inspect.getattr_static(kind, "__call__", None)
    scopes = []
    while hasattr(call, "__wrapped__"):
        scope = inspect.getclosurevars(call).nonlocals.get("self")  # type: ignore[arg-type]
        if not isinstance(scope, _SCOPE):
            return None
        scopes.append(scope)
        call = call.__wrapped__
    return scopes if isinstance(call, types.FunctionType) else None


def _key(layer: Any) -> Any:
    """Returns the key of a layer: layers of one class, shape and config are tried only once."""
    definition, state = nnx.split(layer)
    leaves = jax.tree.leaves(state)
    kinds = tuple((getattr(x, "shape", ()), str(getattr(x, "dtype", type(x)))) for x in leaves)
    try:
        hash(definition)
    except TypeError:
        return id(layer)
    return definition, kinds


def _functions(
    replaced: Replaced, name: str, layer: Any, wanted: list[str], known: dict[Any, Any]
) -> Iterator[_Change]:
    for kind, attribute, function in functions_of(layer, wanted):
        path = f"{name}.{attribute}" if name else attribute
        if isinstance(function, FunctionByBridge):
            replaced.before[path] = function.form.name
            continue
        key = kind, id(function)
        if key not in known:
            known[key] = function_form(kind, function)
        if not isinstance(found := known[key], str):
            yield _Change(path, found, layer, attribute)
        elif kind == "losses":  # most activations have no op, so there is nothing to report
            replaced.left[path] = found


def _attention(replaced: Replaced, name: str, layer: Any) -> Iterator[_Change]:
    function = getattr(layer, _ATTENTION, None)
    if function is None or not isinstance(layer, nnx.MultiHeadAttention):
        return
    path = f"{name}.{_ATTENTION}" if name else _ATTENTION
    if isinstance(function, FunctionByBridge):
        replaced.before[path] = function.form.name
    elif isinstance(found := attention_form(function), str):
        replaced.left[path] = found
    elif found is not None:
        yield _Change(path, found, layer, _ATTENTION)


def _names_functions(replaced: Replaced, name: str, layer: Any, wanted: list[str]) -> None:
    """Reports functions that a user's module calls by name: nothing can replace those."""
    if type(layer).__module__.startswith("flax."):
        return
    for method, code in inspect.getmembers(type(layer), inspect.isfunction):
        if code.__module__.startswith("flax.") or method == "__init__":
            continue
        for function in set(names_read_by(code)) & _FUNCTIONS.keys():
            kind, op = _FUNCTIONS[function]
            if kind in wanted and not hasattr(layer, function):
                replaced.left[name] = _BY_NAME.format(method, function, op)


def _apply(replaced: Replaced, change: _Change) -> None:
    name, form, owner, attribute = change
    if attribute is None:
        original: Any = type(owner)
        # A subclass must be a pytree exactly if the original is one.
        is_pytree = not jax.tree_util.all_leaves([owner])
        settings = None if form.is_call else settings_of(owner, form.parts)
        to = _class_by(original, form, is_pytree, settings)
        _set_class(owner, to)
        replaced._undo.append(functools.partial(_undo_class, name, owner, to, original))
    else:
        function = getattr(owner, attribute)
        to = FunctionByBridge(function, form)
        setattr(owner, attribute, to)
        replaced._undo.append(functools.partial(_undo_function, name, owner, attribute, to))
    replaced.done[name] = form.name


def _set_class(layer: Any, to: type) -> None:
    # A module's own __setattr__ would record the class as one of its attributes.
    object.__setattr__(layer, "__class__", to)


def _undo_class(name: str, layer: Any, to: type, original: type) -> None:
    if type(layer) is not to:
        raise RuntimeError(
            f"{name or 'the model'} has changed its class to {type(layer).__name__} since replace: "
            "expected the class that replace gave it"
        )
    _set_class(layer, original)


def _undo_function(name: str, owner: Any, attribute: str, to: FunctionByBridge) -> None:
    if getattr(owner, attribute) != to:  # nnx.jit sets an equal one
        raise RuntimeError(f"{name} has been set since replace: expected the function that it set")
    setattr(owner, attribute, to.original)


class ByBridge:
    """A layer whose call is a form; its class is derived from the original and this one."""

    __slots__ = ()  # an object keeps its class's layout
    replaces: Any
    form: Form
    settings: Any


def _call_of(original: Any, form: Form, settings: Any) -> Callable[..., Any]:
    @functools.wraps(original.__call__)
    def __call__(self: Any, *given: Any, **named: Any) -> Any:
        arrays = arrays_of_call(original.__call__, 1, form.count, given, named)
        if (
            arrays is None
            or not has_rows_for_form(self, arrays[0])
            or settings_of(self, form.parts) != settings
        ):
            return original.__call__(self, *given, **named)
        return form.run(self, *arrays)

    for scope in reversed(_scopes_of(original) or []):
        __call__ = scope(__call__)
    return __call__


def _method_of(original: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    own = getattr(original, name)

    @functools.wraps(own)
    def method(self: Any, *given: Any, **named: Any) -> Any:
        found = function(self, *given, **named)
        return own(self, *given, **named) if found is NotImplemented else found

    return method


@functools.cache
def _class_by(original: Any, form: Form, is_pytree: bool, settings: Any) -> Any:
    own = {"replaces": original, "form": form, "is_pytree": is_pytree, "settings": settings}
    if form.is_call:
        call = _method_of(original, "__call__", form.run)
        own |= {name: _method_of(original, name, function) for name, function in form.methods}
    else:
        call = _call_of(original, form, settings)
    own |= {"__module__": original.__module__, "__call__": call}
    kind: Any = type(original)
    return _kind_by(kind)(original.__name__, (original, ByBridge), own, pytree=is_pytree)


@functools.cache
def _kind_by(original: type) -> Any:
    """Returns a metaclass whose classes pickle as the original class and the form."""
    kind = type(original.__name__, (original,), {})
    copyreg.pickle(kind, _reduced)  # type: ignore[arg-type]
    return kind


def _reduced(made: Any) -> tuple[Any, ...]:
    return _class_by, (made.replaces, made.form, made.is_pytree, made.settings)
