"""bias_gelu: its cases and peers."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from bridge.cli.catalogue import COMPARED
from tools.bench.cases import Case, Function
from tools.bench.catalogue import OfEntries

SMALL, LARGE = (64, 1024), (4096, 4096)


class BiasGelu(OfEntries):
    name = "bias_gelu"
    entries: ClassVar = {kind: COMPARED[f"bias_gelu {kind}"] for kind in ("tanh", "none")}

    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        kinds = [("float32", "tanh"), ("float32", "none"), ("bfloat16", "tanh")]
        kinds += [("bfloat16", "none"), ("float16", "tanh")]
        passes = [("forward", "new"), ("forward", "old"), ("backward", "new")]
        passes += [("forward+backward", "new")]
        if quick:
            kinds = [("float32", "tanh"), ("bfloat16", "tanh")]
            passes = [("forward", "old"), ("forward+backward", "new")]
        for shape, (dtype, form), (what, memory) in itertools.product(
            (SMALL, LARGE), kinds, passes
        ):
            # Old memory shows the cost of new memory, which is the same for all forms.
            if memory == "old" and form != "tanh":
                continue
            yield Case(self.name, framework, what, dtype, form, shape, memory)
        tiny = {"torch": ("forward", "forward+backward"), "jax": ("chain", "outside jit")}
        yield from self.extremes(framework, quick, "tanh", tiny[framework])

    # Tiny calls are timed, which a dictionary of operands would slow down.
    def bridged(self, case: Case, ops: Any) -> Function:
        function, form = ops.bias_gelu, case.form
        return lambda x, bias: function(x, bias, approximate=form)

    def in_torch(self, case: Case) -> Function:
        from torch.nn.functional import gelu

        form = case.form
        return lambda x, bias: gelu(x + bias, approximate=form)

    def into(self, name: str, case: Case, out: Any) -> Function | None:
        import torch

        import bridge.torch

        form = case.form
        if name == "bridge":
            function = bridge.torch.bias_gelu
            return lambda x, bias: function(x, bias, approximate=form, out=out)
        if name == "eager":
            h = torch.empty_like(out)
            gelu_into: Any = torch.ops.aten.gelu.out  # F.gelu has no out=

            def eager(x: Any, bias: Any) -> Any:
                torch.add(x, bias, out=h)
                return gelu_into(h, approximate=form, out=out)

            return eager
        if name == "compile":
            plain = self.in_torch(case)
            torch.compiler.reset()
            compiled = torch.compile(lambda x, b, out: out.copy_(plain(x, b)), dynamic=False)
            return lambda x, bias: compiled(x, bias, out)
        return None

    def library(self, name: str, case: Case) -> Function:
        if name == "Liger":
            raise LookupError("it has no bias_gelu, only the gated GEGLU")
        if name == "QuACK":
            raise LookupError("it has no bias_gelu, only GELU as a GEMM's epilogue")
        if case.form != "tanh":
            raise LookupError("TransformerEngine's GELU is the tanh form alone")
        gelu = importlib.import_module("transformer_engine.pytorch.ops").GELU()
        return lambda x, bias: gelu(x + bias)
