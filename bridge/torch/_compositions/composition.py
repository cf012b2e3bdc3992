"""A composition as an op of torch's dispatcher, which saves the operands that its gradient reads.

The op serves every call that a tracer, a mode or a transform sees: torch.compile and torch.export
see one op, not one graph over all chunks. Other calls on the CPU run directly. In forward mode, and
for derivatives of gradients, its parts run one by one, each with its own derivatives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import SingleLevelFunction, forward_ad
from bridge.ops.compositions import Rules
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autocast import without_autocast
from bridge.torch._adapter.autograd import is_in_graph, is_ordinary, is_recorded
from bridge.torch._adapter.autograd_functions import named
from bridge.torch._adapter.below_autograd import BelowAutograd, recorder
from bridge.torch._adapter.dispatcher import library
from bridge.torch._adapter.kernels import DTYPES, dense, dtype_word

_SCHEMA_TYPES = {"bool": "bool", "int": "int", "float": "float", "str": "str"}


class Composition:
    """Runs a composition on tensors.

    Args:
      rules: the composition, over the functions of tensors.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.count = rules, len(rules.operands)
        self._read = tuple([i for i in range(self.count) if i not in rules.unread])
        name = rules.name
        operands = ", ".join(
            f"Tensor{'?' if may_be_absent else ''} {operand}"
            for operand, may_be_absent in rules.operands.items()
        )
        fields = dataclasses.fields(rules.options)
        self._names = [field.name for field in fields]
        numbers = ", ".join(f"{_SCHEMA_TYPES[str(field.type)]} {field.name}" for field in fields)
        results = ", ".join(["Tensor"] * rules.floating)
        tags = (torch.Tag.pt2_compliant_tag,)
        library.define(f"{name}({operands}, {numbers}) -> Tensor", tags=tags)
        backward = f"{name}_backward"
        library.define(
            f"{backward}(Tensor g, {operands}, {numbers}, bool[{rules.floating}] wanted) "
            f"-> ({results})",
            tags=tags,
        )
        for key in ("CPU", "CUDA"):
            library.impl(name, self._forward, key)
            library.impl(backward, self._backward, key)
        torch.library.register_fake(f"bridge::{name}", self._empty, lib=library)
        torch.library.register_fake(f"bridge::{backward}", self._empty_gradients, lib=library)
        library.impl(name, self._autograd, "Autograd", with_keyset=True)
        library.impl(backward, self._autograd_of_backward, "Autograd", with_keyset=True)
        torch.library.register_vmap(f"bridge::{name}", self._vmap, lib=library)
        torch.library.register_vmap(f"bridge::{backward}", self._vmap_of_backward, lib=library)
        self._op = getattr(torch.ops.bridge, name).default
        self.backward_op = getattr(torch.ops.bridge, backward).default
        self._record = recorder(named(_Recorded, name, False))

    def run(self, operands: Sequence[Tensor | None], options: Any) -> Tensor:
        """Returns the result for checked operands.

        Raises:
          TypeError: an operand is a DTensor.
        """
        if not torch.compiler.is_compiling() and is_ordinary(operands):
            if not is_in_graph(operands):
                with torch.no_grad():
                    return _whole(self.rules.forward(operands, options))
            if (recorder := nodes.recorder()) is not None:
                return _recording(self, recorder, options)(*operands)  # type: ignore[no-any-return]
        for name, operand in zip(self.rules.operands, operands, strict=True):
            if type(operand).__name__ == "DTensor":
                raise TypeError(
                    f"{self.rules.name}: {name} is a DTensor, expected ordinary tensors: call it "
                    "with each process's own part, x.to_local()"
                )
        # Dynamo of torch 2.11 cannot trace dataclasses.astuple.
        numbers = [getattr(options, name) for name in self._names]
        return self._op(*operands, *numbers)  # type: ignore[no-any-return]

    def recording(self, recorder: Any, options: Any) -> Any:
        """Returns the function in C++ that computes a call and has autograd record it."""
        floating, nothing = self.rules.floating, [None] * self.count
        numbers = [getattr(options, name) for name in self._names]

        def run(operands: Sequence[Any]) -> tuple[Tensor]:
            return (_whole(self.rules.forward(operands, options)),)

        def pull(kept: Any, cotangents: Any, wanted: Any, likes: Any) -> Any:
            g = cotangents[0]
            if g is None:
                return tuple(nothing)
            g, wanted = dense(g), wanted[:floating]
            kept = self.in_places(kept, likes)
            given = (g, *kept)
            if is_ordinary(given) and not is_in_graph(given):
                with torch.no_grad():
                    found = self.rules.gradients(g, kept, options, wanted)
                    found = [None if d is None else _whole(d) for d in found]
            else:
                made = self.backward_op(g, *kept, *numbers, wanted)
                made = made if floating > 1 else (made,)
                found = [d if own else None for d, own in zip(made, wanted, strict=True)]
            return (*found, *nothing[floating:])

        def only_step(*_: Any) -> None:
            return None

        name = f"bridge::{self.rules.name}Backward"
        likes = self.likes if self.rules.unread else None
        return recorder(name, self._read, (0,), None, run, likes, only_step, pull)

    def read(self, operands: Sequence[Any]) -> list[Any]:
        """Returns the operands that the gradient reads."""
        return [operands[place] for place in self._read]

    def likes(self, operands: Sequence[Any]) -> list[Any]:
        """Returns shape, dtype and device of the other operands.

        They are not saved, so that the caller may write into them before the backward pass.
        """
        others = [operands[place] for place in self.rules.unread]
        return [None if x is None else (x.shape, x.dtype, x.device) for x in others]

    def in_places(self, read: Sequence[Any], likes: Any) -> list[Any]:
        """Returns all operands of the gradient, from `read` and `likes`."""
        operands: list[Any] = [None] * self.count
        for place, each in zip(self._read, read, strict=True):
            operands[place] = each
        for place, each in zip(self.rules.unread, likes or (), strict=True):
            operands[place] = None if each is None else _without_memory(*each)
        return operands

    def _forward(self, *given: Any) -> Tensor:
        operands, options = self._split(given)
        device = operands[0].device.type
        with torch.no_grad(), without_autocast(device):
            return _whole(self.rules.forward(operands, options))

    def _results(self, found: Sequence[Tensor]) -> Any:
        """Returns gradients as an op of torch has them: one, or a tuple of several."""
        return tuple(found) if len(found) > 1 else found[0]

    def _backward(self, g: Tensor, *given: Any) -> Any:
        *given, wanted = given  # type: ignore[assignment]
        operands, options = self._split(given)
        with torch.no_grad(), without_autocast(g.device.type):
            found = self.rules.gradients(g, operands, options, wanted)
        # The results may be neither operands nor each other's memory.
        return self._results([g.new_empty(0) if d is None else _whole(d) for d in found])

    def _split(self, given: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        return given[: self.count], self.rules.options(*given[self.count :])

    def _empty(self, *given: Any) -> Tensor:
        operands, options = self._split(given)
        first, shape = operands[0], self.rules.result_shape(operands, options)
        dtype = DTYPES[self.rules.result_dtype(dtype_word(first.dtype))]
        return first.new_empty(shape, dtype=dtype)  # type: ignore[no-any-return]

    def _empty_gradients(self, g: Tensor, *given: Any) -> Any:
        wanted = given[-1]
        found = []
        for operand, is_wanted in zip(given, wanted, strict=False):
            like = operand if is_wanted else g.new_empty(0)
            found.append(like.new_empty(like.shape))
        return self._results(found)

    def _autograd(self, keys: Any, *given: Any) -> Tensor:
        operands, options = self._split(given)
        if _has_tangents(operands):
            return self.rules.forward(operands, options)  # type: ignore[no-any-return]
        below = BelowAutograd(self._op, keys)
        if is_recorded(operands):
            return self._record(self, below, *given)  # type: ignore[no-any-return]
        return below(*given)  # type: ignore[no-any-return]

    def _autograd_of_backward(self, keys: Any, g: Tensor, *given: Any) -> Any:
        *numbers, wanted = given
        operands, options = self._split(numbers)
        if _has_tangents((g, *operands)) or is_recorded((g, *operands)):
            found = self.rules.gradients(g, operands, options, wanted)
            return self._results([g.new_empty(0) if d is None else d for d in found])
        return BelowAutograd(self.backward_op, keys)(g, *given)

    def _vmap(self, info: Any, in_dims: Any, *given: Any) -> Any:
        moved = _moved(info.batch_size, in_dims, given[: self.count], self.rules.floating)
        return self._op(*moved, *given[self.count :]), 0

    def _vmap_of_backward(self, info: Any, in_dims: Any, g: Tensor, *given: Any) -> Any:
        count, floating = self.count, self.rules.floating
        (cotangent,) = _moved(info.batch_size, in_dims[:1], (g,), 1)
        moved = _moved(info.batch_size, in_dims[1:], given[:count], floating)
        found = self.backward_op(cotangent, *moved, *given[count:])
        dims = [0 if is_wanted else None for is_wanted in given[-1]]
        return found, tuple(dims) if len(dims) > 1 else dims[0]


def _whole(x: Tensor) -> Tensor:
    """Returns a result that is no view, so that autograd lets the caller write into it."""
    return x.contiguous().data


def _without_memory(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor whose elements are one number in memory."""
    return torch.empty((), dtype=dtype, device=device).expand(shape)


@functools.lru_cache(maxsize=256)
def _recording(composition: Composition, recorder: Any, options: Any) -> Any:
    return composition.recording(recorder, options)


def _has_tangents(operands: Sequence[Any]) -> bool:
    return forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in operands
    )


def _moved(size: int, in_dims: Any, operands: Sequence[Any], floating: int) -> list[Any]:
    """Returns the operands with the batch in front; masks without it keep a size of 1."""
    moved: list[Any] = []
    for place, (x, dim) in enumerate(zip(operands, in_dims, strict=False)):
        if x is None:
            moved.append(None)
        elif dim is not None:
            moved.append(x.movedim(dim, 0))
        else:
            moved.append(x.expand(size if place < floating else 1, *x.shape))
    return moved


class _Recorded(SingleLevelFunction):
    """The autograd Function that records the op."""

    @staticmethod
    def forward(ctx: Any, composition: Composition, below: BelowAutograd, *given: Any) -> Tensor:
        count = composition.count
        ctx.composition, ctx.numbers = composition, given[count:]
        ctx.set_materialize_grads(False)
        ctx.likes = composition.likes(given)
        ctx.save_for_backward(*composition.read(given))
        return below(*given)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        composition, numbers = ctx.composition, ctx.numbers
        nothing = [None] * (2 + composition.count + len(numbers))
        if g is None:
            return tuple(nothing)
        floating = composition.rules.floating
        wanted = ctx.needs_input_grad[2 : 2 + floating]
        operands = composition.in_places(ctx.saved_tensors, ctx.likes)
        found = composition.backward_op(dense(g), *operands, *numbers, wanted)
        found = found if floating > 1 else (found,)
        for place, is_wanted in enumerate(wanted):
            if is_wanted:
                nothing[2 + place] = found[place]
        return tuple(nothing)
