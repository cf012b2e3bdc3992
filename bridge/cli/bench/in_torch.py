"""The contenders in torch: bridge, eager, torch.compile, a plain copy, libraries for the GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import bridge.torch
from bridge.cli.bench.cases import Case
from bridge.cli.bench.timing import Contender


def plain_bias_gelu(x: Tensor, bias: Tensor, form: str) -> Tensor:
    """What a user writes without bridge."""
    return F.gelu(x + bias, approximate=form)


PLAIN = {"bias_gelu": plain_bias_gelu}


class Contenders:
    """Builds the contenders of a case on a device.

    Attributes:
      notes: why a peer is missing.
    """

    def __init__(self, device: str, with_compile: bool = True) -> None:
        self.device = device
        self.notes: list[str] = []
        self.with_compile = with_compile and self._can_compile()
        if self.with_compile:
            # `backward` runs one graph again and again; compiled, it would give its saved tensors
            # away after the first.
            functorch: Any = importlib.import_module("torch._functorch.config")
            functorch.donated_buffer = False

    def _can_compile(self) -> bool:
        try:
            torch.compile(lambda x: x + 1.0, dynamic=False)(torch.ones(8, device=self.device))
        except (
            Exception
        ) as error:  # no compiler, no Triton, an unsupported Python: all of many types
            reason = str(error).strip().splitlines()[0][:120]
            self.notes.append(f"torch.compile skipped: {type(error).__name__}: {reason}")
            return False
        return True

    def of(self, case: Case) -> list[Contender]:
        """Returns bridge first, then the peers, then the copy."""
        dtype = getattr(torch, case.dtype)
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(self.device, dtype)

        x, bias, g = normal(*case.shape), normal(case.shape[-1]), normal(*case.shape)
        functions = {"bridge": _bridge(case), "eager": lambda x, b: PLAIN[case.op](x, b, case.form)}
        if self.with_compile:
            functions["compile"] = _compiled(case)
        if self.device == "cuda":
            functions |= self._libraries(case)
        contenders = []
        for name, function in functions.items():
            if case.what == "forward" and case.memory == "old":
                out = torch.empty_like(x)
                if (run := _into(name, case, x, bias, out)) is not None:
                    contenders.append(self._contender(name, run))
            else:
                contenders.append(self._contender(name, _RUNS[case.what](function, x, bias, g)))
        if case.what == "forward":
            if case.is_tiny:
                contenders.append(self._contender("add", _no_grad(lambda: torch.add(x, bias))))
            elif case.memory == "old":
                y = torch.empty_like(x)
                contenders.append(self._contender("copy", lambda: y.copy_(x)))
            else:
                contenders.append(self._contender("copy", lambda: x.clone()))
        return contenders

    def _contender(self, name: str, run: Callable[[], Any]) -> Contender:
        if self.device == "cuda":
            return Contender(name, run, _synchronise, queued=True)
        return Contender(name, run, _nothing)

    def _libraries(self, case: Case) -> dict[str, Callable[..., Any]]:
        """Other libraries' kernels of the same op, those that can be imported."""
        found: dict[str, Callable[..., Any]] = {}
        for name, (package, build) in LIBRARIES.items():
            try:
                importlib.import_module(package)
                found[name] = build(case)
            except Exception as error:  # a broken install raises anything
                note = f"{name} skipped: {error}"
                if note not in self.notes:
                    self.notes.append(note)
        return found


def _transformer_engine(case: Case) -> Callable[..., Any]:
    if case.op != "bias_gelu" or case.form != "tanh":
        raise LookupError("TransformerEngine's GELU is the tanh form alone")
    ops = importlib.import_module("transformer_engine.pytorch.ops")
    gelu = ops.GELU()
    return lambda x, bias: gelu(x + bias)


def _nothing_alike(what: str) -> Callable[[Case], Any]:
    def build(case: Case) -> Any:
        raise LookupError(f"it has no {case.op}, {what}")

    return build


LIBRARIES = {
    "TransformerEngine": ("transformer_engine.pytorch", _transformer_engine),
    "Liger": ("liger_kernel", _nothing_alike("only the gated GEGLU")),
    "QuACK": ("quack", _nothing_alike("only GELU as a GEMM's epilogue")),
}


def _bridge(case: Case) -> Callable[..., Any]:
    function, form = getattr(bridge.torch, case.op), case.form
    return lambda x, bias: function(x, bias, approximate=form)


def _compiled(case: Case) -> Callable[..., Any]:
    torch._dynamo.reset()
    plain, form = PLAIN[case.op], case.form
    return torch.compile(lambda x, bias: plain(x, bias, form), dynamic=False)


def _no_grad(run: Callable[[], Any]) -> Callable[[], Any]:
    def without_grad() -> Any:
        with torch.no_grad():
            return run()

    return without_grad


def _forward(f: Callable[..., Any], x: Tensor, bias: Tensor, g: Tensor) -> Callable[[], Any]:
    # No operand asks for a gradient, so nothing is recorded, as under no_grad.
    return lambda: f(x, bias)


def _backward(f: Callable[..., Any], x: Tensor, bias: Tensor, g: Tensor) -> Callable[[], Any]:
    inputs = (x.requires_grad_(), bias.requires_grad_())
    y = f(*inputs)
    return lambda: torch.autograd.grad(y, inputs, g, retain_graph=True)


def _both(f: Callable[..., Any], x: Tensor, bias: Tensor, g: Tensor) -> Callable[[], Any]:
    inputs = (x.requires_grad_(), bias.requires_grad_())
    return lambda: torch.autograd.grad(f(*inputs), inputs, g)


_RUNS = {"forward": _forward, "backward": _backward, "forward+backward": _both}


def _into(name: str, case: Case, x: Tensor, bias: Tensor, out: Tensor) -> Any:
    """The forward pass into `out`; None where a library cannot."""
    form = case.form
    if name == "bridge":
        function = getattr(bridge.torch, case.op)
        return lambda: function(x, bias, approximate=form, out=out)
    if name == "eager":
        h = torch.empty_like(x)
        gelu_into: Any = torch._C._nn.gelu  # F.gelu has no out=

        def eager() -> Tensor:
            torch.add(x, bias, out=h)
            return gelu_into(h, approximate=form, out=out)

        return eager
    if name == "compile":
        plain = PLAIN[case.op]
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, b, out: out.copy_(plain(x, b, form)), dynamic=False)
        return lambda: compiled(x, bias, out)
    return None


def _nothing(_: Any) -> None:
    pass


def _synchronise(_: Any) -> None:
    torch.cuda.synchronize()
