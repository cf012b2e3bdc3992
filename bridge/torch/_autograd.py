"""Any op as a differentiable torch function, from its two derivative rules.

`call` runs everywhere; it picks the cheapest way that is right where it stands:

- plain tensors, no gradient wanted: the kernel, directly;
- autograd, forward mode, torch.func: an `autograd.Function` whose derivatives are calls again;
- tracing (torch.compile, export, fake tensors, modes, tensor subclasses): the dispatcher op of the
  same name (see `_dispatcher`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bridge import _native
from bridge.ops import Spec
from bridge.ops.batching import Move, batch_call
from bridge.torch._dispatcher import dispatch
from bridge.torch._kernels import Kernel, Results, allocate, dtypes_of, wanted_results

_PLAIN = frozenset({Tensor, torch.nn.Parameter})

_functorch_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_tracing_state = torch._C._get_tracing_state
_is_old_batched = torch._C._functorch.is_legacy_batchedtensor
_is_grad_enabled = torch.is_grad_enabled


def call(op: Any, operands: tuple[Any, ...], params: Any) -> Results:
    """Runs `op`, differentiably where the operands ask for it."""
    if torch.compiler.is_compiling():
        return dispatch(op, operands, params)
    return plan_of(op, params, dtypes_of(operands))(*operands)


def is_traced(tensors: Sequence[Any]) -> bool:
    """Whether something other than eager execution sees every operation on these tensors."""
    if _dispatch_modes() or _function_modes() or _tracing_state():
        return True
    return any(tensor is not None and type(tensor) not in _PLAIN for tensor in tensors)


def is_watched(tensors: Sequence[Any]) -> bool:
    """Whether tracing or torch.func sees every operation on these tensors."""
    return is_traced(tensors) or _functorch_active()


def _taker(positions: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Returns a function that takes the members at these positions out of a tuple."""
    if len(positions) == 1:
        return lambda values: (values[positions[0]],)
    return itemgetter(*positions)


class _Step:
    """One call of a derivative rule, made ready.

    Attributes:
      plan: the call; native: its kernel.
      pick: takes its operands from (*operands, *tangents or cotangents, None).
      places: (result, what it is part of) for those of its results that are part of something.
      arrange: takes (*results, None) to all that something can be part of, where this step is all.
    """

    __slots__ = ("arrange", "native", "pick", "places", "plan")

    def __init__(
        self, call: Any, dtypes: Sequence[str | None], places: Sequence[int | None], count: int
    ) -> None:
        """`call` has positions for operands, which are looked up in `dtypes`."""
        sources = [len(dtypes) if source is None else source for source in call.operands]
        known = tuple(None if source is None else dtypes[source] for source in call.operands)
        self.plan = plan_of(call.op, call.params, known)
        self.native = self.plan.native
        self.pick = _taker(sources)
        self.places = [(i, place) for i, place in enumerate(places) if place is not None]
        result_of = {place: i for i, place in self.places}
        self.arrange = _taker([result_of.get(i, len(places)) for i in range(count)])


