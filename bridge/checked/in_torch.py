"""Runs of an op in torch, with NumPy arrays in and out."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bridge.checked.arrays import Array, Arrays, of_smooth


class InFramework:
    """A function of tensors on the CPU."""

    name = "torch"

    def __init__(self, function: Callable[..., Any], smooth: Sequence[int]) -> None:
        self._function, self._smooth = function, smooth

    def _tensor(self, array: Array) -> Any:
        # torch warns of arrays that are not writable.
        data = array.data if array.data.flags.writeable else np.array(array.data)
        tensor = torch.from_numpy(data)
        return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor

    def _leaves(self, arrays: Arrays, every: bool = False) -> list[Any]:
        return [
            self._tensor(a).requires_grad_(every or i in self._smooth) for i, a in enumerate(arrays)
        ]

    def _pull(self, function: Callable[..., Any], arrays: Arrays, cotangents: Arrays) -> list[Any]:
        leaves = self._leaves(arrays)
        values = function(*leaves)
        towards = [leaves[i] for i in self._smooth]
        # An operand with no part in the result would get None as its gradient.
        gradients = torch.autograd.grad(
            values, towards, [*map(self._tensor, cotangents)], materialize_grads=True
        )
        return [*map(Array.of, (*values, *gradients))]

    def pulled(self, arrays: Arrays, cotangents: Arrays) -> list[Array]:
        """Returns results, and gradients towards the smooth operands."""
        return self._pull(self._function, arrays, cotangents)

    def pulled_on(self, threads: int, arrays: Arrays, cotangents: Arrays) -> list[Array]:
        """Runs `pulled` on `threads` threads."""
        kept = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return self.pulled(arrays, cotangents)
        finally:
            torch.set_num_threads(kept)

    def compiled(self, arrays: Arrays, cotangents: Arrays) -> list[tuple[str, list[Array]]]:
        """Runs `pulled` under compilers; returns names and results."""
        found = []
        for dynamic in (False, True):
            # Dynamo limits recompilations of a code object; each check shall count anew.
            code, function = self._function.__code__.replace(), self._function
            again = types.FunctionType(
                code, function.__globals__, "checked", function.__defaults__, function.__closure__
            )
            run = torch.compile(again, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            name = "torch.compile" + ", dynamic" * dynamic
            found.append((name, self._pull(run, arrays, cotangents)))
        return found

    def pushed(self, arrays: Arrays, tangents: Arrays) -> list[Array]:
        """Returns results and their tangents, for tangents of the smooth operands."""
        operands = [*map(self._tensor, arrays)]
        moved = tuple(operands[i] for i in self._smooth)
        run = of_smooth(self._function, self._smooth, operands)
        values, pushed = torch.func.jvp(run, moved, tuple(map(self._tensor, tangents)))[:2]
        return [*map(Array.of, (*values, *pushed))]

    def nested(self, arrays: Arrays, *levels: Arrays) -> list[Array]:
        """Returns gradients of gradients; each level has cotangents for those of the level before.

        A level computes the gradients of Σ ⟨cotangent, result⟩ towards the smooth operands and
        towards the cotangents of the levels before it.
        """
        leaves = self._leaves(arrays)
        found = self._function(*leaves)
        towards = [leaves[i] for i in self._smooth]
        for level in levels:
            cotangents = self._leaves(level, every=True)
            pairs = zip(found, cotangents, strict=True)
            moved = [pair for pair in pairs if pair[0].requires_grad]
            if moved:
                results, along = zip(*moved, strict=True)
                found = torch.autograd.grad(
                    results, towards, along, create_graph=True, materialize_grads=True
                )
            else:
                found = [*map(torch.zeros_like, towards)]
            towards += cotangents
        return [*map(Array.of, found)]

    def mapped(self, arrays: Arrays, cotangents: Arrays, batched: Sequence[bool]) -> list[Array]:
        """Runs `pulled` under vmap, over the first dimension of batched operands and cotangents."""

        def pull(*all_of_them: Any) -> Any:
            operands, given = all_of_them[: len(arrays)], all_of_them[len(arrays) :]
            moved = [operands[i] for i in self._smooth]
            run = of_smooth(self._function, self._smooth, operands)
            values, back = torch.func.vjp(run, *moved)[:2]
            return (*values, *back(given))

        axes = (*(0 if is_batched else None for is_batched in batched), *[0] * len(cotangents))
        every = [*map(self._tensor, (*arrays, *cotangents))]
        return [*map(Array.of, torch.func.vmap(pull, in_dims=axes)(*every))]
