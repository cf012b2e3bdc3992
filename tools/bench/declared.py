"""The seven ops of docs/declare.md beside the same expressions in each framework."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

from tests.lang import declarations
from tools.bench.cases import Case, Function, Make, Op

SHAPES = ((64, 1024), (4096, 1024))
FORMS = (
    *("rms_norm", "layer_norm", "soft_capped_gate", "log_softmax"),
    *("row_dot", "weighted_squared_relu", "swish_gate"),
)


class Declared(Op):
    """A form is the name of an op."""

    name = "declared"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        count = 1 if quick else None
        forms, shapes = FORMS[: 2 if quick else None], SHAPES[:count]
        dtypes = ("float32", "bfloat16")[:count]
        for shape, form, dtype, what in itertools.product(
            shapes, forms, dtypes, ("forward", "forward+backward")
        ):
            yield Case(self.name, framework, what, dtype, form, shape)
        tiny = {"torch": ("forward", "forward+backward"), "jax": ("outside jit",)}
        for what in tiny[framework]:
            yield Case(self.name, framework, what, "float32", "rms_norm", (2, 8), part="tiny")

    def moved(self, case: Case) -> tuple[float, float]:
        operands = {"soft_capped_gate": 2, "row_dot": 2, "swish_gate": 2}.get(case.form, 1)
        results = 0 if case.form == "row_dot" else 1
        return operands + results, 2 * operands + results

    def result_shape(self, case: Case) -> tuple[int, ...]:
        return case.shape[:-1] if case.form == "row_dot" else case.shape

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        x, (rows, cols) = make.normal(*case.shape), case.shape
        others: dict[str, Any] = {
            "rms_norm": lambda: (x, make.normal(cols)),
            "layer_norm": lambda: (x, make.normal(cols), make.normal(cols)),
            "log_softmax": lambda: (x,),
            "weighted_squared_relu": lambda: (x, make.normal(rows)),
            "swish_gate": lambda: (make.normal(rows, 2 * cols), make.normal(cols)),
        }
        return others.get(case.form, lambda: (x, make.normal(*case.shape)))(), ()

    def bridged(self, case: Case, ops: Any) -> Function:
        # What is timed is compiled: the first call waits for it.
        os.environ["BRIDGE_COMPILE"] = "now"
        op = _op(case.form)
        return op.torch if ops.__name__ == "bridge.torch" else op.jax

    def in_torch(self, case: Case) -> Function:
        import torch
        from torch.nn import functional

        def swish_gate(x: Any, bias: Any) -> Any:
            gate, up = x.chunk(2, -1)
            return functional.silu(gate + bias) * up

        functions: dict[str, Function] = {
            "rms_norm": lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6),
            "layer_norm": lambda x, weight, bias: functional.layer_norm(
                x, weight.shape, weight, bias
            ),
            "soft_capped_gate": lambda gate, up: 5.0 * torch.tanh(gate / 5.0) * up,
            "log_softmax": lambda x: torch.log_softmax(x, -1),
            "row_dot": lambda x, y: (x * y).sum(-1),
            "weighted_squared_relu": lambda x, weight: x.relu().square() * weight[:, None],
            "swish_gate": swish_gate,
        }
        return functions[case.form]

    def in_jax(self, case: Case) -> Function:
        import jax
        import jax.numpy as jnp

        def rms_norm(x: Any, weight: Any) -> Any:
            return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight

        def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
            centred = x - jnp.mean(x, -1, keepdims=True)
            r = jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
            return centred * r * weight + bias

        def swish_gate(x: Any, bias: Any) -> Any:
            gate, up = jnp.split(x, 2, -1)
            return jax.nn.silu(gate + bias) * up

        functions: dict[str, Function] = {
            "rms_norm": rms_norm,
            "layer_norm": layer_norm,
            "soft_capped_gate": lambda gate, up: 5.0 * jnp.tanh(gate / 5.0) * up,
            "log_softmax": lambda x: jax.nn.log_softmax(x, axis=-1),
            "row_dot": lambda x, y: jnp.sum(x * y, -1),
            "weighted_squared_relu": lambda x, weight: jnp.square(jax.nn.relu(x)) * weight[:, None],
            "swish_gate": swish_gate,
        }
        return functions[case.form]


@functools.cache
def _op(form: str) -> Any:
    import bridge

    keep = ("r",) if form == "rms_norm" else ()
    return bridge.op(keep=keep)(getattr(declarations, form))
