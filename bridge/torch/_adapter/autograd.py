"""Makes any op a differentiable torch function from its two derivative rules.

`call` chooses the cheapest of these ways that is correct for the call:

- plain tensors, no gradient wanted: the kernel, directly;
- autograd, forward mode, torch.func: an `autograd.Function` whose derivatives are calls again;
- tracing (torch.compile, export, fake tensors, modes, tensor subclasses): the dispatcher op of the
  same name (see `dispatcher`).
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import (
    cuda_device,
    dispatch_modes,
    forward_ad,
    function_modes,
    functorch_active,
    inside_dispatcher,
    is_functionalized,
    is_old_batched,
    profiler,
    tracing_state,
    unwrap_if_dead,
)
from bridge.lang.dtypes import FLOATING, OF_8_BITS
from bridge.ops.definition import Op
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autograd_functions import FunctorchCall, apply_of, named
from bridge.torch._adapter.derivatives import Derivatives, Step, run_steps, zeros
from bridge.torch._adapter.dispatcher import dispatch
from bridge.torch._adapter.kernels import PLAIN, Kernel, Results, allocate, dtypes_of

_is_grad_enabled = torch.is_grad_enabled


def call(op: Op[Any], operands: tuple[Any, ...], params: Any, function: str = "") -> Results:
    """Runs `op`, differentiably if an operand requires it.

    `function` is the name that profilers show. Without it they show the op's name, and only for
    calls that autograd records.
    """
    if torch.compiler.is_compiling():
        return dispatch(op, operands, params)
    return plan_of(op, params, dtypes_of(operands), function)(*operands)


def is_traced(tensors: Sequence[Any]) -> bool:
    """True if a tracer, mode or tensor subclass sees every operation on these tensors."""
    if has_modes():
        return True
    return any(tensor is not None and type(tensor) not in PLAIN for tensor in tensors)


def has_modes() -> bool:
    """True if a tracer or mode sees every operation."""
    return bool(dispatch_modes() or function_modes() or tracing_state())


def is_watched(tensors: Sequence[Any]) -> bool:
    """True if tracing or torch.func sees every operation on these tensors."""
    return is_traced(tensors) or functorch_active()


def is_recorded(operands: Sequence[Any]) -> bool:
    """True if autograd records a call on these operands, in reverse or forward mode."""
    return forward_ad._current_level >= 0 or (
        _is_grad_enabled() and any([o is not None and o.requires_grad for o in operands])
    )


def is_ordinary(operands: Sequence[Any]) -> bool:
    """True for tensors on the CPU in a call that nothing sees but autograd's reverse mode."""
    return (
        operands[0].is_cpu
        and not is_watched(operands)
        and forward_ad._current_level < 0
        and not profiler._is_profiler_enabled
        and not torch.is_autocast_enabled("cpu")
        and not any([o is not None and is_old_batched(o) for o in operands])
    )


def is_in_graph(operands: Sequence[Any]) -> bool:
    """True if autograd's reverse mode records a call on these operands."""
    return _is_grad_enabled() and any([o is not None and o.requires_grad for o in operands])