def _total(steps: Sequence[_Step], values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Runs the steps on `values` and adds up what belongs to each of `count` places."""
    totals: list[Any] = [None] * count
    for step in steps:
        results = step.plan(*step.pick(values))
        for i, place in step.places:
            before = totals[place]
            totals[place] = results[i] if before is None else before + results[i]
    return tuple(totals)


class Plan(Kernel):
    """A kernel that can be differentiated: derivative rules are asked once and remembered."""

    def __init__(self, op: Any, params: Any, dtypes: tuple[str | None, ...]) -> None:
        super().__init__(op, params, dtypes)
        self.wanted = tuple(op.result_names.index(name) for name in wanted_results(op, params))
        self._results = [getattr(params, name) for name in op.result_names]
        self._vjp_steps: dict[Any, list[_Step]] = {}
        self._jvp_steps: dict[Any, list[_Step]] = {}
        self.native = native_kernel(op)
        self.add_to(self.native)
        # Bound here, as a tiny call is mostly the finding of such names.
        self.compute = self.native.compute
        self.only = self.wanted[0] if len(self.wanted) == 1 else None

    def __call__(self, *operands: Any) -> Results:
        """Runs the call, differentiably where the operands ask for it."""
        results = self.native(*operands)
        return self.watched(*operands) if results is None else results

    def watched(self, *operands: Any) -> Results:
        """The same for a call that is not an ordinary one."""
        if is_traced(operands):
            return dispatch(self.op, operands, self.params)
        if _functorch_active():
            return self.place(_FunctorchCall.apply(self, *operands))
        if forward_ad._current_level >= 0 or (
            _is_grad_enabled() and any(o is not None and o.requires_grad for o in operands)
        ):
            return self.place(_EagerCall.apply(self, *operands))
        return self.run_below(operands)

    def run_below(self, operands: tuple[Any, ...]) -> Results:
        """Runs the call where autograd and torch.func have been dealt with."""
        results = self.native.compute(*operands)
        if results is not None:
            return results
        try:
            return self.run(operands)
        except RuntimeError:
            # Gradients in batches (is_grads_batched) still come in tensors of the old vmap, which
            # nothing but the tensors themselves tells; the dispatcher knows how to loop over them.
            if any(operand is not None and _is_old_batched(operand) for operand in operands):
                return dispatch(self.op, operands, self.params)
            raise

    def present(self, results: Sequence[Any]) -> Any:
        """The wanted results as a Function returns them: a tensor, or a tuple of several."""
        if len(self.wanted) == 1:
            return results[self.wanted[0]]
        return tuple([results[i] for i in self.wanted])

    def place(self, outputs: Any) -> Results:
        """The inverse of `present`."""
        if len(self.wanted) == 1:
            outputs = (outputs,)
        results = [None] * len(self._results)
        for i, output in zip(self.wanted, outputs, strict=True):
            results[i] = output
        return tuple(results)

    def vjp(self, operands: Any, cotangents: Any, wanted: tuple[bool, ...]) -> Sequence[Any]:
        """Cotangents of the operands; `cotangents` are those of the wanted results.

        `wanted` may count in front of the operands what is none of them, and has no cotangent.
        """
        key: Any = wanted
        if len(cotangents) > 1 or cotangents[0] is None:
            key = wanted, tuple([cotangent is not None for cotangent in cotangents])
        steps = self._vjp_steps.get(key)
        if steps is None:
            given = [cotangent is not None for cotangent in cotangents]
            steps = self._vjp_steps[key] = self._ask_vjp(wanted, given)
        values = (*operands, *cotangents, None)
        if len(steps) == 1:
            step = steps[0]
            operands = step.pick(values)
            results = step.native(*operands)
            if results is None:
                results = step.plan(*operands)
            return step.arrange((*results, None))
        return _total(steps, values, len(wanted))

    def jvp(self, operands: Any, tangents: Any) -> Sequence[Any]:
        """Tangents of the results, from those of the operands (None: zero)."""
        key = tuple([tangent is not None for tangent in tangents])
        steps = self._jvp_steps.get(key)
        if steps is None:
            steps = self._jvp_steps[key] = self._ask_jvp(key)
        return _total(steps, (*operands, *tangents, None), len(self._results))

    def _specs(self) -> list[Any]:
        return [None if dtype is None else Spec((), dtype) for dtype in self.dtypes]

    def _positions(self) -> tuple[int | None, ...]:
        return tuple(None if dtype is None else i for i, dtype in enumerate(self.dtypes))

    def _ask_vjp(self, counted: tuple[bool, ...], given: Sequence[bool]) -> list[_Step]:
        first = len(self.dtypes)
        before = len(counted) - first
        wanted = counted[before:]
        cotangents: list[int | None] = [None] * len(self._results)
        for i, (place, is_given) in enumerate(zip(self.wanted, given, strict=True)):
            cotangents[place] = first + i if is_given else None
        dtypes = [*self.dtypes, *(self._results[place] for place in self.wanted)]
        results = (None,) * len(self._results)
        answer = self.op.vjp(
            self._positions(), results, tuple(cotangents), wanted, self._specs(), self.params
        )
        steps = []
        for derivative, places in answer:
            shifted = [None if place is None else place + before for place in places]
            steps.append(_Step(derivative, dtypes, shifted, len(counted)))
        return steps

    def _ask_jvp(self, given: tuple[bool, ...]) -> list[_Step]:
        first = len(self.dtypes)
        tangents = tuple(first + i if is_given else None for i, is_given in enumerate(given))
        results = (None,) * len(self._results)
        answer = self.op.jvp(self._positions(), results, tangents, self._specs(), self.params)
        every = [None if dtype is None else i for i, dtype in enumerate(self._results)]
        count = len(self._results)
        return [_Step(derivative, [*self.dtypes] * 2, every, count) for derivative in answer]


@functools.lru_cache(maxsize=4096)
def plan_of(op: Any, params: Any, dtypes: tuple[str | None, ...]) -> Plan:
    """The plan of a call; the same object for the same arguments, while it is in use."""
    return Plan(op, params, dtypes)


class Call(torch.autograd.Function):
    """The derivative rules, shared by the ways of writing forward."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return ctx.plan.vjp(ctx.saved_tensors, cotangents, ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        return ctx.plan.present(ctx.plan.jvp(ctx.saved_tensors, tangents))

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Plan, *operands: Any) -> Any:
        params, moved = batched(plan.op, plan.params, operands, in_dims[1:], info.batch_size)
        outputs = plan.present(plan_of(plan.op, params, plan.dtypes)(*moved))
        return outputs, (0 if isinstance(outputs, Tensor) else (0,) * len(outputs))


