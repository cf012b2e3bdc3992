"""All quantities in torch, for any function of named operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.cli.parity.grid import Case
from bridge.cli.parity.places import NUMPY
from bridge.cli.parity.quantities import named

TORCH = {name: getattr(torch, name) for name in NUMPY}
Operands = Mapping[str, Any]  # tensors by name
Function = Callable[[Operands], Tensor]


def tensors(case: Case, operands: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Returns the operands as torch tensors in the case's layout."""
    return case.all_viewed({name: tensor(array).to(device) for name, array in operands.items()})


def tensor(array: np.ndarray) -> Tensor:
    if array.dtype == NUMPY["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def quantities(
    f: Function, case: Case, p: Operands, forward_over_reverse: bool = True
) -> dict[str, Tensor]:
    """Computes the quantities of a case.

    Hessian-vector products are forward mode over reverse mode, or reverse over reverse, because
    torch compiles its own ops for seconds in the former.
    """
    names = case.inputs

    def call(*inputs: Tensor) -> Tensor:
        return f({**p, **dict(zip(names, inputs, strict=True))})

    if not case.entry.compared.differentiable:
        return {"forward": call().detach()}
    leaves = tuple(p[name].detach().requires_grad_() for name in names)
    g = p["g"].detach().requires_grad_()
    forward = call(*leaves)
    first = torch.autograd.grad(forward, leaves, g, create_graph=case.second_order)
    results = {"forward": forward} | named("d", names, first)

    primals = tuple(tensor.detach() for tensor in leaves)
    tangents = tuple(p[f"t_{name}"] for name in names)
    forward_mode: Any = torch.func.jvp
    results["jvp"] = forward_mode(call, primals, tangents)[1]
    if case.second_order:
        cotangents = tuple(p[f"v_{name}"] for name in names)
        # An op that is linear in an input has no second derivative there: zeros.
        second = torch.autograd.grad(
            first,
            (*leaves, g),
            cotangents,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        results |= named("d2", names, second[:-1]) | {"d2g": second[-1]}
    if case.hessian:

        def gradient(*primals: Tensor) -> tuple[Tensor, ...]:
            return torch.func.vjp(call, *primals)[1](p["g"])

        if forward_over_reverse:
            products = forward_mode(gradient, primals, tangents)[1]
        else:
            products = torch.autograd.grad(first, leaves, tangents)
        results |= named("hvp_", names, products)
    return {name: result.detach() for name, result in results.items()}


def to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(NUMPY["bfloat16"])
    return tensor.numpy()


def pieces(f: Function, case: Case, p: Operands) -> dict[str, Tensor]:
    """Computes value and gradient of x piece by piece along the first dimension."""
    rows = p["x"].shape[0]
    borders = sorted({0, min(1, rows), rows // 3, rows // 2 + 1, rows})
    values, gradients = [], []
    for low, high in itertools.pairwise(borders):
        piece = {**p, **{name: p[name][low:high] for name in case.split}}
        x = piece["x"].detach().requires_grad_()
        value = f({**piece, "x": x})
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, x, piece["g"])[0])
    return {"forward": torch.cat(values), "dx": torch.cat(gradients)}


def mapped(f: Function, case: Case, p: Operands) -> dict[str, Tensor]:
    """Computes value and gradient of x by vmap over the first dimension."""

    def both(part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x, g = part["x"], part["g"]
        vjp: Any = torch.func.vjp
        value, pull = vjp(lambda x: f({**p, **part, "x": x}), x)
        return value, pull(g)[0]

    value, gradient = torch.func.vmap(both)({name: p[name] for name in case.mapped})
    return {"forward": value, "dx": gradient}
