"""Optimizers with the bits of `bridge.jax.optim`, and the interface and state of torch.optim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bridge.catalogue import optimizers
from bridge.catalogue.checks import number
from bridge.lang.dtypes import FLOATING
from bridge.ops.scalars import real_number
from bridge.torch._adapter.kernels import DTYPES, dtype_word

__all__ = ["SGD", "AdamW", "clip_grad_norm_"]

_FLOATING = frozenset(DTYPES[name] for name in FLOATING)


class _InPlace(torch.optim.Optimizer):
    """A step that bridge's kernels write over the parameters and the state."""

    _name: str

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient.

        Args:
          closure: computes the loss and the gradients again; it is called first.

        Returns:
          The loss from the closure, or None.

        Raises:
          TypeError: for a parameter or gradient that is complex, sparse or of another dtype. Nothing
            has been written then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [list(self._with_gradients(place)) for place in range(len(self.param_groups))]
        for group, parameters in zip(self.param_groups, found, strict=True):
            numbers = _Numbers()
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
            yield p, g

    def _refuse(self, place: int, i: int, found: str, expected: str = "") -> None:
        expected = expected or f"one of {', '.join(FLOATING)}"
        names = self.param_groups[place].get("param_names")
        name = names[i] if names else f"parameter {i} of group {place}"
        raise TypeError(f"{self._name}: {name} {found}, expected {expected}")

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: _Numbers) -> None:
        raise NotImplementedError

    def _new_state(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p, dtype=_arithmetic(p), memory_format=torch.preserve_format)


class AdamW(_InPlace, torch.optim.AdamW):
    r"""AdamW in place, with the bits of `bridge.jax.optim.adamw`.

    m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g² and
    p ← p − lr·(m̂/(√v̂ + eps) + weight_decay·p), with m̂ = m/(1 − β₁ᵗ) and v̂ = v/(1 − β₂ᵗ)
    (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019). Every operation is
    rounded where it stands: in float32 for parameters of 16 and 32 bits, whose state is float32, and
    in float64 for float64. `torch.optim.AdamW` has the same formula in another order of operations.

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

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: _Numbers) -> None:
        state = self.state[p]
        if not state:
            device = p.device if group["capturable"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = self._new_state(p)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = self._new_state(p)
        state["step"] += 1
        m, v, largest = state["exp_avg"], state["exp_avg_sq"], state.get("max_exp_avg_sq")
        p, g, m, v, largest = _as_rows(p, g, m, v, largest)
        lr, weight_decay = numbers.of(group["lr"], p), numbers.decay(group["weight_decay"], p)
        step = numbers.step(state["step"], p)
        b1, b2 = group["betas"]
        optimizers.adamw_mean.torch(m, g, b1=b1, maximize=bool(group["maximize"]), out=m)
        optimizers.adamw_square.torch(v, g, b2=b2, out=v)
        if group["amsgrad"]:
            v = torch.maximum(largest, v, out=largest)
        optimizers.adamw_parameter.torch(
            p, m, v, lr, step, weight_decay, b1=b1, b2=b2, eps=group["eps"], out=p
        )


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

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any], numbers: _Numbers) -> None:
        momentum, maximize = group["momentum"], bool(group["maximize"])
        buffer, is_first = None, False
        if momentum != 0:
            state = self.state[p]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                is_first, buffer = True, self._new_state(p)
                state["momentum_buffer"] = buffer
        p, g, buffer = _as_rows(p, g, buffer)
        lr, weight_decay = numbers.of(group["lr"], p), numbers.decay(group["weight_decay"], p)
        if buffer is not None:
            step = numbers.integer(1 if is_first else 2, p.device)
            decays = {"momentum": momentum, "dampening": group["dampening"]}
            optimizers.sgd_buffer.torch(
                buffer, p, g, step, weight_decay, **decays, maximize=maximize, out=buffer
            )
        chosen = {"momentum": momentum, "nesterov": bool(group["nesterov"]), "maximize": maximize}
        optimizers.sgd_parameter.torch(p, g, lr, buffer, weight_decay, **chosen, out=p)


def _refuse_differentiable(name: str, differentiable: bool) -> None:
    if differentiable:
        raise ValueError(
            f"{name}: differentiable is True, expected False: a step is written over the "
            "parameters; bridge.jax.optim has steps that are functions"
        )


class _Numbers:
    """The numbers of a group as tensors of the kernels' types, each made once in a step."""

    def __init__(self) -> None:
        self._made: dict[Any, Tensor] = {}

    def of(self, value: Any, p: Tensor) -> Tensor:
        """Returns a learning rate or weight decay in the type of the arithmetic on p."""
        dtype = _arithmetic(p)
        key = id(value), dtype, p.device
        if key not in self._made:
            if isinstance(value, Tensor):
                made = value.detach().to(p.device, dtype).reshape(())
            else:
                made = torch.full((), value, dtype=dtype, device=p.device)
            self._made[key] = made
        return self._made[key]

    def decay(self, value: Any, p: Tensor) -> Tensor | None:
        """Returns a weight decay; None for no decay."""
        is_zero = not isinstance(value, Tensor) and value == 0
        return None if is_zero else self.of(value, p)

    def step(self, count: Tensor, p: Tensor) -> Tensor:
        """Returns the step count of the state as an integer on the device of p."""
        if count.is_cpu:
            return self.integer(int(count), p.device)
        return count.to(p.device, torch.int64)  # without a wait for the device

    def integer(self, value: int, device: torch.device) -> Tensor:
        key = value, device
        if key not in self._made:
            self._made[key] = torch.full((), value, dtype=torch.int64, device=device)
        return self._made[key]