class _EagerCall(Call):
    """Forward and context in one, which costs a third of what setup_context does."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *operands: Any) -> Any:
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*operands)
        results = plan.compute(*operands)
        if results is None:
            results = plan.run_below(operands)
        return results[plan.only] if plan.only is not None else plan.present(results)


def _backward_below(ctx: Any, *cotangents: Any) -> Any:
    return ctx.plan.vjp(ctx.saved_tensors, cotangents, ctx.needs_input_grad)


# What the engine calls would look up `backward` and whether there is a `vjp` before calling it, at
# a good part of what a tiny backward pass costs. Where torch has no such class, nothing changes.
_EagerCall._backward_cls.apply = _backward_below  # type: ignore[attr-defined]


class _FunctorchCall(Call):
    """The form that torch.func can transform."""

    @staticmethod
    def forward(plan: Plan, *operands: Any) -> Any:
        return plan.present(plan(*operands))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        remember(ctx, inputs[0], inputs[1:])


def remember(ctx: Any, plan: Plan, operands: tuple[Any, ...]) -> None:
    """Keeps what the derivative rules need."""
    ctx.plan = plan
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*operands)
    ctx.save_for_forward(*operands)


def batched(
    op: Any, params: Any, operands: Sequence[Any], dims: Sequence[int | None], size: int
) -> tuple[Any, tuple[Any, ...]]:
    """Parameters and operands of the call with one more dimension, which results have in front."""
    params, moves = batch_call(
        op, params, [o is not None for o in operands], [d is not None for d in dims]
    )
    moved = []
    for operand, dim, move in zip(operands, dims, moves, strict=True):
        if move is Move.FRONT:
            operand = operand.movedim(dim, 0)
        elif move is Move.BROADCAST:
            operand = operand.expand(size, *operand.shape)
        moved.append(operand)
    return params, tuple(moved)


# What a native kernel asks, to know whether a call is an ordinary one, and what it needs to run it.
_FRONTEND = (
    (Tensor, torch.nn.Parameter),
    (_dispatch_modes, _function_modes, _functorch_active, _tracing_state),
    vars(forward_ad),
    _is_grad_enabled,
    torch.empty_like,
    torch.get_num_threads,
    getattr(torch._C, "_cuda_getDevice", None),
    allocate,
    # Without the wrapper in Python, which asks what the kernel has asked already.
    super(torch.autograd.Function, _EagerCall).apply,
)


def native_kernel(op: Any) -> Any:
    """Returns a native kernel without a variant: it runs nothing before one is added."""
    return _native.Kernel(op.name, _FRONTEND)
