"""Replaces layers of Hugging Face models by ops of bridge."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from torch import nn

from bridge.replaced import Replaced, names_read_by
from bridge.torch._drop_ins.huggingface import layers as layers
from bridge.torch._drop_ins.huggingface.attention import use_attention
from bridge.torch._drop_ins.huggingface.forms import form_of
from bridge.torch._drop_ins.huggingface.linear_forms import linear_form_of
from bridge.torch._drop_ins.huggingface.linear_loss import with_linear_loss
from bridge.torch._drop_ins.huggingface.rotary_forms import rotary_of
from bridge.torch._drop_ins.huggingface.trial import Form, argument_names


def replace(
    model: nn.Module,
    *,
    norms: bool = True,
    mlps: bool = True,
    activations: bool = True,
    rotary: bool = True,
    loss: bool = True,
    linear_loss: bool = False,
    linear: bool = False,
    attention: bool = False,
) -> Replaced:
    """Replaces the computation of layers in a model of transformers by ops of bridge.

    No parameter is changed, moved or renamed; each layer stays an instance of its class. The op is
    not chosen by the layer's name: the layer's own `forward` runs on random rows, and an op
    replaces it if it gives the same results. So new models, and models that are not of
    transformers, work too, and a layer that no op computes stays as it is. Call `replace` before
    adding hooks, FSDP or torch.compile.

    Args:
      model: of transformers' `PreTrainedModel`, or any module.
      norms: RMS norms and layer norms, with weight or 1 + weight, and RMS norms with a gate.
      mlps: MLPs with gate_proj, up_proj and down_proj (or w1, w3, w2 or wi_0, wi_1, wo), or with
        gate_up_proj and down_proj.
      activations: the forms of GELU and the squared ReLU, as layers of their own.
      rotary: `apply_rotary_pos_emb` in the Python modules of the model's classes; other models of
        these classes in this process call it too.
      loss: the loss of predicting the next or the masked token from logits.
      linear_loss: in training with labels, by keyword or position, the loss comes from the hidden
        states by `linear_cross_entropy`, and `logits` of the output is None.
      linear: `torch.nn.Linear`, `torch.nn.Embedding` and transformers' `Conv1D`, by `linear` and
        `embedding`. A class with another `forward` and a class with matrices of its own stay.
      attention: the attention function of the models' configs, by `attention`: grouped queries,
        windows, softcaps and sinks. A call with dropout of probabilities, with a mask that is not
        bool or with `output_attentions` then raises an error.

    Returns:
      A record of the replaced layers and of the others, which can undo the replacement.

    Raises:
      ValueError: `linear_loss`, and the model's head is not a plain linear layer, its weights are
        on the meta device, or its loss is another one.

    Example:
      >>> model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")  # doctest: +SKIP
      >>> print(bridge.torch.huggingface.replace(model))  # doctest: +SKIP
    """
    # Raises before anything is changed.
    changes = with_linear_loss(model, linear) if linear_loss else []
    replaced = Replaced()
    kinds = {"norms": norms, "mlps": mlps, "activations": activations}
    wanted = [kind for kind, is_wanted in kinds.items() if is_wanted]
    classes = {type(layer).__module__ for layer in model.modules()}
    forms: dict[Any, Form | str | None] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ByBridge):
            replaced.before[name] = layer.form.name
            continue
        key = _kind_of(layer)
        if key not in forms:
            forms[key] = form_of(layer, wanted)
        form = forms[key]
        # A reason depends on the weights themselves, which the key does not have.
        if form is None and linear and not any(layer is changed for _, changed, _ in changes):
            form = linear_form_of(layer)
        if isinstance(form, str):
            replaced.left[name] = form
        elif form is not None:
            original: Any = type(layer)
            change_class(replaced, name, layer, class_by(original, form), form.name)
    if rotary:
        for module, function, found in rotary_of(classes):
            name = f"{module.__name__}.{function.__name__}"
            if isinstance(found, str):
                replaced.left[name] = found
            elif not hasattr(function, "__wrapped__"):
                _set(replaced, module, function.__name__, functools.wraps(function)(found))
                replaced.done[name] = "rotary"
    if attention:
        use_attention(model, replaced)
    for name, module, to in changes:
        change_class(replaced, name, module, to, "linear_cross_entropy")
    if loss:
        of_model = getattr(model, "loss_function", None)
        name, home = (getattr(of_model, n, "") for n in ("__name__", "__module__"))
        if home == "transformers.loss.loss_utils" and name in (
            "ForCausalLMLoss",
            "ForMaskedLMLoss",
        ):
            if _reads(type(model), "loss_function"):
                _set(replaced, model, "_loss_function", getattr(layers, name))
                replaced.done["loss_function"] = "cross_entropy"
            else:
                replaced.left["loss_function"] = "the model's forward does not call it"
    return replaced


def _reads(model: type, attribute: str) -> bool:
    """True if a method of the classes derived from `PreTrainedModel` names the attribute."""
    for kind in model.__mro__:
        if kind.__name__ == "PreTrainedModel":
            break
        for method in vars(kind).values():
            if attribute in names_read_by(method):
                return True
    return False


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _kind_of(layer: nn.Module) -> tuple[Any, ...]:
    """Returns the key of a layer: layers of one class, shape and config are tried only once."""
    shapes = [(n, p.shape) for n, p in layer.named_parameters(recurse=False)]
    own = [
        (name, value if isinstance(value, (float, int, str)) else id(value))
        for name, value in sorted(vars(layer).items())
        if name not in _OF_EVERY_MODULE
    ]
    parts = [(name, _kind_of(part)) for name, part in layer.named_children()]
    return type(layer), *shapes, *own, *parts


def _set(replaced: Replaced, owner: Any, name: str, value: Any) -> None:
    if name in vars(owner):
        replaced._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
    else:
        replaced._undo.append(functools.partial(delattr, owner, name))
    setattr(owner, name, value)


def change_class(replaced: Replaced, name: str, layer: Any, to: type, what: str) -> None:
    """Gives a layer another class, and notes it in the record."""
    original = type(layer)
    layer.__class__ = to
    replaced.done[name] = what

    def undo() -> None:
        if type(layer) is not to:
            raise RuntimeError(
                f"{name or 'the model'} has changed its class to {type(layer).__name__} since "
                "replace, as FSDP does: expected the class that replace gave it"
            )
        layer.__class__ = original

    replaced._undo.append(undo)


class ByBridge:
    """A layer whose forward is a form; its class is derived from this one and the original."""

    replaces: type
    form: Any
    argument_names: tuple[str, ...]

    def forward(self, *given: Any, **named: Any) -> Any:
        rest = self.argument_names[len(given) :]
        others = [*itertools.takewhile(named.__contains__, rest)]
        return self.form.forward(self, *given, *[named.pop(name) for name in others], **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies the layer by its original class and the form."""
        return _new, (self.replaces, self.form), vars(self)


def _new(original: type, form: Form) -> Any:
    made = class_by(original, form)
    return made.__new__(made)


@functools.cache
def class_by(original: Any, form: Form) -> Any:
    """Returns the class derived from the original, with a form as its forward."""
    own = {"replaces": original, "form": form, "__module__": original.__module__}
    if form.inner is not None:
        own["forward"] = original.forward
        return type(original.__name__, (ByBridge, original, form.inner), own)
    own["argument_names"] = tuple(argument_names(original.forward) or ())
    return type(original.__name__, (ByBridge, original), own)
