"""Questions about the tensors of a call: can bridge read them, and what would torch return?"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bridge._private.torch import constant_to_dynamo
from bridge.torch._adapter.checks import is_strided

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DEVICES = ("cpu", "cuda")


def obstacle(*tensors: Any) -> str | None:
    """Returns the reason why bridge cannot read these operands, or None."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            return "an operand is no tensor"
        if not is_dense(tensor):
            return "an operand is sparse or nested"
        if tensor.dtype not in FLOATING:
            return "the dtype is not float16, bfloat16, float32 or float64"
        if tensor.device.type not in _DEVICES:
            return "the device is neither a CPU nor a CUDA GPU"
        if tensor.device != tensors[0].device:
            return "the operands are on several devices"
    return None


def is_dense(tensor: Tensor) -> bool:
    return not tensor.is_nested and is_strided(tensor)


def result_dtype(kind: str, tensors: Sequence[Tensor], dtype: Any = None) -> Any:
    """Returns the dtype of torch's result, or None if torch refuses these dtypes.

    Args:
      kind: a name of `_CALLS`.
      tensors: the floating operands; the first one is the input.
      dtype: the argument of the call, or None.
    """
    device = tensors[0].device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    dtypes = tuple([tensor.dtype for tensor in tensors])
    if autocast is None and all([each == dtypes[0] for each in dtypes]):
        return dtypes[0] if dtype is None else dtype
    return _asked(kind, dtypes, dtype, device, autocast)


@constant_to_dynamo
def _asked(kind: str, dtypes: Any, dtype: Any, device: str, autocast: Any) -> Any:
    try:
        return _answer(kind, dtypes, dtype, device, autocast)
    except Exception:  # torch will refuse the call itself, in its own words
        return None  # not in the cache: another mode, or a lack of memory, can be the reason


@functools.cache
def _answer(kind: str, dtypes: Any, dtype: Any, device: str, autocast: Any) -> Any:
    """Asks torch by a call on one element: its rules for mixed dtypes and autocast are its own."""
    # The key has autocast's dtype, and the call runs under it.
    input, *others = (torch.ones(1, device=device, dtype=each) for each in dtypes)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _CALLS[kind](dtype, input, *others).dtype


_CALLS: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda dtype, x: torch.softmax(x, 0, dtype=dtype),
    "log_softmax": lambda dtype, x: torch.log_softmax(x, 0, dtype=dtype),
    "logsumexp": lambda dtype, x: torch.logsumexp(x, 0),
    "mean": lambda dtype, x: torch.mean(x, 0, dtype=dtype),
    "gelu": lambda dtype, x: F.gelu(x),
    "silu": lambda dtype, x: F.silu(x),
    "layer_norm": lambda dtype, x, *others: F.layer_norm(x, (1,), *others),
    # A bias without a weight.
    "layer_norm bias": lambda dtype, x, bias: F.layer_norm(x, (1,), None, bias),
    "rms_norm": lambda dtype, x, *others: F.rms_norm(x, (1,), *others),
    "cross_entropy": lambda dtype, x, *weight: F.cross_entropy(
        x[None], torch.zeros(1, dtype=torch.int64, device=x.device), *weight
    ),
    "cross_entropy of probabilities": lambda dtype, x, target, *weight: F.cross_entropy(
        x[None], target[None], *weight
    ),
}
