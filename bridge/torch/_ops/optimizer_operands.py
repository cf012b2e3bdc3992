"""The operands of an optimizer's kernels: views of parameters and state, and numbers as tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import optimizers
from bridge.ops.scalars import number_of_float32


def check_operand_number(function: str, name: str, value: Any) -> None:
    """Raises TypeError or ValueError unless `Numbers` takes the value; reads no tensor's number."""
    if not isinstance(value, Tensor):
        number_of_float32(function, name, value)
    elif value.is_complex() or value.numel() != 1:
        found = f"shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
        raise ValueError(f"{function}: {name} has {found}, expected one real number")


def unwritable(t: Tensor) -> str:
    """Returns the reason why no kernel can write the tensor in place, or nothing."""
    # Dynamo cannot trace these questions.
    if torch.compiler.is_compiling() or t.numel() == 0:
        return ""
    if t.is_neg():
        return "has its negative bit set"
    return "" if t.is_contiguous() or _are_apart(t) else "has elements that share memory"


def _are_apart(t: Tensor) -> bool:
    """Returns True if each dimension steps over the whole reach of the finer ones.

    The bindings refuse other results (cpp/bindings/calls/overlap.cpp), but only when their call
    comes, after other parameters have been written.
    """
    reach = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return False
            reach += (size - 1) * stride
    return True


class Numbers:
    """The numbers of a group as tensors of the kernels' types, each made once in a step."""

    def __init__(self) -> None:
        self._made: dict[Any, Tensor] = {}

    def of(self, value: Any, p: Tensor) -> Tensor:
        """Returns a number for each row of p, in the type of the arithmetic on p."""
        dtype, rows = arithmetic_of(p), p.shape[:-1]
        key = id(value), dtype, p.device, rows
        if (made := self._made.get(key)) is None:
            if isinstance(value, Tensor):
                made = value.detach().to(p.device, dtype).reshape(())
            else:
                made = torch.full((), value, dtype=dtype, device=p.device)
            made = self._made[key] = made.expand(rows)
        return made

    def decay(self, value: Any, p: Tensor) -> Tensor | None:
        """Returns a weight decay; None for no decay."""
        is_zero = not isinstance(value, Tensor) and value == 0
        return None if is_zero else self.of(value, p)

    def step(self, count: Tensor, p: Tensor) -> Tensor:
        """Returns the step count of the state as an integer on the device of p."""
        if count.is_cpu and not torch.compiler.is_compiling():
            return self.integer(int(count), p.device)
        return count.to(p.device, torch.int64)  # without a wait for the device, or a graph break

    def integer(self, value: int, device: torch.device) -> Tensor:
        key = value, device
        if key not in self._made:
            self._made[key] = torch.full((), value, dtype=torch.int64, device=device)
        return self._made[key]


def arithmetic_of(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype is torch.float64 else torch.float32


def as_rows(p: Tensor, g: Tensor | None = None, *state: Tensor | None) -> tuple[Any, ...]:
    """Returns views of the tensors that kernels can write, with elements in the order of memory.

    The gradient is copied if it lies in another order than the parameter.
    """
    tensors: list[Any] = [p, g, *state]
    if type(p).__name__ == "DTensor":
        tensors = [None if t is None else _local(t, p) for t in tensors]
    if not tensors[0].is_contiguous():  # channels last, or a transposed weight
        order = sorted(range(p.ndim), key=tensors[0].stride, reverse=True)
        tensors = [None if t is None else t.permute(order) for t in tensors]
    if g is not None:
        tensors[1] = tensors[1].contiguous()
    # A view is no Parameter, so it takes the short way into a kernel.
    p, *others = tensors
    shape = optimizers.row_shape(p.shape)
    if p.shape == shape or not all([t is None or t.is_contiguous() for t in tensors]):
        return p.detach(), *others
    return tuple([None if t is None else t.view(shape) for t in tensors])


def _local(tensor: Any, p: Any) -> Tensor:
    """Returns the part of a DTensor on this process; a gradient is first placed as its parameter.

    A step has the same formula for each element, so parts need no communication.
    """
    if tensor.placements != p.placements:
        tensor = tensor.redistribute(p.device_mesh, p.placements)
    return tensor.to_local()  # type: ignore[no-any-return]
