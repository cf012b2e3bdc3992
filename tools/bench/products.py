"""Matrix products and attention: their cases and peers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tools.bench.cases import Case, Function, Make, Op

# m, k, n: large products, few rows, short contractions, and layers of the demo's GPT.
PRODUCTS = (
    (2048, 1024, 4096),
    (2048, 4096, 1024),
    (1024, 1024, 1024),
    (512, 512, 512),
    (128, 512, 128),
    (1024, 64, 1024),
    (64, 1024, 1024),
    (8, 4096, 4096),
    (1, 4096, 4096),
    (1024, 64, 192),
    (1024, 176, 64),
)
ATTENTIONS = ((4, 8, 512, 64),)
WHATS = ("forward", "forward+backward")


class Products(Op):
    """A form is the number of columns of b; the shape of a case is that of a."""

    name = "matmul"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        for (m, k, n), what in itertools.product(PRODUCTS[3:4] if quick else PRODUCTS, WHATS):
            form = f"{n} columns"
            yield Case(self.name, framework, what, "float32", form, (m, k), compiled=False)

    def moved(self, case: Case) -> tuple[float, float]:
        return 0.0, 0.0  # arithmetic dominates the time

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        m, k = case.shape
        return (make.normal(m, k), make.normal(k, _columns(case))), ()

    def cotangent(self, case: Case, make: Make) -> Any:
        return make.normal(case.shape[0], _columns(case))

    def bridged(self, case: Case, ops: Any) -> Function:
        return ops.matmul  # type: ignore[no-any-return]

    def in_torch(self, case: Case) -> Function:
        return lambda a, b: a @ b

    def in_jax(self, case: Case) -> Function:
        return lambda a, b: a @ b


def _columns(case: Case) -> int:
    return int(case.form.split()[0])


class Attention(Op):
    """Attention of a sequence with itself; a form says whether it is causal."""

    name = "attention"

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        forms = ("causal",) if quick else ("causal", "whole")
        for shape, form, what in itertools.product(ATTENTIONS, forms, WHATS):
            yield Case(
                self.name, framework, what, "float32", form, shape, compiled=False, peak=True
            )

    def moved(self, case: Case) -> tuple[float, float]:
        return 0.0, 0.0  # arithmetic dominates the time

    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(make.normal(*case.shape) for _ in range(3)), ()

    def cotangent(self, case: Case, make: Make) -> Any:
        return make.normal(*case.shape)

    def bridged(self, case: Case, ops: Any) -> Function:
        is_causal = case.form == "causal"
        return lambda q, k, v: ops.attention(q, k, v, causal=is_causal)

    def in_torch(self, case: Case) -> Function:
        from torch.nn.functional import scaled_dot_product_attention

        is_causal = case.form == "causal"
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def in_jax(self, case: Case) -> Function:
        import jax

        def function(*arrays: Any) -> Any:
            moved = [x.swapaxes(1, 2) for x in arrays]
            found = jax.nn.dot_product_attention(*moved, is_causal=case.form == "causal")
            return found.swapaxes(1, 2)

        return function