class Plan(Kernel):
    """A kernel that can be differentiated; the derivative rules are asked once and stored."""

    def __init__(
        self, op: Op[Any], params: Any, dtypes: tuple[str | None, ...], function: str = ""
    ) -> None:
        super().__init__(op, params, dtypes)
        self.function = function
        self.name = function or op.name
        # The plan that runs if derivatives follow: it may have more results. Mostly it is this one.
        saving = op.saving(params)
        self.saving: Plan = self if saving == params else plan_of(op, saving, dtypes, function)
        self.derivatives = Derivatives(op, params, dtypes, plan_of)
        self.wanted = tuple(self.derivatives.wanted)
        # Each value is a single step that is a plain call, or a list of steps.
        self._vjp_steps: dict[Any, Any] = {}
        self._jvp_steps: dict[Any, list[Step]] = {}
        self.native = native_kernel(op)
        self.add_to(self.native)
        # Attributes for the hot path: in a tiny call, name lookups take most of the time.
        self.compute = self.saving.native.compute
        self.only = self.wanted[0] if len(self.wanted) == 1 else None
        # Results of 8 bits, which have no derivative.
        self.quantized = [i for i in self.wanted if self.derivatives.results[i] in OF_8_BITS]
        # True if the residuals are all operands and nothing else.
        self.keeps_operands = False
        self._keep: Any = None
        self._zeros: tuple[int, ...] = ()
        self._constant: tuple[int, ...] = ()

    @staticmethod
    def like(op: Op[Any], params: Any, dtypes: tuple[str | None, ...], function: str = "") -> Plan:
        """Returns the plan of another call."""
        return plan_of(op, params, dtypes, function)

    def __call__(self, *operands: Any) -> Results:
        """Runs the call, differentiably if an operand requires it."""
        results = self.native(*operands)
        return self.watched(*operands) if results is None else results

    def watched(self, *operands: Any) -> Results:
        """Runs a call that the native kernel refuses, such as a traced or a recorded one."""
        if is_traced(operands) or inside_dispatcher() or is_functionalized():
            return dispatch(self.op, operands, self.params)
        if functorch_active():
            # The residuals must be outputs here: the outer transforms follow them too.
            outputs = named(FunctorchCall, self.name).apply(self.saving, *operands)
            return self.saving.place(outputs)[: len(self._results)]
        if is_recorded(operands):
            # The old vmap (is_grads_batched) runs above autograd, whose graph it would lose here.
            if any([o is not None and is_old_batched(o) for o in operands]):
                return dispatch(self.op, operands, self.params)
            # Torch takes a tensor that has outlived its transform for another tensor's gradient.
            operands = tuple([o if o is None else unwrap_if_dead(o) for o in operands])
            # Profilers show the work of a Function, and forward mode asks it for tangents.
            is_plain = forward_ad._current_level < 0 and not profiler._is_profiler_enabled
            record = self.record if is_plain else functools.partial(apply_of(self.name), self)
            return self.place(record(*operands))
        with self.recorded():
            return self.run_below(operands)

    def record(self, *operands: Any) -> Any:
        """Runs the call and has autograd record it; returns the wanted results as `present` does.

        The record function in C++ replaces this method once its module is loaded.
        """
        apply = apply_of(self.name)
        if (recorder := nodes.recorder()) is None:
            return apply(self, *operands)
        rules = self.derivatives
        values = len(self.dtypes) + len(self.wanted)
        is_smooth = all([rules.results[i] in FLOATING for i in self.wanted])
        if values > nodes.MOST_VALUES or not is_smooth:
            record = functools.partial(apply, self)
        else:
            name, below = f"bridge::{self.name}Backward", self.saving.run_below
            likes = self._likes_of if rules.zeros else None
            pull = self.only_step, self.pull
            kernel = self.saving.native
            record = recorder(name, rules.kept, self.wanted, kernel, below, likes, *pull)
        self.record = record  # type: ignore[method-assign]
        return record(*operands)

    def recorded(self) -> Any:
        """Returns the range that a profiler shows for a call that autograd does not record."""
        if self.function and profiler._is_profiler_enabled:
            return profiler.record_function(f"bridge::{self.name}")
        return contextlib.nullcontext()

    def run_below(self, operands: tuple[Any, ...]) -> Results:
        """Runs the call below autograd and torch.func, which have been handled."""
        results = self.native.compute(*operands)
        if results is not None:
            return results
        try:
            return self.run(operands, self.empty_results(operands))
        except RuntimeError:
            # Gradients in batches (is_grads_batched) arrive as tensors of the old vmap. Only the
            # tensors themselves show it; the dispatcher knows how to loop over them.
            if any(operand is not None and is_old_batched(operand) for operand in operands):
                return dispatch(self.op, operands, self.params)
            # Cotangents may be sparse, as from torch.gather(..., sparse_grad=True).
            dense = tuple([o.to_dense() if o is not None and o.is_sparse else o for o in operands])
            if all(map(operator.is_, dense, operands)):
                raise
        return self.run_below(dense)

    def present(self, results: Sequence[Any]) -> Any:
        """Returns the wanted results as a Function does: a tensor, or a tuple of several."""
        if len(self.wanted) == 1:
            return results[self.wanted[0]]
        return tuple([results[i] for i in self.wanted])

    def place(self, outputs: Any) -> Results:
        """Inverts `present`: puts the outputs at their places among the results, None elsewhere."""
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        results = [None] * len(self._results)
        for i, output in zip(self.wanted, outputs, strict=True):
            results[i] = output
        return tuple(results)

    def remember(self, ctx: Any, operands: tuple[Any, ...], results: Results) -> tuple[Any, ...]:
        """Prepares ctx for `vjp` and `jvp`; returns the residuals, which the caller must save.

        `results` are the results of `saving`.
        """
        ctx.plan = self
        ctx.set_materialize_grads(False)
        if self.quantized:
            ctx.mark_non_differentiable(*[results[i] for i in self.quantized])
        if self._keep is None:
            rules = self.derivatives
            self._keep, self._zeros, self._constant = rules.keep, rules.zeros, rules.constant
            self.keeps_operands = not (rules.zeros or rules.constant) and rules.kept == tuple(
                range(len(operands))
            )
        if self._zeros:
            ctx.likes = self._likes_of(operands)
        if self._constant:
            ctx.constant = {i: _like(results[i]) for i in self._constant}
        return self._keep((*operands, *results))

    def vjp(self, ctx: Any, cotangents: Any, wanted: tuple[bool, ...]) -> Sequence[Any]:
        """Computes `pull` from the residuals in ctx, as `remember` prepared it."""
        return self.pull(ctx.saved_tensors, cotangents, wanted, self._likes(ctx))

    def pull(
        self, kept: Any, cotangents: Any, wanted: tuple[bool, ...], likes: Any = None
    ) -> Sequence[Any]:
        """Returns the operands' cotangents from the residuals and the results' cotangents."""
        steps = self.vjp_steps(wanted, tuple([each is not None for each in cotangents]))
        values = (*kept, *cotangents, None)
        if type(steps) is Step:
            operands = steps.pick(values)
            results = steps.native(*operands)
            if results is None:
                results = steps.plan.watched(*operands)
            return steps.arrange((*results, None))
        return run_steps(steps, values, likes or {}, len(wanted))

    def vjp_steps(self, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> Any:
        """Returns the steps, or the step itself if there is only one and it is plain."""
        steps: Any = self._vjp_steps.get((wanted, given))
        if steps is None:
            steps = self.derivatives.vjp_steps(wanted, given)
            if len(steps) == 1 and steps[0].is_plain:
                steps = steps[0]
            self._vjp_steps[wanted, given] = steps
        return steps

    def only_step(self, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> Any:
        """Returns the only step in the form that nodes in C++ need, or None if there are others.

        Returns:
          The step's native kernel; the function for calls that the kernel refuses; the indices of
          the step's operands in (*kept, *cotangents, None); the indices of the cotangents in
          (*results of the step, None).
        """
        step = self.vjp_steps(wanted, given)
        if type(step) is not Step:
            return None
        return step.native, step.plan.watched, step.picked, step.arranged

    def jvp(self, ctx: Any, kept: Any, tangents: Any) -> Sequence[Any]:
        """Returns the results' tangents from the residuals and the operands' (None: zero)."""
        key = tuple([tangent is not None for tangent in tangents])
        steps = self._jvp_steps.get(key)
        if steps is None:
            steps = self._jvp_steps[key] = self.derivatives.jvp_steps(key)
        values = (*kept, *tangents, None)
        totals = run_steps(steps, values, self._likes(ctx), len(self._results))
        if not self._constant:
            return totals
        # Autograd needs a tangent for every floating result.
        return [
            zeros(ctx.constant[i]) if t is None and i in ctx.constant else t
            for i, t in enumerate(totals)
        ]

    def _likes_of(self, operands: tuple[Any, ...]) -> dict[int, Any]:
        return {i: _like(operands[i]) for i in self.derivatives.zeros}

    def _likes(self, ctx: Any) -> dict[int, Any]:
        return ctx.likes if self._zeros else {}


def _like(tensor: Any) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


@functools.lru_cache(maxsize=4096)
def plan_of(op: Op[Any], params: Any, dtypes: tuple[str | None, ...], function: str = "") -> Plan:
    """Returns the plan of a call; the same object for the same arguments, while it is in use."""
    return Plan(op, params, dtypes, function)


@functools.cache
def frontend() -> tuple[Any, ...]:
    """Returns the functions and objects of torch that a native kernel uses.

    With them it decides if a call is an ordinary one, and runs it.
    """
    return (
        (Tensor, torch.nn.Parameter),
        (dispatch_modes, function_modes, functorch_active, tracing_state),
        vars(forward_ad),
        vars(profiler),
        _is_grad_enabled,
        Tensor.requires_grad,
        Tensor.is_neg,
        torch.empty_like,
        Tensor.new_empty,
        ("dtype",),
        Tensor.data_ptr,
        torch.get_num_threads,
        cuda_device,
        allocate,
    )


def native_kernel(op: Op[Any]) -> Any:
    """Returns a native kernel without variants; it takes no call until one is added."""
    return _native.Kernel(op.kernel_name, frontend())
