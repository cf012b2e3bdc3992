"""Optimizers with the bits of `bridge.jax.optim`, and the interface and state of torch.optim."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import DisableTorchFunction
from bridge.catalogue import optimizers
from bridge.lang.dtypes import FLOATING
from bridge.torch._adapter.kernels import DTYPES, dtype_word
from bridge.torch._ops.clipping import clip_grad_norm_
from bridge.torch._ops.optimizer_operands import (
    Numbers,
    arithmetic_of,
    as_rows,
    check_operand_number,
    unwritable,
)

__all__ = ["SGD", "AdamW", "clip_grad_norm_"]

_FLOATING = frozenset(DTYPES[name] for name in FLOATING)

# The entries take operands and static arguments by position, without a public function's frame.
_adamw = optimizers.adamw_in_place.entry("torch").run
_sgd = optimizers.sgd_in_place.entry("torch").run


class _InPlace(torch.optim.Optimizer):
    """A step that bridge's kernels write over the parameters and the state."""

    _name: str
    _may_be_absent: tuple[str, ...] = ()
    _is_counted = False  # True if a state has the number of steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient.

        Args:
          closure: computes the loss and the gradients again; it is called first.

        Returns:
          The loss from the closure, or None.

        Raises:
          TypeError, ValueError: for a parameter or gradient that is complex, sparse or of another
            dtype, a number of a group that is out of range, or a state that does not fit its
            parameter. Nothing has been written then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # A mode or a subclass takes over public functions only, and a step calls none.
        with DisableTorchFunction():
            found = [list(self._with_gradients(place)) for place in range(len(self.param_groups))]
            for group, parameters in zip(self.param_groups, found, strict=True):
                numbers = Numbers()
                for p, g in parameters:
                    self._update(p, g, group, numbers)
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads a state of this optimizer or of torch's.

        The state of parameters of 16 bits is kept in float32, where torch would round it to the
        parameter's dtype.
        """
        loaded: list[Any] = []
        # A pre-hook of the user may replace the state, and runs before this one.
        hook = self.register_load_state_dict_pre_hook(lambda _, state: loaded.append(state))
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        for group, saved in zip(self.param_groups, loaded[0]["param_groups"], strict=True):
            for p, key in zip(group["params"], saved["params"], strict=True):
                if p.dtype in (torch.float16, torch.bfloat16):
                    self._keep_whole(self.state.get(p, {}), loaded[0]["state"].get(key, {}))

    def _keep_whole(self, own: dict[str, Any], loaded: Mapping[str, Any]) -> None:
        for name, value in loaded.items():
            if name != "step" and isinstance(value, Tensor):
                own[name] = value.to(own[name].device, torch.float32)

    def _with_gradients(self, place: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the parameters of a group that have gradients, after a check of both."""
        group = self.param_groups[place]
        for name in ("lr", "weight_decay"):
            check_operand_number(self._name, f"{name} of group {place}", group[name])
        self._check_numbers(group)
        names = self._names_of_state(group)
        for i, p in enumerate(group["params"]):
            if (g := p.grad) is None:
                continue
            if p.dtype not in _FLOATING:
                self._refuse(place, i, f"has dtype {dtype_word(p.dtype)}")
            if g.layout is not torch.strided:
                self._refuse(place, i, "has a sparse gradient", "a dense one")
            if g.dtype not in _FLOATING or (g.dtype is torch.float64 and p.dtype != g.dtype):
                found = f"has dtype {dtype_word(p.dtype)} and a gradient of {dtype_word(g.dtype)}"
                self._refuse(place, i, found, "a gradient of the same dtype")
            if found := unwritable(p):
                self._refuse(place, i, found, "memory of its own", ValueError)
            if state := self.state.get(p):
                if self._is_counted and not isinstance(state.get("step"), Tensor):
                    self._refuse(place, i, "has a state without step", "its tensor", ValueError)
                for name in names:
                    self._check_state(place, i, p, name, state.get(name))
            yield p, g

    def _check_state(self, place: int, i: int, p: Tensor, name: str, value: Tensor | None) -> None:
        if value is None:
            if name not in self._may_be_absent:
                self._refuse(place, i, f"has a state without {name}", "its tensor", ValueError)
            return
        arithmetic = arithmetic_of(p)
        if value.shape == p.shape and value.device == p.device and value.dtype is arithmetic:
            if found := unwritable(value):
                found = f"has a state {name} that {found}"
                self._refuse(place, i, found, "memory of its own", ValueError)
            return
        for word, own, expected in (
            ("shape", list(value.shape), list(p.shape)),
            ("device", value.device, p.device),
            ("dtype", dtype_word(value.dtype), dtype_word(arithmetic)),
        ):
            if own != expected:
                found = f"has a state {name} of {word} {own}"
                self._refuse(place, i, found, str(expected), ValueError)

    def _refuse(
        self, place: int, i: int, found: str, expected: str = "", error: Any = TypeError
    ) -> None:
        expected = expected or f"one of {', '.join(FLOATING)}"
        names = self.param_groups[place].get("param_names")
        name = names[i] if names else f"parameter {i} of group {place}"
        raise error(f"{self._name}: {name} {found}, expected {expected}")

    def _check_numbers(self, group: dict[str, Any]) -> None:
        """Raises TypeError or ValueError for numbers that are fixed in a kernel."""
        raise NotImplementedError

    def _names_of_state(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Returns the names of the tensors of a parameter's state that have its shape."""
        raise NotImplementedError

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: Numbers) -> None:
        raise NotImplementedError

    def _new_state(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p, dtype=arithmetic_of(p), memory_format=torch.preserve_format)


