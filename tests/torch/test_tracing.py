"""torch.compile, export, make_fx, fake tensors, the dispatcher: traced calls are eager calls."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from bridge.catalogue.bias_gelu import bias_gelu as declared
from bridge.ops import PROGRAM
from bridge.torch import BiasGELU, all_gather, bias_gelu, bias_gelu_
from bridge.torch._adapter.kernels import spec_of
from tests.torch.expected import assert_close, assert_same_bits, gelu

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile(draw: Any, backend: str) -> None:
    def function(x: Any, bias: Any) -> Any:
        return bias_gelu(x * 2.0, bias, approximate="none") + 1.0

    x, bias, g = draw(5, 7, grad=True), draw(7, grad=True), draw(5, 7)
    compiled = torch.compile(function, fullgraph=True, backend=backend)(x, bias)
    eager = function(x, bias)
    assert_same_bits(compiled, eager)
    pairs = (grad(y, (x, bias), g) for y in (compiled, eager))
    for one, other in zip(*pairs, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("rank", [2, 9])  # with more than eight, not all sizes are compared
@pytest.mark.parametrize("dynamic", [None, True])
def test_all_gather_alone(draw: Any, rank: int, dynamic: bool | None) -> None:
    """One process is enough to see that a graph contains the whole function."""
    compiled = torch.compile(all_gather, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    x = draw(3, 4, *[2] * (rank - 2), grad=True)
    y = compiled(x, tiled=False)
    assert_same_bits(y, x.unsqueeze(0))
    g = draw(*y.shape)
    assert_same_bits(grad(y, x, g)[0], g[0])


def test_dynamic_shapes_compile_once(draw: Any) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(bias_gelu, fullgraph=True, backend=counter, dynamic=True)
    for rows, cols in ((5, 7), (6, 9), (11, 3)):
        x, bias = draw(rows, cols, grad=True), draw(cols, grad=True)
        y = compiled(x, bias)
        assert_same_bits(y, bias_gelu(x, bias))
        y.backward(draw(rows, cols))
    assert counter.frame_count == 1


def test_transforms_under_compile(draw: Any) -> None:
    x, bias, t = draw(4, 3), draw(3), draw(4, 3)

    def tangent(x: Any, bias: Any, t: Any) -> Any:
        return torch.func.jvp(lambda x: bias_gelu(x, bias), (x,), (t,))[1]

    def per_example(x: Any, bias: Any, t: Any) -> Any:
        one = torch.func.grad(lambda b, x, t: (bias_gelu(x, b) * t).sum())
        return torch.func.vmap(one, in_dims=(None, 0, 0))(bias, x, t)

    for function in (tangent, per_example):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert_same_bits(compiled(x, bias, t), function(x, bias, t))


def test_destinations_under_compile(draw: Any) -> None:
    x, bias, out = draw(4, 3), draw(3), torch.zeros(4, 3, dtype=torch.float64)
    expected = bias_gelu(x, bias)

    def into(x: Any, bias: Any, out: Any) -> Any:
        return bias_gelu(x, bias, out=out)

    torch.compile(into, fullgraph=True, backend="aot_eager")(x, bias, out)
    assert_same_bits(out, expected)
    torch.compile(bias_gelu_, fullgraph=True, backend="aot_eager")(x, bias)
    assert_same_bits(x, expected)


@pytest.mark.parametrize("strict", [True, False])
def test_export_round_trip(draw: Any, strict: bool) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 7, bias=False), BiasGELU(7)).double()
    x = draw(5, 4)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},), strict=strict)
    assert "bridge.program" in program.graph_module.code
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    longer = draw(9, 4)
    assert_same_bits(loaded(longer), layer(longer))


def test_make_fx(draw: Any) -> None:
    x, bias, g = draw(4, 3), draw(3), draw(4, 3)

    def gradient(x: Any, bias: Any, g: Any) -> Any:
        return torch.func.vjp(bias_gelu, x, bias)[1](g)

    traced = make_fx(gradient, tracing_mode="symbolic")(x, bias, g)
    assert "bridge.program_2" in traced.code  # both gradients at once
    for one, other in zip(traced(x, bias, g), gradient(x, bias, g), strict=True):
        assert_same_bits(one, other)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the checks read sizes
def test_jit_trace(draw: Any) -> None:
    x, bias = draw(4, 3), draw(3)
    traced = torch.jit.trace(bias_gelu, (x, bias))
    assert_same_bits(traced(x * 2, bias), bias_gelu(x * 2, bias))


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
def test_fake_tensors(device: str) -> None:
    with FakeTensorMode():
        x = torch.empty(4, 6, 3, dtype=torch.bfloat16, device=device).transpose(0, 1)
        bias = torch.empty(3, device=device)
        y = bias_gelu(x, bias)
    assert (y.shape, y.dtype, y.device.type) == ((6, 4, 3), torch.float32, device)
    assert y.is_contiguous()


def test_opcheck(draw: Any) -> None:
    x, bias = draw(4, 3, dtype=torch.float32, grad=True), draw(3, dtype=torch.float32, grad=True)
    g = draw(4, 3, dtype=torch.float32, grad=True)
    for operands in ((x, bias, g), (x.detach(), bias, g.detach().mT.contiguous().mT)):
        *given, cotangent = operands
        params = declared.entry("torch").prepare(*given)
        for overload in (torch.ops.bridge.program.few, torch.ops.bridge.program.default):
            opcheck(overload, tuple(given), asdict(params))
        specs = [spec_of(operand) for operand in given]
        for wanted, name in (((True, True), "program_2"), ((False, True), "program")):
            ((call, _),) = PROGRAM.vjp(tuple(given), (None,), (cotangent,), wanted, specs, params)
            opcheck(getattr(torch.ops.bridge, name).few, call.operands, asdict(call.params))


def test_malformed_dispatcher_calls(draw: Any) -> None:
    op, x = torch.ops.bridge.program, draw(4, 3)
    attributes = asdict(declared.entry("torch").prepare(x, draw(3)))
    with pytest.raises(ValueError, match=r"operand 1 has shape \[4\], which does not fit"):
        op(x, draw(4), **attributes)
    with pytest.raises(TypeError, match="an operand is missing"):
        op(x, **attributes)
    with pytest.raises(ValueError, match="no text of a program: gelu"):
        op(x, draw(3), **{**attributes, "code": "gelu"})


def test_subclasses_and_modes(draw: Any) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x, bias = draw(4, 3), draw(3)
    expected = bias_gelu(x, bias)
    y = bias_gelu(x.as_subclass(Watched), bias)
    assert isinstance(y, Watched)
    assert_same_bits(y.as_subclass(torch.Tensor), expected)
    for mode in (Functions(), Dispatch()):
        with mode:
            y = bias_gelu(x, bias)
        assert_same_bits(y, expected)
    assert sum("function bias_gelu" in name for name in seen) == 2
    assert sum("bridge.program" in name for name in seen) == 1


def test_values_of_a_compiled_call(draw: Any) -> None:
    x, bias = draw(4, 3), draw(3)
    assert_close(torch.compile(bias_gelu, fullgraph=True, backend="eager")(x, bias), gelu(x, bias))
