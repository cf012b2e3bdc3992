"""Torch functions on flat lists of tensors, and their tangents, cotangents and batched forms.

A program is hashable and closed under JAX's transforms: the tangent, the cotangent and the batched
form of a program are programs again. `primitive` uses only this interface of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bridge.jax._from_torch.thread import during_gradient
from bridge.ops import Spec

_SMOOTH = ("float", "bfloat", "complex")


def is_smooth(dtype: str) -> bool:
    """True for dtypes whose values have derivatives."""
    return dtype.startswith(_SMOOTH)


class Program(Protocol):
    """A function of flat operands with flat results."""

    @property
    def name(self) -> str: ...

    @property
    def vmap_method(self) -> str | None: ...

    @property
    def is_seeded(self) -> bool: ...  # if True, operand 0 is the seed

    def run(self, operands: Sequence[Tensor], functional: bool) -> list[Tensor]:
        """Runs the program.

        Args:
            operands: one tensor for each operand.
            functional: True inside a transform of torch.func, where plain autograd cannot be used.
        """
        ...

    def specs(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        """Shapes and dtypes of the results."""
        ...

    def constant_operands(self, count: int) -> Sequence[int]:
        """Operands without a derivative, whatever their dtype: seeds, buffers."""
        ...

    def linear_operands(self, count: int) -> Sequence[int]:
        """Operands in which the program is linear, with the others fixed."""
        ...

    def smooth_results(self, dtypes: Sequence[str]) -> tuple[int, ...]:
        """Results that have derivatives."""
        ...


@dataclass(frozen=True)
class _Derived:
    of: Any  # a Program: mypy has no frozen attributes in protocols

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def vmap_method(self) -> str | None:
        return self.of.vmap_method

    @property
    def is_seeded(self) -> bool:
        return self.of.is_seeded


class _Derivative(_Derived):
    """A derivative. It is linear in its last operands, one for each direction."""

    @property
    def directions(self) -> int:
        raise NotImplementedError

    def constant_operands(self, count: int) -> Sequence[int]:
        return self.of.constant_operands(count - self.directions)

    def linear_operands(self, count: int) -> Sequence[int]:
        return range(count - self.directions, count)

    def smooth_results(self, dtypes: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(dtypes)))


@dataclass(frozen=True)
class Tangent(_Derivative):
    """J(x)·t: maps (*x, *tangents of the operands `active`) to tangents of the smooth results.

    Tangents mean the same in both frameworks, also for complex numbers.
    """

    active: tuple[int, ...]

    def run(self, operands: Sequence[Tensor], functional: bool) -> list[Tensor]:
        count = len(operands) - len(self.active)
        point, directions = list(operands[:count]), tuple(operands[count:])

        def function(*moving: Tensor) -> tuple[Tensor, ...]:
            results = self.of.run(_with(point, self.active, moving), True)
            return tuple(results[i] for i in self._smooth(results))

        moved: Any = torch.func.jvp(function, tuple(point[i] for i in self.active), directions)
        return list(moved[1])

    def _smooth(self, results: Sequence[Tensor]) -> tuple[int, ...]:
        return self.of.smooth_results([dtype_name(result) for result in results])

    def specs(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        results = self.of.specs(operands[: len(operands) - len(self.active)])
        return tuple(results[i] for i in self.of.smooth_results([r.dtype for r in results]))

    @property
    def directions(self) -> int:
        return len(self.active)


def _dense(gradient: Tensor | None, tensor: Tensor) -> Tensor:
    """Returns the gradient of a tensor in JAX's form: zeros for None, dense instead of sparse."""
    if gradient is None:
        return torch.zeros_like(tensor)
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