def _arithmetic(p: Tensor) -> torch.dtype:
    return torch.float64 if p.dtype is torch.float64 else torch.float32


def _as_rows(p: Tensor, g: Tensor, *state: Tensor | None) -> tuple[Any, ...]:
    """Returns views of the tensors that kernels can write, with elements in the order of memory.

    The gradient is copied if it lies in another order than the parameter.
    """
    tensors = [None if t is None else _local(t, p) for t in (p, g, *state)]
    p = tensors[0]
    if not p.is_contiguous():  # channels last, or a transposed weight
        order = sorted(range(p.ndim), key=p.stride, reverse=True)
        tensors = [None if t is None else t.permute(order) for t in tensors]
    tensors[1] = tensors[1].contiguous()
    # A view is no Parameter, so it takes the short way into a kernel.
    if all(t is None or t.is_contiguous() for t in tensors):
        shape = optimizers.row_shape(tensors[0].shape)
        return tuple([None if t is None else t.view(shape) for t in tensors])
    return tuple([None if t is None else t.detach() for t in tensors])


def _local(tensor: Any, p: Any) -> Tensor:
    """Returns the part of a DTensor on this process; a gradient is first placed as its parameter.

    A step has the same formula for each element, so parts need no communication.
    """
    if type(p).__name__ != "DTensor":
        return tensor  # type: ignore[no-any-return]
    if tensor.placements != p.placements:
        tensor = tensor.redistribute(p.device_mesh, p.placements)
    return tensor.to_local()  # type: ignore[no-any-return]


_max_norm = number("a number from 0 on", lambda value: value >= 0)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Any,
    max_norm: float | Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""Scales the gradients in place by min(1, max_norm/norm), and returns the norm.

    The norm is √(Σ g²) over all gradients, with the bits of `bridge.jax.optim.clip_by_global_norm`
    if the tensors come in the same order. Each tensor's squares are added in the tree of row sums,
    in row-major order; then the sums of the tensors, in the same tree.

    Args:
      parameters: `model.named_parameters()`, a dict or other pairs of names and tensors, which are
        added in the order of their sorted names; or tensors without names, or a single one, which
        are added in the given order. Tensors without a gradient are left out.
      max_norm: the largest norm, from 0 on.
      norm_type: 2; other norms raise.
      error_if_nonfinite: True to raise if the norm is infinite or NaN.
      foreach: accepted, without effect.

    Returns:
      The norm of the gradients before, 0-dimensional, float32, or float64 if a gradient is float64.

    Raises:
      TypeError: for a gradient that is complex, sparse or of another dtype.
      ValueError: for a negative max_norm or another norm_type.
      RuntimeError: for a norm that is not finite, with error_if_nonfinite.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> model(torch.ones(4, 3)).sum().backward()
      >>> norm = clip_grad_norm_(model.named_parameters(), 1.0)
    """
    name = "clip_grad_norm_"
    limit = _max_norm(name, "max_norm", max_norm)
    if real_number(name, "norm_type", norm_type) != 2.0:
        raise ValueError(f"{name}: norm_type is {norm_type}, expected 2")
    gradients = []
    for key, parameter in _in_order(name, parameters):
        if (g := parameter.grad) is None:
            continue
        if g.layout is not torch.strided or g.dtype not in _FLOATING:
            found = "is sparse" if g.layout is not torch.strided else f"has dtype {g.dtype}"
            raise TypeError(
                f"{name}: the gradient of {key} {found}, expected a dense one of one of "
                f"{', '.join(FLOATING)}"
            )
        gradients.append(g)
    if not gradients:
        return torch.zeros(())
    sums = [optimizers.sum_of_squares.torch(_whole(g).reshape(1, -1)) for g in gradients]
    dtype = torch.float64 if any(s.dtype is torch.float64 for s in sums) else torch.float32
    row = torch.cat([s.to(sums[0].device, dtype) for s in sums]).reshape(1, -1)
    norms, factors = optimizers.norm_and_factor.torch(row, row.new_full((1,), limit))
    norm, factor = norms.reshape(()), factors.reshape(())
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(f"{name}: the norm of the gradients is {norm.item()}, expected a number")
    for g in gradients:
        g = _as_rows(g, g)[0]
        optimizers.clipped.torch(g, factor.to(g.device, _arithmetic(g)), out=g)
    return norm


def _whole(g: Any) -> Tensor:
    return g.full_tensor() if type(g).__name__ == "DTensor" else g  # type: ignore[no-any-return]


def _in_order(function: str, parameters: Any) -> Iterable[tuple[str, Tensor]]:
    """Returns pairs of names and tensors: sorted by names if these are given."""
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    given = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    has_names = bool(given) and not isinstance(given[0], Tensor)
    pairs = given if has_names else [(f"tensor {i}", each) for i, each in enumerate(given)]
    for pair in pairs:
        is_pair = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)
        if not is_pair or not isinstance(pair[1], Tensor):
            raise TypeError(
                f"{function}: parameters has a member of type {type(pair).__name__}, expected "
                "tensors, or pairs of a name and a tensor"
            )
    return sorted(pairs, key=lambda pair: pair[0]) if has_names else pairs
