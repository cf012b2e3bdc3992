"""Ops that a user declares, compared with the same expressions in each framework."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from tests.lang import declarations
from tools.bench.cases import Case, Function, Make, Op

SHAPES = ((64, 1024), (4096, 1024))
FORMS = ("rms_norm", "soft_capped_gate", "row_dot")


class Declared(Op):
    """A form is the name of an op."""

    name = "declared"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        count = 1 if quick else None
        forms, shapes = FORMS[:count], SHAPES[:count]
        dtypes = ("float32", "bfloat16")[:count]
        for shape, form, dtype, what in itertools.product(
            shapes, forms, dtypes, ("forward", "forward+backward")
        ):
            yield Case(self.name, framework, what, dtype, form, shape)
        tiny = {"torch": ("forward", "forward+backward"), "jax": ("outside jit",)}
        for what in tiny[framework]:
            yield Case(self.name, framework, what, "float32", "rms_norm", (2, 8), part="tiny")

    def moved(self, case: Case) -> tuple[float, float]:
        operands = 1 if case.form == "rms_norm" else 2
        results = 0 if case.form == "row_dot" else 1
        return operands + results, 2 * operands + results

    def cotangent(self, case: Case, make: Make) -> Any:
        return make.wide(case.shape[0]) if case.form == "row_dot" else make.normal(*case.shape)

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        other = case.shape[-1:] if case.form == "rms_norm" else case.shape
        return (make.normal(*case.shape), make.normal(*other)), ()

    def bridged(self, case: Case, ops: Any) -> Function:
        op = _op(case.form)
        return op.torch if ops.__name__ == "bridge.torch" else op.jax

    def in_torch(self, case: Case) -> Function:
        import torch
        from torch.nn import functional

        functions: dict[str, Function] = {
            "rms_norm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6),
            "soft_capped_gate": lambda gate, up: 5.0 * torch.tanh(gate / 5.0) * up,
            # One number per row has the dtype of the arithmetic.
            "row_dot": lambda x, y: (x * y).sum(-1, dtype=torch.float32),
        }
        return functions[case.form]

    def in_jax(self, case: Case) -> Function:
        import jax
        import jax.numpy as jnp

        def rms_norm(x: Any, weight: Any) -> Any:
            return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight

        functions: dict[str, Function] = {
            "rms_norm": rms_norm,
            "soft_capped_gate": lambda gate, up: 5.0 * jnp.tanh(gate / 5.0) * up,
            "row_dot": lambda x, y: jnp.sum(x * y, -1, dtype=jnp.float32),
        }
        return functions[case.form]


@functools.cache
def _op(form: str) -> Any:
    import bridge

    keep = ("r",) if form == "rms_norm" else ()
    return bridge.op(keep=keep)(getattr(declarations, form))
