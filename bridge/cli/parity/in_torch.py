"""Every quantity in torch: through bridge, and through torch's own ops and autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from bridge.cli.parity.grid import NUMPY, Case

TORCH = {name: getattr(torch, name) for name in NUMPY}
Function = Callable[[Tensor, Tensor | None], Tensor]
Operands = Mapping[str, Any]  # tensors by name, None where one is absent


def bridged(approximate: str) -> Function:
    return lambda x, bias: bridge.torch.bias_gelu(x, bias, approximate=approximate)


def own(approximate: str) -> Function:
    """What a user writes without bridge."""

    def function(x: Tensor, bias: Tensor | None) -> Tensor:
        h = x if bias is None else x + bias
        if approximate == "sigmoid":
            return h * torch.sigmoid(1.702 * h)
        return F.gelu(h, approximate=approximate)

    return function


def tensors(case: Case, operands: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The operands as torch tensors; x and g in the case's layout."""
    made: dict[str, Any] = {}
    for name, array in operands.items():
        dtype = case.dtype_of(name)
        if array is None or dtype is None:
            made[name] = None
            continue
        tensor = torch.from_numpy(array.view(np.int16) if array.itemsize == 2 else array)
        tensor = tensor.view(TORCH[dtype]).to(device)
        if name in ("x", "g"):
            tensor = case.place.layout.view(tensor, case.place.shape)
        made[name] = tensor
    return made


def quantities(f: Function, p: Operands, forward_over_reverse: bool = True) -> dict[str, Tensor]:
    """Value, gradients, tangent, grad of grad and Hessian-vector product.

    The last is forward mode over reverse mode, or (what torch compiles for seconds when the ops are
    its own) reverse over reverse.
    """
    has_bias = p["bias"] is not None
    x, g = p["x"].detach().requires_grad_(), p["g"].detach().requires_grad_()
    bias = p["bias"].detach().requires_grad_() if has_bias else None
    inputs: tuple[Any, ...] = (x, bias) if has_bias else (x,)
    forward = f(x, bias)
    first = torch.autograd.grad(forward, inputs, g, create_graph=True)
    cotangents = (p["v_x"], p["v_bias"]) if has_bias else (p["v_x"],)
    tangents = (p["t_x"], p["t_bias"]) if has_bias else (p["t_x"],)
    second = torch.autograd.grad(first, (*inputs, g), cotangents, retain_graph=True)

    primals = tuple(tensor.detach() for tensor in inputs)
    call: Any = f if has_bias else (lambda x: f(x, None))
    jvp: Any = torch.func.jvp(call, primals, tangents)[1]

    def gradient(*primals: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vjp(call, *primals)[1](p["g"])

    if forward_over_reverse:
        hvp = torch.func.jvp(gradient, primals, tangents)[1]
    else:
        hvp = torch.autograd.grad(first, inputs, tangents)
    results = {"forward": forward, "dx": first[0], "jvp": jvp, "d2x": second[0]}
    results |= {"d2g": second[-1], "hvp_x": hvp[0]}
    if has_bias:
        results |= {"dbias": first[1], "d2bias": second[1], "hvp_bias": hvp[1]}
    return {name: result.detach() for name, result in results.items()}


def to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(NUMPY["bfloat16"])
    return tensor.numpy()


def pieces(f: Function, p: Operands) -> dict[str, Tensor]:
    """Value and gradient of x, computed piece by piece along the first dimension."""
    rows = p["x"].shape[0]
    borders = sorted({0, min(1, rows), rows // 3, rows // 2 + 1, rows})
    values, gradients = [], []
    for low, high in itertools.pairwise(borders):
        x = p["x"][low:high].detach().requires_grad_()
        value = f(x, p["bias"])
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, x, p["g"][low:high])[0])
    return {"forward": torch.cat(values), "dx": torch.cat(gradients)}