@dataclass(frozen=True)
class Cotangent(_Derivative):
    """J(x)ᵀ·c: maps (*x, *cotangents of the results `given`) to gradients of `active`.

    JAX transposes without conjugation, torch with it. So c and the result are conjugated here:
    J̅ᵀ·c̅ is the conjugate of Jᵀ·c.
    """

    active: tuple[int, ...]
    given: tuple[int, ...]

    def run(self, operands: Sequence[Tensor], functional: bool) -> list[Tensor]:
        count = len(operands) - len(self.given)
        point = list(operands[:count])
        cotangents = [_conjugate(operand) for operand in operands[count:]]
        pull = self._pull_functional if functional else self._pull_autograd
        return [_conjugate(gradient) for gradient in pull(point, cotangents)]

    def _pull_functional(self, point: list[Tensor], cotangents: list[Tensor]) -> Sequence[Tensor]:
        def function(*moving: Tensor) -> tuple[Tensor, ...]:
            results = self.of.run(_with(point, self.active, moving), True)
            return tuple(results[i] for i in self.given)

        pulled: Any = torch.func.vjp(function, *(point[i] for i in self.active))
        return pulled[1](tuple(cotangents))

    def _pull_autograd(self, point: list[Tensor], cotangents: list[Tensor]) -> Sequence[Tensor]:
        """Uses plain autograd: unlike torch.func it supports Functions without setup_context."""
        again = torch.is_grad_enabled()  # this derivative is itself being differentiated
        with torch.enable_grad(), during_gradient():
            moving = [
                point[i] if again and point[i].requires_grad else point[i].detach().requires_grad_()
                for i in self.active
            ]
            results = self.of.run(_with(point, self.active, moving), False)
            reached = [
                (results[i], cotangent)
                for i, cotangent in zip(self.given, cotangents, strict=True)
                if results[i].requires_grad
            ]
            if not reached:
                return [torch.zeros_like(tensor) for tensor in moving]
            gradients = torch.autograd.grad(
                [result for result, _ in reached],
                moving,
                [cotangent for _, cotangent in reached],
                create_graph=again,
                allow_unused=True,
            )
        return [_dense(*pair) for pair in zip(gradients, moving, strict=True)]

    def specs(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        return tuple(operands[i] for i in self.active)

    @property
    def directions(self) -> int:
        return len(self.given)


@dataclass(frozen=True)
class Batched(_Derived):
    """The program for each element of a batch: by torch.func.vmap, or one element after another.

    Args:
        dims: the batch dimension of each operand, None for operands shared by the whole batch.
        size: the number of batch elements, not 0.
    """

    dims: tuple[int | None, ...]
    size: int

    def run(self, operands: Sequence[Tensor], functional: bool) -> list[Tensor]:
        if self.vmap_method == "vmap":
            batched = torch.func.vmap(
                lambda *each: tuple(self.of.run(each, True)),
                in_dims=self.dims,
                randomness="same" if self.is_seeded else "error",
            )
            return list(batched(*operands))
        places = [
            self.of.run(
                [
                    operand if dim is None else operand.select(dim, place)
                    for operand, dim in zip(operands, self.dims, strict=True)
                ],
                functional,
            )
            for place in range(self.size)
        ]
        return [torch.stack(results) for results in zip(*places, strict=True)]

    def specs(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        each = [
            operand if dim is None else Spec(_without(operand.shape, dim), operand.dtype)
            for operand, dim in zip(operands, self.dims, strict=True)
        ]
        return tuple(Spec((self.size, *r.shape), r.dtype) for r in self.of.specs(each))

    def constant_operands(self, count: int) -> Sequence[int]:
        return self.of.constant_operands(count)

    def linear_operands(self, count: int) -> Sequence[int]:
        return self.of.linear_operands(count)

    def smooth_results(self, dtypes: Sequence[str]) -> tuple[int, ...]:
        return self.of.smooth_results(dtypes)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _with(tensors: list[Tensor], places: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
    changed = list(tensors)
    for place, value in zip(places, values, strict=True):
        changed[place] = value
    return changed


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return shape[:dim] + shape[dim + 1 :]


def _conjugate(tensor: Tensor) -> Tensor:
    return tensor.conj() if tensor.is_complex() else tensor
