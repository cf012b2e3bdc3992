"""Calls of the dispatcher ops, which torch.compile's graphs make: work is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.torch as bt
from bridge.torch._adapter import nodes
from bridge.torch._adapter.autograd import Plan
from bridge.torch._adapter.kernels import Kernel
from tests.torch.expected import assert_same_bits

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, w: bt.rms_norm(x, w, eps=1e-4),
    "layer_norm": lambda x, w: bt.layer_norm(x, w, w),
    "glu": lambda x, w: bt.glu(x, x * 2),
    "softmax": lambda x, w: bt.scaled_softmax(x, 0.5),
    "cross_entropy": lambda x, w: bt.cross_entropy(x, torch.arange(x.shape[0])),
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records new kernels, and runs that do not take the fast path."""
    found: list[Any] = []
    for kind, name in ((Kernel, "__init__"), (Plan, "watched"), (Kernel, "run")):
        original = getattr(kind, name)

        def counted(self: Any, *given: Any, _original=original, _name=name, **named: Any) -> Any:
            found.append(_name)
            return _original(self, *given, **named)

        monkeypatch.setattr(kind, name, counted)
    return found


def inputs(rows: int, grad: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, 24, generator=generator), torch.randn(24, generator=generator)
    return x.requires_grad_(grad), w.requires_grad_(grad)


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_makes_each_plan_once(name: str, mode: str, made: list[Any]) -> None:
    """The first call makes a plan; later ones, also with other rows and dtypes, find it."""
    function = FUNCTIONS[name]
    graph = make_fx(function, tracing_mode="real")(*inputs(5))
    modes = {"grad": torch.enable_grad, "no_grad": torch.no_grad}
    with modes.get(mode, torch.inference_mode)():
        expected = [function(*inputs(5)) for _ in range(3)]
        graph(*inputs(5))
        made.clear()
        found = [graph(*inputs(5)) for _ in range(3)]
    assert made == []
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_that_is_differentiated_makes_each_plan_once(name: str, made: list[Any]) -> None:
    graph = make_fx(FUNCTIONS[name], tracing_mode="real")(*inputs(7))

    def step(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        x, w = inputs(7, grad=True)
        y = function(x, w)
        return torch.autograd.grad((y * y).sum(), [x, w], allow_unused=True)

    expected = step(FUNCTIONS[name])
    step(graph)
    made.clear()
    found = step(graph)
    assert "__init__" not in made
    assert made.count("watched") == 0
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_same_bits(one, other)


def test_wrappers_of_functionalisation_are_not_read() -> None:
    """They have the type of a plain tensor, but no memory of their own."""
    (x, w), expected = inputs(5), FUNCTIONS["rms_norm"](*inputs(5))
    graph = make_fx(FUNCTIONS["rms_norm"])(x, w)
    wrapped = [torch._to_functional_tensor(t) for t in (x, w)]
    y = graph(*wrapped)
    assert torch._is_functional_tensor(y)
    torch._sync(y)
    assert_same_bits(torch._from_functional_tensor(y), expected)


def test_shapes_that_do_not_fit_raise_as_before() -> None:
    (x, w), op = inputs(5), torch.ops.bridge.program.few
    graph = make_fx(FUNCTIONS["rms_norm"])(x, w)
    (node,) = [n for n in graph.graph.nodes if n.target is op]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode(), pytest.raises((ValueError, RuntimeError)):
            op(x, w[:3], **node.kwargs)


def test_the_schemas_of_stored_graphs() -> None:
    """Compiled graphs on disk and exported models call these overloads: no argument may change."""

    def schema(name: str, operands: int) -> str:
        optional = "".join([f", Tensor? operand{i}=None" for i in range(1, operands)])
        fields = "str code, str arithmetic, str dtypes, int batch_ndim, int index_cols"
        return f"bridge::{name}(Tensor operand0{optional}, *, {fields}) -> Tensor"

    program = torch.ops.bridge.program
    assert str(program.default._schema) == schema("program", 57)
    assert str(program.few._schema) == schema("program.few", 8)


def test_a_compiled_call_reads_strided_operands_in_place(made: list[Any]) -> None:
    """The kernels read a transposed operand by its strides: no copy, and the same bits."""
    nodes.load()
    x, w = torch.randn(2, 5, 3, 32), torch.randn(32)
    function = FUNCTIONS["rms_norm"]
    strided = x.transpose(1, 2)
    with torch.no_grad():
        expected = function(strided.contiguous(), w)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        compiled(strided, w)
        made.clear()
        y = compiled(strided, w)
    assert not made
    assert y.is_contiguous()
    assert_same_bits(y, expected)
