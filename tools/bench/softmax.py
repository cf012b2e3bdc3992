"""The softmax functions: their cases and peers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

from bridge.cli.entries import shape_of
from bridge.cli.fusion_entries import (
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    softmax_entry,
)
from tools.bench.cases import Case, Function
from tools.bench.catalogue import OfEntries

# The first shapes are attention scores, [batch, heads, queries, keys].
SCORES = ((32, 12, 128, 128), (8, 16, 512, 512))
LONG_SCORES = (1, 16, 2048, 2048)
LONG_ROWS = (64, 32768)
# The same number of elements, in rows of 1 Ki to 1 Mi.
GROWTH = tuple((1 << (22 - bits), 1 << bits) for bits in (10, 12, 14, 16, 18, 20))
SCALE = 0.125
MASK = "mask of batches"  # one for all heads


class Softmax(OfEntries):
    """`plain` has no scale, like torch.softmax; the other forms have `SCALE`."""

    name = "softmax"
    entries: ClassVar = {
        "plain": softmax_entry(scaled_softmax, scale=1.0),
        "masked": softmax_entry(scaled_masked_softmax, MASK, SCALE),
        "causal": softmax_entry(scaled_causal_softmax, "causal mask", SCALE),
    }
    starts_from_kept = True

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        forms, dtypes = ["plain", "masked", "causal"], ["float32", "bfloat16"]
        shapes = [*SCORES, LONG_SCORES, LONG_ROWS]
        if quick:
            forms, dtypes, shapes = forms[1:], dtypes[:1], shapes[:1]
        for shape, form, dtype, what in itertools.product(
            shapes, forms, dtypes, ("forward", "backward")
        ):
            if form == "causal" and shape == LONG_ROWS:
                continue
            # The largest arrays take seconds, and torch.compile takes seconds for each shape.
            bfloat16 = dtype == "bfloat16"
            if bfloat16 and (shape == LONG_SCORES or (form, shape) == ("plain", SCORES[1])):
                continue
            compiled = form != "plain" and (
                shape == SCORES[0] or (shape in SCORES and not bfloat16)
            )
            yield Case(self.name, framework, what, dtype, form, shape, compiled=compiled)
        tiny = {"torch": "forward", "jax": "outside jit"}[framework]
        yield from self.extremes(framework, quick, "masked", [tiny])
        if framework == "torch" and not quick:
            # The costs of lengths and masks are visible only without the cost of new memory.
            old: dict[str, Any] = {"memory": "old", "compiled": False}
            for form, what in itertools.product(("plain", "causal"), ("forward", "backward")):
                yield Case(self.name, framework, what, "float32", form, LONG_SCORES, **old)
            for shape in GROWTH:
                how = ("forward", "float32", "plain", shape)
                yield Case(self.name, framework, *how, part="growth", **old)

    def bytes(self, case: Case) -> int:
        has_mask = case.form == "masked" and case.what.startswith("forward")
        mask = math.prod(shape_of(MASK, case.shape)) if has_mask else 0
        return super().bytes(case) + mask

    def into(self, name: str, case: Case, out: Any) -> Function | None:
        import torch

        import bridge.torch

        causal = case.form == "causal"
        scale = SCALE if causal else 1.0
        if case.what == "backward":
            if name == "bridge":
                backward = bridge.torch.scaled_softmax_backward
                return lambda g, y: backward(g, y, scale, causal=causal, out=out)
            from bridge._private.torch import softmax_backward_data as aten

            def eager_backward(g: Any, y: Any) -> Any:
                aten(g, y, -1, y.dtype, grad_input=out)
                return out.mul_(scale) if causal else out

            return eager_backward
        if name == "bridge":
            function = bridge.torch.scaled_causal_softmax if causal else bridge.torch.scaled_softmax
            return lambda x, *_: function(x, scale, out=out)

        def eager(x: Any, mask: Any = None) -> Any:
            if causal:
                x = torch.mul(x, scale, out=out).masked_fill_(mask, -math.inf)
            return torch.softmax(x, -1, out=out)

        return eager

    def library(self, name: str, case: Case) -> Function:
        if case.form != "plain" or len(case.shape) != 2:
            raise LookupError("only softmax of a matrix, without mask or scale, is measured")
        if name == "Liger":
            from liger_kernel.transformers.functional import liger_softmax

            return liger_softmax
        if name == "QuACK":
            from quack.softmax import softmax

            return softmax
        return super().library(name, case)
