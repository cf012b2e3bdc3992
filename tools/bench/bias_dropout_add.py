"""bias_dropout_add: its cases and peers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tools.bench.cases import Case, Function, Make, Op

SMALL, MIDDLE, LARGE = (64, 1024), (1024, 4096), (4096, 4096)
P = 0.1


class BiasDropoutAdd(Op):
    """In torch, masks come from the default generator, in bridge too: no seed is given."""

    name = "bias_dropout_add"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        shapes, dtypes = [SMALL, MIDDLE, LARGE], ["float32", "bfloat16"]
        if quick:
            shapes, dtypes = [MIDDLE], dtypes[:1]
        for shape, dtype, what in itertools.product(
            shapes, dtypes, ("forward", "forward+backward")
        ):
            if what == "forward" and (quick or shape == MIDDLE):
                continue
            peak = (shape, what) == (MIDDLE, "forward+backward")
            compiled = what == "forward+backward"
            yield Case(
                self.name, framework, what, dtype, f"p={P:g}", shape, compiled=compiled, peak=peak
            )
        what = {"torch": "forward", "jax": "outside jit"}[framework]
        yield from self.extremes(framework, quick, f"p={P:g}", [what])

    def moved(self, case: Case) -> tuple[float, float]:
        return 3.0, 2.0  # (x, residual) → y; g → dx, while the residual's gradient is g

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inputs = (make.normal(*case.shape), make.normal(case.shape[-1]), make.normal(*case.shape))
        return inputs, (make.key(),)

    def bridged(self, case: Case, ops: Any) -> Function:
        function = ops.bias_dropout_add
        return lambda x, bias, residual, key: function(x, bias, residual, p=P, seed=key)

    def in_torch(self, case: Case) -> Function:
        from torch.nn.functional import dropout

        return lambda x, bias, residual, _: dropout(x + bias, P) + residual

    def in_jax(self, case: Case) -> Function:
        import jax
        import jax.numpy as jnp

        def function(x: Any, bias: Any, residual: Any, key: Any) -> Any:
            keep = jax.random.bernoulli(key, 1.0 - P, x.shape)
            return jnp.where(keep, (x + bias) / (1.0 - P), 0.0) + residual

        return function
