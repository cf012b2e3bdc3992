"""The contenders in torch: bridge, eager, torch.compile, a plain copy, libraries for the GPU."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bridge.torch
from tools.bench.cases import Case, Function, Make
from tools.bench.ops import OPS
from tools.bench.timing import Contender

Tensors = tuple[Any, ...]
LIBRARIES = {
    "TransformerEngine": "transformer_engine.pytorch",
    "Liger": "liger_kernel",
    "QuACK": "quack",
}


class _Make(Make):
    def __init__(self, case: Case, device: str) -> None:
        self.dtype, self.device = getattr(torch, case.dtype), device
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        # Draw a few numbers and repeat them: drawing all would take longer than the measurement.
        count = math.prod(shape)
        few = torch.randn(min(count, 1 << 20), generator=self.generator).to(self.device, self.dtype)
        return few.repeat(-(-count // few.numel()))[:count].reshape(shape)

    def wide(self, *shape: int) -> Tensor:
        numbers = self.normal(*shape)
        return numbers if self.dtype is torch.float64 else numbers.float()

    def below(self, count: int, *shape: int) -> Tensor:
        return torch.randint(0, count, shape, generator=self.generator).to(self.device)

    def hidden(self, *shape: int) -> Tensor:
        padding = torch.arange(shape[-1], device=self.device) >= shape[-1] * 4 // 5
        return padding.expand(shape).contiguous()

    def upper(self, rows: int, columns: int) -> Tensor:
        ones = torch.ones((rows, columns), dtype=torch.bool, device=self.device)
        return ones.triu(columns - rows + 1)

    def key(self) -> None:
        return None


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
            # `backward` runs one graph many times. A compiled graph would donate its saved tensors
            # in the first run.
            from bridge._private.torch import functorch_config

            functorch_config.donated_buffer = False

    def _can_compile(self) -> bool:
        try:
            torch.compile(lambda x: x + 1.0, dynamic=False)(torch.ones(8, device=self.device))
        except (
            Exception
        ) as error:  # no compiler, no Triton, an unsupported Python: errors of many types
            reason = str(error).strip().splitlines()[0][:120]
            self.notes.append(f"torch.compile skipped: {type(error).__name__}: {reason}")
            return False
        return True

    def of(self, case: Case) -> list[Contender]:
        """Returns bridge first, then the peers, then the copy."""
        inputs, rest, g = self._operands(case)
        x = inputs[0]
        contenders = []
        for name, function in self._functions(case).items():
            if case.memory == "old":
                into = OPS[case.op].into(name, case, torch.empty_like(x))
                if into is not None:
                    operands = (*inputs, *rest)
                    if case.what == "backward":
                        operands = (g, function(*operands))
                    contenders.append(self._contender(name, _bound(into, operands)))
            else:
                run = _PASSES[case.what](function, inputs, rest, g)
                contenders.append(self._contender(name, run))
        if case.what == "forward":
            if case.part == "tiny":
                other = inputs[1] if len(inputs) > 1 else x
                contenders.append(self._contender("add", _no_grad(lambda: torch.add(x, other))))
            elif case.memory == "old":
                y = torch.empty_like(x)
                contenders.append(self._contender("copy", lambda: y.copy_(x)))
            else:
                contenders.append(self._contender("copy", lambda: x.clone()))
        return contenders

    def memory(self, case: Case) -> dict[str, dict[str, int]]:
        """Returns bytes besides the operands by contender: at the peak, and for residuals."""
        inputs, rest, g = self._operands(case)
        found = {}
        for name, function in self._functions(case).items():
            run = _PASSES[case.what](function, inputs, rest, g)
            run()  # compiles
            peak = _peak_cuda(run) if self.device == "cuda" else _peak_cpu(run)
            found[name] = {"peak": peak, "kept": _kept(function, inputs, rest)}
        return found

    def _operands(self, case: Case) -> tuple[Tensors, Tensors, Any]:
        make = _Make(case, self.device)
        op = OPS[case.op]
        return *op.operands(case, make), op.cotangent(case, make)

    def _functions(self, case: Case) -> dict[str, Function]:
        op = OPS[case.op]
        functions = {"bridge": op.bridged(case, bridge.torch), "eager": op.in_torch(case)}
        if self.with_compile and case.compiled:
            torch.compiler.reset()
            functions["compile"] = torch.compile(op.in_torch(case), dynamic=False)
        if self.device == "cuda":
            functions |= self._libraries(case)
        return functions

    def _contender(self, name: str, run: Callable[[], Any]) -> Contender:
        return Contender(name, run, wait_on(self.device), queued=self.device == "cuda")

    def _libraries(self, case: Case) -> dict[str, Function]:
        """Returns the kernels of the same op in other libraries, if these can be imported."""
        found: dict[str, Function] = {}
        for name, package in LIBRARIES.items():
            try:
                importlib.import_module(package)
                found[name] = OPS[case.op].library(name, case)
            except Exception as error:  # a broken install raises anything
                note = f"{name} skipped: {error}"
                if note not in self.notes:
                    self.notes.append(note)
        return found


def _no_grad(run: Callable[[], Any]) -> Callable[[], Any]:
    def without_grad() -> Any:
        with torch.no_grad():
            return run()

    return without_grad


def _bound(f: Function, operands: Tensors) -> Callable[[], Any]:
    return lambda: f(*operands)


def _forward(f: Function, inputs: Tensors, rest: Tensors, g: Any) -> Callable[[], Any]:
    # No operand requires a gradient, so nothing is recorded, as under no_grad.
    return _bound(f, (*inputs, *rest))


def _backward(f: Function, inputs: Tensors, rest: Tensors, g: Any) -> Callable[[], Any]:
    leaves = tuple(tensor.requires_grad_() for tensor in inputs)
    y = f(*leaves, *rest)
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def _both(f: Function, inputs: Tensors, rest: Tensors, g: Any) -> Callable[[], Any]:
    leaves = tuple(tensor.requires_grad_() for tensor in inputs)
    operands = (*leaves, *rest)
    return lambda: torch.autograd.grad(f(*operands), leaves, g)


_PASSES = {"forward": _forward, "backward": _backward, "forward+backward": _both}


def _peak_cuda(run: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_cpu(run: Callable[[], Any]) -> int:
    """Returns the peak of bytes allocated by torch's allocator, results included."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it prints messages
    from torch.profiler import ProfilerActivity, profile

    # Without acc_events torch 2.11 warns that it keeps one cycle; there is only one.
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, acc_events=True) as found:
        held = run()
    del held
    events: Any = found.profiler
    taken = peak = 0
    for event in sorted(events.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            taken += event.nbytes()
            peak = max(peak, taken)
    return peak


def _kept(f: Function, inputs: Tensors, rest: Tensors) -> int:
    """Returns the bytes of residuals that autograd keeps, without the operands."""
    given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        f(*inputs, *rest)
    return sum(kept.values())


def wait_on(device: str) -> Callable[[Any], None]:
    """Returns a function that waits for torch's results; on a CPU they need no wait."""
    return (lambda _: torch.cuda.synchronize()) if device == "cuda" else (lambda _: None)
