"""The forms of layers that multiply by a matrix or look up its rows.

A layer is known by its `forward` method itself. A trial with weights of another kind could not
recognise a layer that computes otherwise on quantised weights.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import ParametrizationList

from bridge.replaced import names_read_by
from bridge.torch._drop_ins.huggingface.linear_loss import HeadWithLoss
from bridge.torch._drop_ins.huggingface.trial import COMPUTED, HOOKED, Form, is_computed
from bridge.torch._ops.embedding import embedding
from bridge.torch._ops.product_modules import Linear
from bridge.torch._ops.products import linear

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DENSE = ("Tensor", "Parameter", "DTensor", "FakeTensor")
_OPTIONS = ("max_norm", "scale_grad_by_freq", "sparse")  # of torch.nn.Embedding


def _linear(layer: Any, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _conv1d(layer: Any, x: Tensor) -> Tensor:
    return linear(x, layer.weight.mT, layer.bias)


def _embedding(layer: Any, ids: Tensor) -> Tensor:
    weight, padding = layer.weight, layer.padding_idx
    y = embedding(ids, weight)
    if padding is None:
        return y
    # Positions of padding add nothing to the gradient.
    return torch.where((ids == padding % weight.shape[0])[..., None], y.detach(), y)


class _Rows(nn.Embedding):
    """The base of a subclass whose forward calls that of `torch.nn.Embedding`."""

    def forward(self, input: Tensor) -> Tensor:
        return _embedding(self, input)


_LINEAR = Form("linear", _linear)
_CONV1D = Form("linear", _conv1d)
_EMBEDDING = Form("embedding", _embedding)
_INNER_EMBEDDING = Form("embedding", _embedding, inner=_Rows)


def linear_form_of(layer: nn.Module) -> Form | str | None:
    """Returns the form of a layer, the reason for none, or None for a layer without a matrix."""
    form = _by_forward(layer, type(layer).forward)
    if form is None:
        return _why_not(layer)
    if "forward" in vars(layer):
        return HOOKED
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "the layer around it computes with its weight"
    if any(is_computed(layer, name) for name in ("weight", "bias")):
        return COMPUTED
    weight: Any = layer.weight
    if type(weight).__name__ not in _DENSE:
        return f"its weight is of type {type(weight).__name__}, expected a dense tensor"
    if weight.dtype not in _DTYPES:
        return f"its weight has dtype {str(weight.dtype)[6:]}, expected a float of 16 to 64 bits"
    if isinstance(layer, nn.Embedding):
        for name in _OPTIONS:
            if given := getattr(layer, name):
                return f"{name} is {given}, expected {None if name == 'max_norm' else False}"
    return form


def _by_forward(layer: nn.Module, forward: Any) -> Form | None:
    forms = {nn.Linear.forward: _LINEAR, nn.Embedding.forward: _EMBEDDING}
    of_transformers = sys.modules.get("transformers.pytorch_utils")
    if of_transformers is not None:
        forms[of_transformers.Conv1D.forward] = _CONV1D  # its weight is [in, out]
    if forward in forms or not isinstance(layer, nn.Embedding):
        return forms.get(forward)
    # Embeddings that are scaled, or whose ids have an offset, leave the rows to their base class.
    return _INNER_EMBEDDING if {"super", "forward"} <= {*names_read_by(forward)} else None


def _why_not(layer: nn.Module) -> str | None:
    """Returns the reason why a layer with a matrix stays, or None if there is no matrix."""
    if isinstance(layer, HeadWithLoss):
        return "an earlier call replaced it for linear_loss: give both arguments to one call"
    if isinstance(layer, (Linear, ParametrizationList)):
        return None  # The first is bridge's; the layer around the second has a reason.
    if isinstance(layer, (nn.Linear, nn.Embedding)):
        return f"its class {type(layer).__name__} has a forward of its own"
    own = [name for name, p in layer.named_parameters(recurse=False) if p.ndim > 1]
    own += [  # packed weights of quantised layers
        name for name, b in layer.named_buffers(recurse=False) if b.ndim > 1 and "weight" in name
    ]
    return (
        f"its class {type(layer).__name__} computes with {', '.join(own)} itself" if own else None
    )
