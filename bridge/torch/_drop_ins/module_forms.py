"""The forms of torch's own modules: bridge computes what their `forward` computes.

A module is known by its `forward` method itself, so a subclass counts if it keeps the method.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from bridge.catalogue.activations import activation
from bridge.torch._drop_ins.attention_form import multi_head, why_bypassed, why_no_attention
from bridge.torch._drop_ins.huggingface.linear_forms import linear_form_of
from bridge.torch._drop_ins.huggingface.trial import COMPUTED, HOOKED, Form, is_computed
from bridge.torch._ops import convolution_modules
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.group_norm import group_norm
from bridge.torch._ops.loss_modules import classes_last
from bridge.torch._ops.norm_modules import GroupNorm, LayerNorm, RMSNorm
from bridge.torch._ops.softmax_modules import LogSoftmax, Softmax
from bridge.torch._ops.vision import batch_norm_modules
from bridge.torch._ops.vision.interpolation import interpolate
from bridge.torch._ops.vision.pooling import adaptive_avg_pool, avg_pool, max_pool

_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _gelu(layer: Any, input: Tensor) -> Tensor:
    return bias_gelu(input, approximate=layer.approximate)


def _group_norm(layer: Any, input: Tensor) -> Tensor:
    return group_norm(input, layer.num_groups, layer.weight, layer.bias, eps=layer.eps)


def _cross_entropy(layer: Any, input: Tensor, target: Tensor) -> Tensor:
    if target.is_floating_point():  # probabilities of the classes
        return nn.CrossEntropyLoss.forward(layer, input, target)
    return cross_entropy(
        classes_last(input),
        target,
        reduction=layer.reduction,
        ignore_index=layer.ignore_index,
        label_smoothing=layer.label_smoothing,
    )


def _batch_norm(layer: Any, input: Tensor) -> Tensor:
    return batch_norm_modules.normalised(layer, _batch_norm_of(layer), input)


def _batch_norm_of(layer: Any) -> str:
    """Returns the name of a batch norm: the three share a method."""
    return next(name for name in _BATCH_NORMS if isinstance(layer, getattr(nn, name)))


def _max_pool(layer: Any, input: Tensor, dims: int) -> Any:
    size = _each(layer.kernel_size, dims)
    how = layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    return max_pool(input, size, *how, layer.return_indices)


def _avg_pool(layer: Any, input: Tensor, dims: int) -> Tensor:
    size = _each(layer.kernel_size, dims)
    how = layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad
    return avg_pool(input, size, *how, getattr(layer, "divisor_override", None))


def _adaptive_avg_pool(layer: Any, input: Tensor, dims: int) -> Tensor:
    return adaptive_avg_pool(input, _each(layer.output_size, dims))


def _each(size: Any, dims: int) -> Any:
    """Returns a size for each dimension, which tells one image from many."""
    return (size,) * dims if isinstance(size, int) else size


def _upsample(layer: Any, input: Tensor) -> Tensor:
    how = layer.mode, layer.align_corners, layer.recompute_scale_factor
    return interpolate(input, layer.size, layer.scale_factor, *how)


def _activation(layer: Any, input: Tensor, kind: str, slope: str | None = None) -> Tensor:
    number = 1.0 if slope is None else float(getattr(layer, slope))
    if getattr(layer, "inplace", False):  # the op keeps its operand for the gradient
        return input.copy_(activation.torch(input.clone(), kind=kind, slope=number))
    y: Tensor = activation.torch(input, kind=kind, slope=number)
    return y


def _function(name: str) -> str:
    return name.lower().replace("convt", "conv_t")


_CONVOLUTIONS = [f"{kind}{dims}d" for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)]
_BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
_POOLS = {"MaxPool": _max_pool, "AvgPool": _avg_pool, "AdaptiveAvgPool": _adaptive_avg_pool}
_POOL_NAMES = {"MaxPool": "max_pool", "AvgPool": "avg_pool", "AdaptiveAvgPool": "adaptive_avg_pool"}
_ACTIVATIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "SiLU": (("kind", "silu"),),
    "Sigmoid": (("kind", "sigmoid"),),
    "Tanh": (("kind", "tanh"),),
    "Mish": (("kind", "mish"),),
    "Hardswish": (("kind", "hardswish"),),
    "LeakyReLU": (("kind", "leaky_relu"), ("slope", "negative_slope")),
    "ELU": (("kind", "elu"), ("slope", "alpha")),
}
_FORMS = {
    **{
        getattr(nn, name).forward: Form(_function(name), getattr(convolution_modules, name).forward)
        for name in _CONVOLUTIONS
    },
    nn.LayerNorm.forward: Form("layer_norm", LayerNorm.forward),
    nn.RMSNorm.forward: Form("rms_norm", RMSNorm.forward),
    nn.GroupNorm.forward: Form("group_norm", _group_norm),
    nn.GELU.forward: Form("bias_gelu", _gelu),
    nn.CrossEntropyLoss.forward: Form("cross_entropy", _cross_entropy),
    nn.Softmax.forward: Form("softmax", Softmax.forward),
    nn.LogSoftmax.forward: Form("log_softmax", LogSoftmax.forward),
    nn.BatchNorm2d.forward: Form("batch_norm", _batch_norm),
    **{
        getattr(nn, f"{kind}{dims}d").forward: Form(_POOL_NAMES[kind], run, (("dims", dims),))
        for kind, run in _POOLS.items()
        for dims in (1, 2, 3)
    },
    nn.Upsample.forward: Form("interpolate", _upsample),
    nn.MultiheadAttention.forward: Form("attention", multi_head),
    **{
        getattr(nn, name).forward: Form(constants[0][1], _activation, constants)
        for name, constants in _ACTIVATIONS.items()
    },
}
_OURS = (
    *(getattr(convolution_modules, name) for name in _CONVOLUTIONS),
    *(getattr(batch_norm_modules, name) for name in _BATCH_NORMS),
    GroupNorm,
    LayerNorm,
    RMSNorm,
    Softmax,
    LogSoftmax,
)

# Modules that move or select numbers: they have the same bits without bridge.
_EXACT = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.ReLU,
    nn.ReLU6,
    nn.Hardtanh,
    nn.Threshold,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ZeroPad1d,
    nn.ZeroPad2d,
    nn.ZeroPad3d,
)


def module_form_of(layer: nn.Module) -> Form | str | None:
    """Returns the form of a layer, the reason for none, or None for nothing to replace."""
    kind: Any = type(layer)
    if isinstance(layer, (*_OURS, *_EXACT)):
        return None
    if isinstance(layer, LazyModuleMixin):  # its class changes with the first call
        return f"{type(layer).__name__} has no sizes yet: call the model once before replace"
    form = _FORMS.get(kind.forward)
    if form is None:
        found = linear_form_of(layer)
        return found if found is not None else _unknown(layer)
    if "forward" in vars(layer):
        return HOOKED
    for name in ("weight", "bias"):
        if is_computed(layer, name):
            return COMPUTED
        own = getattr(layer, name, None)
        if isinstance(own, Tensor) and own.dtype not in _DTYPES:
            return f"its {name} has dtype {str(own.dtype)[6:]}, expected a float of 16 to 64 bits"
    return _refused(layer) or form


def _refused(layer: Any) -> str | None:
    """Returns the reason why bridge does not take a module's arguments."""
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)) and len(layer.normalized_shape) != 1:
        return f"normalized_shape is {list(layer.normalized_shape)}, expected one dimension"
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)) and layer.eps == 0:
        return "eps is 0, expected a positive number"
    if isinstance(layer, nn.CrossEntropyLoss) and layer.weight is not None:
        return "weight is given, expected None"
    if isinstance(layer, (nn.Softmax, nn.LogSoftmax)) and layer.dim is None:
        return "dim is None, expected a dimension"
    if isinstance(layer, _BatchNorm) and layer.eps <= 0:
        return f"eps is {layer.eps}, expected a positive number"
    return why_no_attention(layer) if isinstance(layer, nn.MultiheadAttention) else None


def _unknown(layer: nn.Module) -> str | None:
    """Returns the reason for a layer of torch.nn without parts; others consist of such layers."""
    if any(True for _ in layer.children()):
        return why_bypassed(layer)
    if not type(layer).__module__.startswith("torch.nn."):
        return None
    if isinstance(layer, (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList)):
        return None
    return f"bridge has no form of {type(layer).__name__}"
