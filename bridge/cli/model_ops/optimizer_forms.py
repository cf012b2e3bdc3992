"""Forms of the optimizers' steps: a parameter and its state after three gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact, no_own

_LR, _DECAY, _B1, _B2, _EPS = 1e-2, 0.1, 0.9, 0.999, 1e-8
_MOMENTUM, _DAMPENING, _LIMIT = 0.9, 0.25, 3.0


def _is_jax(x: Any) -> bool:
    return hasattr(x, "astype")


def _optim(ops: Any) -> Any:
    return importlib.import_module(f"{ops.__name__}.optim")


def _stacked(arrays: Any) -> Any:
    """Returns `[3, *shape]` in the arithmetic's dtype, which holds numbers of 16 bits exactly."""
    if _is_jax(arrays[0]):
        import jax.numpy as jnp

        dtype = jnp.promote_types(arrays[0].dtype, jnp.float32)
        return jnp.stack([x.astype(dtype) for x in arrays])
    import torch

    wide = torch.promote_types(arrays[0].dtype, torch.float32)
    return torch.stack([x.detach().to(wide) for x in arrays])


def _after_steps(
    p: Operands,
    in_torch: Callable[[Any], Any],
    state_of_torch: Callable[[Any], Any],
    in_jax: Callable[[], Any],
    state_of_jax: Callable[[Any], Any],
) -> Any:
    if _is_jax(p["x"]):
        optimizer, params = in_jax(), p["x"]
        state = optimizer.init(params)
        for g in p["grads"]:
            params, state = optimizer.step(g, state, params)
        return _stacked([params, *state_of_jax(state)])
    import torch

    parameter = torch.nn.Parameter(p["x"].clone())
    optimizer = in_torch([parameter])
    for g in p["grads"]:
        parameter.grad = g.clone()
        optimizer.step()
    return _stacked([parameter, *state_of_torch(optimizer.state[parameter])])


def _adamw(ops: Any, p: Operands) -> Any:
    return _after_steps(
        p,
        lambda params: _optim(ops).AdamW(
            params, lr=_LR, betas=(_B1, _B2), eps=_EPS, weight_decay=_DECAY
        ),
        lambda state: (state["exp_avg"], state["exp_avg_sq"]),
        lambda: _optim(ops).adamw(_LR, _B1, _B2, _EPS, _DECAY),
        lambda state: (state.mu, state.nu),
    )


def _sgd(ops: Any, p: Operands) -> Any:
    options = {"momentum": _MOMENTUM, "dampening": _DAMPENING, "weight_decay": _DECAY}
    return _after_steps(
        p,
        lambda params: _optim(ops).SGD(params, lr=_LR, **options),
        lambda state: (state["momentum_buffer"],) * 2,
        lambda: _optim(ops).sgd(_LR, **options),
        lambda state: (state.trace,) * 2,
    )


def _clip(ops: Any, p: Operands) -> Any:
    """Clips the gradients of two tensors; returns one of each, and the norm everywhere."""
    if _is_jax(p["x"]):
        clip, grads = _optim(ops).clip_by_global_norm(_LIMIT), {"b": p["x"], "a": p["grads"]}
        scaled, state = clip.update(grads, clip.init(grads))
        norm = state.norm + 0.0 * scaled["b"].astype(state.norm.dtype)
        return _stacked([scaled["b"], scaled["a"][1], norm])
    import torch

    named = {"b": torch.nn.Parameter(p["x"]), "a": torch.nn.Parameter(p["grads"])}
    for parameter in named.values():
        parameter.grad = parameter.detach().clone()
    norm = _optim(ops).clip_grad_norm_(named, _LIMIT)
    b, a = named["b"].grad, named["a"].grad
    assert a is not None
    assert b is not None
    return _stacked([b, a[1], norm + 0.0 * b.to(norm.dtype)])


# ---- The same in bounded arithmetic ----


def _states(*arrays: Bounded) -> Mapping[str, Bounded]:
    fields = ("values", "error", "unit")
    stacked = (np.stack([getattr(x, field) for x in arrays]) for field in fields)
    return {"forward": Bounded(*stacked)}


def adamw_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    own, x = Arithmetic(case.arithmetic), exact(p["x"])
    m = v = exact(np.zeros(p["x"].shape))
    for step, gradient in enumerate(p["grads"], 1):
        g = exact(gradient)
        m = own.add(own.scaled(m, _B1), own.scaled(g, 1.0 - _B1))
        v = own.add(own.scaled(v, _B2), own.scaled(own.times(g, g), 1.0 - _B2))
        mean = own.over(m, _correction(own, step, _B1, g.shape))
        root = own.root(own.over(v, _correction(own, step, _B2, g.shape)))
        change = own.over(mean, own.add(root, exact(np.full(g.shape, _EPS))))
        change = own.scaled(own.add(change, own.scaled(x, _DECAY)), _LR)
        x = own.rounded(own.subtract(x, change), case.x)
    return _states(x, m, v)


def _correction(own: Arithmetic, step: int, beta: float, shape: tuple[int, ...]) -> Bounded:
    """Returns 1 − βᵗ, of which log1p and expm1 lose up to four units, and β's rounding half one.

    β is rounded to the arithmetic's dtype, and the rounding moves log β by up to a unit of 1 − β.
    """
    value = 1.0 - beta**step
    error = own.u * (8.0 * value + step / (1.0 - beta) * value)
    return Bounded(np.full(shape, value), np.full(shape, error), np.full(shape, own.u * value))


def sgd_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    own, x, buffer = Arithmetic(case.arithmetic), exact(p["x"]), None
    for gradient in p["grads"]:
        d = own.add(exact(gradient), own.scaled(x, _DECAY))
        if buffer is None:
            buffer = d
        else:
            buffer = own.add(own.scaled(buffer, _MOMENTUM), own.scaled(d, 1.0 - _DAMPENING))
        x = own.rounded(own.subtract(x, own.scaled(buffer, _LR)), case.x)
    assert buffer is not None
    return _states(x, buffer, buffer)


def clip_bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
    own, b = Arithmetic(case.arithmetic), exact(p["x"])

    def squares(array: Array) -> Bounded:
        flat = exact(array.reshape(1, -1))
        return own.row_sum(own.times(flat, flat))

    norm = own.root(own.add(squares(p["grads"]), squares(p["x"])))
    factor = own.over(exact(np.full((1, 1), _LIMIT)), norm)

    def clipped(x: Bounded) -> Bounded:
        whole = factor.as_view(lambda value: np.broadcast_to(value[0, 0], x.shape))
        return own.rounded(own.times(x, whole), case.x)

    every = norm.as_view(lambda value: np.broadcast_to(value[0, 0], b.shape))
    return _states(clipped(b), clipped(exact(p["grads"][1])), every)


def _form(
    name: str, call: Callable[[Any, Operands], Any], bounds: Any, *shapes: tuple[int, ...]
) -> Entry:
    return Entry(
        name,
        {"x": "parameter", "grads": "steps"},
        ("states",),
        call,
        no_own,
        no_own,
        compared=Comparison(
            "optimizers",
            bounds=bounds,
            differentiable=False,
            are_rows_independent=False,
            own=False,
            usual=False,
            shapes=shapes,
        ),
    )


OPTIMIZERS = (
    _form("adamw", _adamw, adamw_bounds, (13, 70), (3, 5, 7)),
    _form("sgd", _sgd, sgd_bounds, (13, 70), (3, 5, 7)),
    _form("clip_by_global_norm", _clip, clip_bounds, (5, 411), (3, 5, 7)),
)