class AdamW(_InPlace, torch.optim.AdamW):
    r"""AdamW in place, with the bits of `bridge.jax.optim.adamw`.

    m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g² and
    p ← p − lr·(m̂/(√v̂ + eps) + weight_decay·p), with m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ)
    (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). Every operation is
    rounded where it stands: in float32 for parameters of 16 and 32 bits, whose state is float32,
    and in float64 for float64. `torch.optim.AdamW` has the same formula in another order of
    operations.

    Args:
      params, lr, betas, eps, weight_decay, amsgrad, maximize: as in `torch.optim.AdamW`. lr may be
        a tensor of one number.
      capturable: True to keep the step count on the parameter's device, so that a step can be
        captured into a CUDA graph.
      foreach, fused: accepted, without effect: each parameter has its own calls.
      differentiable: False; a step that autograd records cannot be in place.

    Raises:
      ValueError: for a number out of range, or differentiable=True.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> optimizer = AdamW(model.parameters(), lr=1e-3)
      >>> model(torch.ones(4, 3)).sum().backward()
      >>> optimizer.step()
    """

    _name = "AdamW"
    _is_counted = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _refuse_differentiable(self._name, differentiable)
        super().__init__(
            *(params, lr, betas, eps, weight_decay, amsgrad),
            maximize=maximize,
            capturable=capturable,
        )

    def _check_numbers(self, group: dict[str, Any]) -> None:
        checks = optimizers.ADAMW_CHECKS
        for i, beta in enumerate(group["betas"]):
            checks["b1"](self._name, f"betas[{i}]", beta)
        checks["eps"](self._name, "eps", group["eps"])

    def _names_of_state(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: Numbers) -> None:
        state = self.state[p]
        if not state:
            device = p.device if group["capturable"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = self._new_state(p)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = self._new_state(p)
        state["step"] += 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        # The group decides: a state keeps its largest squares when amsgrad is switched off.
        largest = state["max_exp_avg_sq"] if group["amsgrad"] else None
        p, g, m, v, largest = as_rows(p, g, m, v, largest)
        lr, weight_decay = numbers.of(group["lr"], p), numbers.decay(group["weight_decay"], p)
        step = numbers.step(state["step"], p)
        b1, b2 = group["betas"]
        written = (p, m, v) if largest is None else (p, m, v, largest)
        operands = (p, g, m, v, lr, step, weight_decay, largest)
        _adamw(operands, written, b1, b2, group["eps"], bool(group["maximize"]))


class SGD(_InPlace, torch.optim.SGD):
    r"""SGD with momentum in place, with the bits of `bridge.jax.optim.sgd`.

    d = g + weight_decay·p; the buffer is d in the first step, then momentum·buffer +
    (1 − dampening)·d; p ← p − lr·buffer, or p − lr·(d + momentum·buffer) with Nesterov's momentum
    (Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013).
    Every operation is rounded where it stands: in float32 for parameters of 16 and 32 bits, whose
    buffer is float32, and in float64 for float64.

    Args:
      params, lr, momentum, dampening, weight_decay, nesterov, maximize: as in `torch.optim.SGD`. lr
        may be a tensor of one number.
      foreach, fused: accepted, without effect: each parameter has its own calls.
      differentiable: False; a step that autograd records cannot be in place.

    Raises:
      ValueError: for a number out of range, nesterov without momentum or with dampening, or
        differentiable=True.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
      >>> model(torch.ones(4, 3)).sum().backward()
      >>> optimizer.step()
    """

    _name = "SGD"
    _may_be_absent = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _refuse_differentiable(self._name, differentiable)
        super().__init__(
            *(params, lr, momentum, dampening, weight_decay, nesterov), maximize=maximize
        )

    def _check_numbers(self, group: dict[str, Any]) -> None:
        for name, check in optimizers.SGD_CHECKS.items():
            check(self._name, name, group[name])

    def _names_of_state(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: Numbers) -> None:
        momentum, maximize = group["momentum"], bool(group["maximize"])
        buffer, is_first = None, False
        if momentum != 0:
            state = self.state[p]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                is_first, buffer = True, self._new_state(p)
                state["momentum_buffer"] = buffer
        p, g, buffer = as_rows(p, g, buffer)
        lr, weight_decay = numbers.of(group["lr"], p), numbers.decay(group["weight_decay"], p)
        step = None
        written: Tensor | tuple[Tensor, Tensor] = p
        if buffer is not None:
            step = numbers.integer(1 if is_first else 2, p.device)
            written = p, buffer
        decays = momentum, group["dampening"]
        nesterov = bool(group["nesterov"])
        _sgd((p, g, lr, buffer, step, weight_decay), written, *decays, nesterov, maximize)


def _refuse_differentiable(name: str, differentiable: bool) -> None:
    if differentiable:
        raise ValueError(
            f"{name}: differentiable is True, expected False: a step is written over the "
            "parameters; bridge.jax.optim has steps that are functions"
        )
