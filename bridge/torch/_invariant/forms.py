"""Torch's functions of rows by bridge's ops, with torch's shapes, dtypes and layouts.

Each function has the parameters of torch's. It ignores `out`, which its caller fills. It returns
the result, or a text: the reason why the call passes by. Dynamo traces these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import dispatch_modes, forward_ad, functorch_active
from bridge.catalogue import framework_functions
from bridge.torch._invariant.tensors import FLOATING, obstacle, result_dtype
from bridge.torch._ops import log_probs
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.norms import layer_norm as op_of_layer_norm
from bridge.torch._ops.norms import rms_norm as op_of_rms_norm
from bridge.torch._ops.softmax import scaled_softmax

_silu = framework_functions.silu.torch
_mean = framework_functions.mean.torch
_LEAST_EPS = 2.0**-149
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
REFUSED = "torch refuses these arguments"


def softmax(input: Any = None, dim: Any = None, dtype: Any = None, *, out: Any = None) -> Any:
    return _along("softmax", scaled_softmax, input, dim, dtype)


def log_softmax(input: Any = None, dim: Any = None, dtype: Any = None, *, out: Any = None) -> Any:
    return _along("log_softmax", log_probs.log_softmax, input, dim, dtype)


def _along(kind: str, op: Callable[..., Tensor], x: Any, dim: Any, dtype: Any) -> Any:
    if (reason := obstacle(x) or _wrong_dtype(dtype)) is not None:
        return reason
    if x.ndim == 0:
        return "the input has no dimension"
    if dim is None:
        return "dim is None"
    if not _is_whole(dim) or not -x.ndim <= dim < x.ndim:
        return REFUSED
    dtype = result_dtype(kind, (x,), dtype)
    if dtype is None:
        return REFUSED
    x = cast(x, dtype)
    if dim in (-1, x.ndim - 1):
        return op(x)
    # The result is contiguous, as torch's is.
    return _owned(op(x.movedim(dim, -1)).movedim(-1, dim).contiguous())


def logsumexp(input: Any = None, dim: Any = None, keepdim: Any = False, *, out: Any = None) -> Any:
    return _reduced("logsumexp", log_probs.logsumexp, input, dim, keepdim, None)


def mean(
    input: Any = None,
    dim: Any = None,
    keepdim: Any = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        dim = tuple(range(input.ndim)) if isinstance(input, Tensor) else ()
    return _reduced("mean", _mean, input, dim, keepdim, dtype)


def _reduced(
    kind: str, op: Callable[..., Tensor], x: Any, dim: Any, keepdim: Any, dtype: Any
) -> Any:
    if (reason := obstacle(x) or _wrong_dtype(dtype)) is not None:
        return reason
    if x.ndim == 0:
        return "the input has no dimension"
    count = x.ndim
    given = tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)
    if not given or not all([_is_whole(each) and -count <= each < count for each in given]):
        return REFUSED
    dims = sorted([each % count for each in given])
    if len(set(dims)) < len(dims) or not isinstance(keepdim, bool):
        return REFUSED
    dtype = result_dtype(kind, (x,), dtype)
    if dtype is None:
        return REFUSED
    x = cast(x, dtype)
    if dims[0] != count - len(dims):
        x = x.permute(*[each for each in range(count) if each not in dims], *dims)
    y = cast(op(x.flatten(-len(dims)) if len(dims) > 1 else x), dtype)
    if not keepdim:
        return y
    for each in dims:
        y = y.unsqueeze(each)
    return _owned(y)


def gelu(input: Any = None, *, approximate: Any = "none", out: Any = None) -> Any:
    if approximate not in ("none", "tanh"):
        return REFUSED
    return _elementwise("gelu", lambda x: bias_gelu(x, approximate=approximate), input)


def silu(input: Any = None, inplace: Any = False) -> Any:
    if not inplace:
        return _elementwise("silu", _silu, input)
    if isinstance(input, Tensor) and input.requires_grad and torch.is_grad_enabled():
        # The backward pass reads the input, which is overwritten below.
        y = _elementwise("silu", _silu, input.clone())
    else:
        y = _elementwise("silu", _silu, input)
    if not isinstance(y, str):
        y = REFUSED if y.dtype != input.dtype else input.copy_(y)
    return y


def _elementwise(kind: str, op: Callable[[Tensor], Tensor], x: Any) -> Any:
    if (reason := obstacle(x)) is not None:
        return reason
    dtype = result_dtype(kind, (x,))
    if dtype is None:
        return REFUSED
    x = cast(x, dtype)
    if x.ndim == 0:
        return _owned(op(x.reshape(1)).reshape(()))
    if x.is_contiguous():
        return op(x)
    # Torch keeps the order of the dimensions in memory, and code behind it may take a view.
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.ndim), key=lambda each: -strides[each])
    back = sorted(range(x.ndim), key=lambda each: order[each])
    return _owned(op(x.permute(order)).permute(back))


def layer_norm(
    input: Any = None,
    normalized_shape: Any = None,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
    cudnn_enable: Any = True,
) -> Any:
    others = [each for each in (weight, bias) if each is not None]
    kind = "layer_norm bias" if weight is None and bias is not None else "layer_norm"
    return _norm(
        kind,
        lambda x, eps, weight, bias: op_of_layer_norm(x, weight, bias, eps=eps),
        input,
        normalized_shape,
        (weight, bias),
        others,
        eps,
    )


def rms_norm(
    input: Any = None, normalized_shape: Any = None, weight: Any = None, eps: Any = None
) -> Any:
    if eps is None and isinstance(input, Tensor):
        # torch's eps belongs to the dtype of the arithmetic: float32 for 16-bit tensors.
        is_double = input.dtype == torch.float64
        eps = torch.finfo(torch.float64 if is_double else torch.float32).eps
    others = [] if weight is None else [weight]
    y = _norm(
        "rms_norm",
        lambda x, eps, weight: op_of_rms_norm(x, weight, eps=eps),
        input,
        normalized_shape,
        (weight,),
        others,
        eps,
    )
    if isinstance(y, Tensor) and y.ndim in _CHANNELS_LAST and not input.is_contiguous():
        # Torch's other norm of rows is contiguous; this one keeps the channels last.
        memory_format = _CHANNELS_LAST[y.ndim]
        if input.is_contiguous(memory_format=memory_format):
            y = y.contiguous(memory_format=memory_format)
    return y


def _norm(
    kind: str,
    op: Callable[..., Tensor],
    x: Any,
    shape: Any,
    vectors: Sequence[Any],
    others: Sequence[Any],
    eps: Any,
) -> Any:
    if (reason := obstacle(x, *others)) is not None:
        return reason
    if not isinstance(shape, (tuple, list)) or not 1 <= len(shape) <= x.ndim:
        return REFUSED
    if not all([_is_whole(each) for each in shape]):
        return REFUSED
    count = len(shape)
    if tuple(x.shape[-count:]) != tuple(shape):
        return REFUSED
    if not all([tuple(each.shape) == tuple(shape) for each in others]):
        return REFUSED
    if not isinstance(eps, (int, float)) or not _LEAST_EPS <= eps < float("inf"):
        return "eps is not a positive number that float32 has"
    dtype = result_dtype(kind, (x, *others))
    if dtype is None:
        return REFUSED
    if torch.is_autocast_enabled(x.device.type):  # casts all operands alike
        x = cast(x, dtype)
        vectors = [each if each is None else cast(each, dtype) for each in vectors]
    if count > 1:
        x = x.flatten(-count)
        vectors = [each if each is None else each.flatten() for each in vectors]
    y = cast(op(x, float(eps), *vectors), dtype)
    return _owned(y.unflatten(-1, tuple(shape))) if count > 1 else y


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns x in this dtype; a graph gets no node for a tensor that has it."""
    return x if x.dtype == dtype else x.to(dtype)


def _is_whole(value: Any) -> bool:
    """True for an integer; torch takes a bool in some forms, and refuses it in others."""
    return isinstance(value, int) and not isinstance(value, bool)


def _owned(y: Tensor) -> Tensor:
    """Returns a view of a result as a tensor of its own, as torch's is, if it has no history.

    Torch refuses `detach_` of a view, and to change a view from no_grad mode in place. A compiler
    and a transform have views of their own, and a tangent would be lost.
    """
    if torch.compiler.is_dynamo_compiling() or y.requires_grad or type(y) is not Tensor:
        return y
    if functorch_active() or dispatch_modes() or forward_ad._current_level >= 0:
        return y
    return y.data


def _wrong_dtype(dtype: Any) -> str | None:
    if dtype is None or dtype in FLOATING:
        return None
    return "the argument dtype is not float16, bfloat16, float32 or float64"
