"""linear_cross_entropy: its cases and peers, which have the logits of all rows in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tools.bench.cases import TINY, Case, Function, Make, Op

COLUMNS = 1 << 15
# Rows and features. The matrix products take seconds on two cores.
SIZES = ((1024, 512), (4096, 256))
# For 16-bit products on a CPU, which are many times slower.
FEW_FEATURES = 32


class LinearCrossEntropy(Op):
    """A form is a number of features; the shape of a case is the shape of the logits."""

    name = "linear_cross_entropy"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        sizes = [*itertools.product(SIZES, ["float32"]), ((1024, FEW_FEATURES), "bfloat16")]
        for (rows, features), dtype in sizes[:1] if quick else sizes:
            how = (framework, "forward+backward", dtype, f"{features} features", (rows, COLUMNS))
            yield Case(self.name, *how, peak=(rows, features) == SIZES[1])
        what = {"torch": "forward+backward", "jax": "outside jit"}[framework]
        form = f"{FEW_FEATURES} features"
        yield Case(self.name, framework, what, "float32", form, TINY, part="tiny")

    def moved(self, case: Case) -> tuple[float, float]:
        return 0.0, 0.0  # the matrix products dominate the time

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        (rows, columns), features = case.shape, int(case.form.split()[0])
        inputs = make.normal(rows, features), make.normal(columns, features) * features**-0.5
        return inputs, (make.below(columns, rows),)

    def cotangent(self, case: Case, make: Make) -> Any:
        return make.wide()

    def bridged(self, case: Case, ops: Any) -> Function:
        return ops.linear_cross_entropy  # type: ignore[no-any-return]

    def in_torch(self, case: Case) -> Function:
        from torch.nn.functional import cross_entropy, linear

        return lambda hidden, weight, labels: cross_entropy(linear(hidden, weight).float(), labels)

    def in_jax(self, case: Case) -> Function:
        import jax
        import jax.numpy as jnp

        def function(hidden: Any, weight: Any, labels: Any) -> Any:
            logits = (hidden @ weight.T).astype(jnp.float32)
            every = jax.nn.log_softmax(logits, axis=-1)
            return -jnp.mean(jnp.take_along_axis(every, labels[:, None], axis=-1))

        return function
