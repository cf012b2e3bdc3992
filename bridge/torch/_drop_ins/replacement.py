"""Modules of torch.nn in any model, computed by bridge."""

from __future__ import annotations

from typing import Any

from torch import nn

from bridge.replaced import Replaced
from bridge.torch._drop_ins.huggingface.models import ByBridge, change_class, class_by
from bridge.torch._drop_ins.module_forms import module_form_of


def replace(model: nn.Module) -> Replaced:
    """Replaces the computation of modules of torch.nn in a model by ops of bridge.

    The modules are linear layers, embeddings, convolutions, transposed convolutions, batch, layer,
    RMS and group norms, pools, `Upsample`, `MultiheadAttention`, GELU, SiLU, sigmoid, tanh, mish,
    hard swish, leaky ReLU, ELU, softmax and its logarithm, and the cross-entropy, alone or in any
    tree of modules. No parameter is changed, moved or renamed, so state dicts and optimizers stay
    valid. Each module stays an instance of its class. Call `replace` before adding hooks, FSDP or
    torch.compile. Functions that a `forward` calls itself stay as they are.

    For models of transformers, `bridge.torch.huggingface.replace` finds more layers.

    Args:
      model: any module.

    Returns:
      A record of the replaced modules in `done`, and in `left` the reason for each module of
      torch.nn that has no form. Modules that only move or select numbers, such as `ReLU`, are in
      neither. `undo()` restores the model.

    Raises:
      TypeError: the model is no `torch.nn.Module`.

    Example:
      >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
      >>> print(replace(model))
      1 × conv2d
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"replace: model has type {type(model).__name__}, expected a torch.nn.Module"
        )
    replaced = Replaced()
    for name, layer in model.named_modules():
        if isinstance(layer, ByBridge):
            replaced.before[name] = layer.form.name
            continue
        form = module_form_of(layer)
        if isinstance(form, str):
            replaced.left[name] = form
        elif form is not None:
            original: Any = type(layer)
            change_class(replaced, name, layer, class_by(original, form), form.name)
    for name, op in {**replaced.before, **replaced.done}.items():
        if op == "attention":  # it computes with the weights of this part
            replaced.left.pop(f"{name}.out_proj" if name else "out_proj", None)
    return replaced
