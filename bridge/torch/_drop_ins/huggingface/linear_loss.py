"""Causal language models of Hugging Face with a loss that is computed without their logits."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from bridge.torch._drop_ins.huggingface.layers import following, on_device
from bridge.torch._drop_ins.huggingface.trial import stand_in
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropy
from bridge.torch._ops.product_modules import Linear


class HeadWithLoss(nn.Linear):
    """A head that returns the loss of its logits if it gets labels.

    The loss is computed in the head's own call, because FSDP and other tools that work by hooks
    provide the weights of a separately wrapped head only there.
    """

    def forward(self, input: Tensor, labels: Tensor | None = None, **options: Any) -> Tensor:
        if labels is None:
            return super().forward(input)
        return linear_cross_entropy(input, self.weight, labels, bias=self.bias, **options)


class HeadOnBridge(HeadWithLoss, Linear):
    """A head with a loss, whose logits are bridge's product."""


class LinearLoss:
    """A model that, in training with labels, computes the loss from its last hidden states."""

    replaces: Any
    head_name: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies the model by its original class and the head's name."""
        return _new, (self.replaces, self.head_name), vars(self)


def _new(original: type, head_name: str) -> Any:
    made = _class_of(original, head_name)
    return made.__new__(made)


@functools.cache
def _class_of(original: Any, head_name: str) -> Any:
    names = list(inspect.signature(original.forward).parameters)[1:]

    # Trainers read the model's arguments from the signature.
    @functools.wraps(original.forward)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        named.update(zip(names, given, strict=False))
        if not self.training or named.get("labels") is None or _wants_more(self, named):
            return original.forward(self, **named)
        return _forward(self, self.get_submodule(head_name), named)

    own = {"replaces": original, "head_name": head_name, "forward": forward}
    own["__module__"] = original.__module__
    return type(original.__name__, (LinearLoss, original), own)


def _wants_more(model: Any, named: dict[str, Any]) -> bool:
    """True if a call asks for an output that only the model's own forward gives."""
    of_routers = getattr(model.config, "output_router_logits", False)
    return (
        named.get("return_dict") is False
        or not isinstance(kept := named.get("logits_to_keep", 0), int)
        or kept != 0
        or bool(named.get("output_router_logits", of_routers))
    )


def _forward(model: Any, head: Any, named: dict[str, Any]) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    names = ("labels", "num_items_in_batch", "shift_labels", "ignore_index")
    of_loss = {name: named.pop(name) for name in names if name in named}
    named.pop("logits_to_keep", None)
    outputs = model.base_model(**named)
    fields = CausalLMOutputWithPast.__dataclass_fields__
    kept = {name: value for name, value in outputs.items() if name in fields}
    loss = _loss(model, head, outputs.last_hidden_state, **of_loss)
    return CausalLMOutputWithPast(loss=loss, **kept)


def _loss(
    model: Any,
    head: Any,
    hidden: Tensor,
    labels: Tensor,
    num_items_in_batch: Any = None,
    shift_labels: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    if shift_labels is None:
        shift_labels = following(labels, ignore_index)
    # Factors that models apply to their logits: Cohere's, Granite's, Gemma's.
    factor = (getattr(model, "logit_scale", None) or 1.0) / (
        getattr(model.config, "logits_scaling", None) or 1.0
    )
    loss = head(
        hidden if factor == 1.0 else hidden * factor,
        labels=shift_labels.to(hidden.device),
        ignore_index=ignore_index,
        softcap=getattr(model.config, "final_logit_softcapping", None),
        reduction="mean" if num_items_in_batch is None else "sum",
    )
    if loss.ndim:
        raise ValueError(
            f"replace: linear_loss is True, and the head has become {type(head).__name__}, which "
            f"changed the loss to shape {list(loss.shape)}: expected a head that returns what its "
            "linear layer does; leave linear_loss out if adapters change the logits"
        )
    return loss if num_items_in_batch is None else loss / on_device(num_items_in_batch, loss)


def with_linear_loss(model: Any, linear: bool) -> list[tuple[str, Any, type]]:
    """Returns the changes of classes for this loss, after comparing it with the model's own.

    Args:
      linear: if true, the head's logits are bridge's product.

    Returns:
      Name, module and new class of the head and of the model; an empty list if the model has been
      changed already.

    Raises:
      ValueError: as `replace`.
    """
    if isinstance(model, LinearLoss):
        return []
    where = "replace: linear_loss is True, and"
    original: Any = type(model)
    if not original.__name__.endswith("ForCausalLM"):
        raise ValueError(f"{where} the model is {original.__name__}, expected a …ForCausalLM")
    head = model.get_output_embeddings()
    of_head: Any = type(head)
    is_replaced = getattr(of_head, "replaces", None) is nn.Linear
    if not (of_head is nn.Linear or is_replaced):
        kind = f"{type(head).__module__}.{type(head).__qualname__}"
        raise ValueError(f"{where} its head is {kind}, expected torch.nn.Linear itself")
    if head.weight.is_meta:
        raise ValueError(f"{where} its weights are on the meta device, expected their numbers")
    head_name = next(name for name, module in model.named_modules() if module is head)
    changed = _class_of(original, head_name)
    tolerance = 1e-4 if head.weight.dtype in (torch.float32, torch.float64) else 2.0**-5
    # Forward makes tensors on the default device, so that must be the model's device.
    with torch.no_grad(), torch.random.fork_rng(), torch.device(head.weight.device):
        for scale in (1.0, 50.0):
            copy = _tried(model, head, scale)
            labels = torch.arange(8, device=head.weight.device)[None] % head.weight.shape[0]
            given = {"input_ids": labels, "labels": labels, "return_dict": True}
            try:
                expected = float(original.forward(copy, **given).loss)
                head.__class__ = HeadWithLoss
                found = float(changed.forward(copy, **given).loss)
            except (AttributeError, IndexError, TypeError) as error:
                raise ValueError(
                    f"{where} {original.__name__} needs more from its layers than hidden states "
                    f"({error})"
                ) from error
            finally:
                head.__class__ = of_head
            if not abs(expected - found) <= tolerance * abs(expected):
                raise ValueError(
                    f"{where} {original.__name__} changes its logits in an unknown way: its loss "
                    f"of random hidden states is {expected}, and the loss without logits is {found}"
                )
    to = HeadOnBridge if linear or is_replaced else HeadWithLoss
    return [(head_name, head, to), ("", model, changed)]


class _Hidden(nn.Module):
    """A module in place of a model's layers that returns given hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *given: Any, **named: Any) -> Any:
        from transformers.modeling_outputs import MoeModelOutputWithPast

        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


def _tried(model: Any, head: nn.Linear, scale: float) -> Any:
    """Returns a copy of a model in training mode whose last hidden states are random.

    They make logits of about the size `scale`.
    """
    weight, generator = head.weight, torch.Generator("cpu").manual_seed(0)
    hidden = torch.randn(1, 8, weight.shape[1], generator=generator, device="cpu").to(weight)
    hidden = hidden * (scale / head(hidden).float().std().clamp(min=1e-20)).to(weight)
    copy = stand_in(model, model._parameters, {model.base_model_prefix: _Hidden(hidden)})
    copy.training = True
    return copy
