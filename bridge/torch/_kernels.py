"""Runs calls of ops on torch tensors: memory for the results, then the kernel. No autograd here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bridge import _native
from bridge.ops import Role, Spec

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# A call on fewer elements runs in the calling thread, whatever the thread count.
_PARALLEL_FROM = 1 << 15

Kernel = Callable[..., int]


def _bias_gelu(
    operands: tuple[Any, ...], results: Sequence[Any], params: Any, threads: int, workspace: Any
) -> int:
    attributes = params.attributes()
    return _native.bias_gelu(
        operands,
        results[0],
        results[1],
        attributes["form"],
        attributes["order"],
        attributes["batch_ndim"],
        threads,
        workspace,
    )


KERNELS: dict[str, Kernel] = {"bias_gelu": _bias_gelu}


def spec_of(tensor: torch.Tensor) -> Spec:
    """Returns shape and dtype name; a dtype that no op takes keeps torch's own name."""
    dtype = tensor.dtype
    return Spec(tuple(tensor.shape), NAMES.get(dtype, str(dtype).removeprefix("torch.")))


def result_shape(role: Role, shape: Sequence[int], batch_ndim: int) -> Sequence[int]:
    if role is Role.FULL:
        return shape
    return (*shape[:batch_ndim], *shape[-1:]) if len(shape) else (1,)


def empty_results(op: Any, x: torch.Tensor, params: Any) -> tuple[torch.Tensor | None, ...]:
    """Returns uninitialised contiguous tensors for the wanted results."""
    results = []
    for name, role in zip(op.result_names, op.result_roles(), strict=True):
        dtype = getattr(params, name)
        results.append(
            None
            if dtype is None
            else torch.empty(
                result_shape(role, x.shape, params.batch_ndim), dtype=DTYPES[dtype], device=x.device
            )
        )
    return tuple(results)


def run(
    op: Any,
    operands: tuple[Any, ...],
    params: Any,
    results: tuple[torch.Tensor | None, ...] | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Runs a call and returns its results, written into `results` if given.

    A layout that the kernel cannot walk by strides is made contiguous, and only that one.
    """
    x = operands[0]
    if results is None:
        results = empty_results(op, x, params)
    kernel = KERNELS[op.name]
    threads = 1 if x.numel() < _PARALLEL_FROM else torch.get_num_threads()
    workspace = None
    if x.is_cuda:
        workspace = _workspace(op, x, operands, params)
    while (unreadable := kernel(operands, results, params, threads, workspace)) >= 0:
        copy = operands[unreadable].contiguous()
        operands = (*operands[:unreadable], copy, *operands[unreadable + 1 :])
    return results


def _workspace(op: Any, x: torch.Tensor, operands: Sequence[Any], params: Any) -> Any:
    if params.row is None:
        return None
    nb = params.batch_ndim
    batch = x.shape[:nb].numel()
    cols = x.shape[-1] if x.ndim else 1
    rows = x.shape[nb:-1].numel() if x.ndim else 1
    double = any(t is not None and t.dtype == torch.float64 for t in operands) or (
        "float64" in (params.full, params.row)
    )
    size = _native.bias_gelu_workspace(batch, rows, cols, True, double)
    return torch.empty(max(size, 1) // 4 + 1, dtype=torch.float32, device=x.device)
