"""Calls on operands that are not compact: the bits and the layout of calls on contiguous copies.

With the C++ module of `nodes` native kernels read most of these operands by their strides; without
it, and for softmaxes, Python code makes the call. Neither may show.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.torch as bt
from bridge.torch._adapter import nodes
from bridge.torch._adapter.kernels import Kernel
from tests.torch.expected import assert_same_bits


def reversed_dimensions(t: Tensor) -> Tensor:
    order = range(t.ndim)[::-1]
    return t.permute(*order).contiguous().permute(*order) if t.ndim else t


def off_by_a_byte(t: Tensor) -> Tensor:
    memory = np.zeros(t.numel() * t.element_size() + 1, np.uint8)[1:]
    moved = torch.from_numpy(memory.view(t.numpy().dtype).reshape(t.shape))
    return moved.copy_(t)


def windows(t: Tensor) -> Tensor:
    """Returns other values: row and column i share elements with row and column i + 1."""
    return t.flatten().as_strided(t.shape, (1,) * t.ndim)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "reversed": reversed_dimensions,
    "every other column": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every third column, with an offset": lambda t: t.repeat_interleave(3, -1)[..., 1::3],
    "beside others": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "every other row": lambda t: t.repeat_interleave(2, 0)[::2],
    "one row": lambda t: t[:1].clone().expand(t.shape),
    "one column": lambda t: t[..., :1].clone().expand(t.shape),
    "windows": windows,
    "negative, reversed": lambda t: (
        torch._neg_view(reversed_dimensions(-t)) if t.is_floating_point() else t
    ),
    "unaligned, reversed": lambda t: reversed_dimensions(off_by_a_byte(t.mT.contiguous()).mT),
}

# Functions, and the shapes of their floating operands; x is [3, 4, 6].
MASK, LABELS = torch.arange(24).view(4, 6) % 3 == 0, torch.arange(12).view(3, 4) % 6
FULL, ROW = (3, 4, 6), (6,)
CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "rows and a vector": (lambda x, w: bt.rms_norm(x, w), (FULL, ROW)),
    "two results": (lambda x, w, r: bt.layer_norm(x, w, w, r), (FULL, ROW, FULL)),
    "halves": (lambda x: bt.glu(x), (FULL,)),
    "pairs and one number a row": (
        lambda x, w: bt.glu(x, interleaved=True, weight=w),
        (FULL, (3, 4)),
    ),
    "tables": (lambda x, c, s: bt.rotary(x, c, s, interleaved=True), (FULL, (4, 3), (4, 3))),
    "labels": (
        lambda x: bt.cross_entropy(x, reversed_dimensions(LABELS), reduction="none"),
        (FULL,),
    ),
    "seeds": (
        lambda x, b: bt.bias_dropout_add(x, b, p=0.4, seed=torch.arange(4)[1::2][0]),
        (FULL, ROW),
    ),
    "softmax": (lambda x: bt.scaled_masked_softmax(x, reversed_dimensions(MASK), 0.5), (FULL,)),
}


@pytest.fixture(autouse=True)
def _module_of_nodes() -> None:
    nodes.load()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records runs that native kernels have refused."""
    found: list[Any] = []
    original = Kernel.run

    def run(self: Any, *given: Any, **named: Any) -> Any:
        found.append(self.op.name)
        return original(self, *given, **named)

    monkeypatch.setattr(Kernel, "run", run)
    return found


def everything(function: Any, operands: list[Tensor], change: Any) -> list[Tensor]:
    """Returns results, gradients and second derivatives, with changed operands and cotangents."""
    leaves = [operand.detach().requires_grad_() for operand in operands]
    with torch.no_grad():
        found = [*tuple_of(function(*operands))]
    results = [*tuple_of(function(*leaves))]
    first = torch.autograd.grad(results, leaves, cotangents(results, change), create_graph=True)
    found += [*results, *first]
    first = tuple(f for f in first if f.requires_grad)
    second = torch.autograd.grad(first, leaves, cotangents(first, change), allow_unused=True)
    return found + [s for s in second if s is not None]


def tuple_of(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def cotangents(results: Any, change: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [change(torch.randn(r.shape, generator=generator).to(r.dtype)) for r in results]


def compact(t: Tensor) -> Tensor:
    return t.resolve_neg().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("through", ["function", "graph"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_bits_and_layout_do_not_depend_on_strides(name: str, layout: str, through: str) -> None:
    """All operands have the layout, and the cotangents, in every order of derivatives."""
    function, shapes = CALLS[name]
    change = LAYOUTS[layout]
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    changed = [change(t) if t.ndim > 1 or "unaligned" not in layout else t for t in given]
    same = [compact(t) for t in changed]

    def cotangent(t: Tensor) -> Tensor:
        return change(t) if t.ndim > 1 else t

    expected = everything(function, same, lambda t: compact(cotangent(t)))
    called = function if through == "function" else make_fx(function)(*same)
    for one, other in zip(everything(called, changed, cotangent), expected, strict=True):
        assert one.is_contiguous()
        assert not one.is_neg()
        assert_same_bits(one, other)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "softmax"])
def test_programs_read_strided_operands_in_place(name: str, slow: list[Any]) -> None:
    function, shapes = CALLS[name]
    given = [reversed_dimensions(torch.randn(shape)) for shape in shapes]
    everything(function, given, lambda t: t)  # the first call of a kind takes the general path
    slow.clear()
    everything(function, given, lambda t: t)
    assert not slow


SHAPE = (2, 1, 2, 3, 2, 1, 2, 3, 2, 2, 2)


def test_more_dimensions_than_kernels_have() -> None:
    x, w = torch.randn(SHAPE), torch.randn(2)
    assert_same_bits(bt.rms_norm(reversed_dimensions(x), w), bt.rms_norm(x, w))


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (1, 1, 2), (2, 1, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("name", ["rows and a vector", "halves"])
def test_small_shapes(name: str, shape: tuple[int, ...]) -> None:
    function, others = CALLS[name]
    given = [torch.randn(s) for s in (shape, *[shape[-1:] for _ in others[1:]])]
    for change in (reversed_dimensions, LAYOUTS["every other column"]):
        changed = [change(t) for t in given]
        pairs = zip(
            everything(function, changed, change), everything(function, given, compact), strict=True
        )
        for one, other in pairs:
            assert one.is_contiguous()
            assert_same_bits(one, other)


OUTS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], str]] = {
    # From 48 numbers: x and out, [4, 4] both; then the error.
    "apart": (lambda m: (m[:16].view(4, 4).mT, m[16:32].view(4, 4)), ""),
    "columns of one matrix": (lambda m: (m[:32].view(4, 8)[:, ::2], m[32:].view(4, 4)), ""),
    "one row": (lambda m: (m[:4].expand(4, 4), m[4:20].view(4, 4)), ""),
    "transposed": (lambda m: (m[:16].view(4, 4).mT, m[:16].view(4, 4)), "overlaps an operand"),
    "one row of out": (lambda m: (m[4:8].expand(4, 4), m[:16].view(4, 4)), "overlaps an operand"),
    "last row of out": (
        lambda m: (m[12:28].view(4, 4).mT, m[:16].view(4, 4)),
        "overlaps an operand",
    ),
}


@pytest.mark.parametrize("case", OUTS)
def test_out_with_strided_operands(case: str) -> None:
    """Memory shared with a strided operand is an error, and nothing is written."""
    make, error = OUTS[case]
    bias = torch.randn(8)[::2]
    for _ in range(2):  # the second call is one of a known kind
        memory = torch.randn(48)
        x, out = make(memory)
        before, expected = memory.clone(), bt.bias_gelu(compact(x), compact(bias))
        if error:
            with pytest.raises(ValueError, match=f"^bias_gelu: out {error}"):
                bt.bias_gelu(x, bias, out=out)
            assert_same_bits(memory, before)
        else:
            assert_same_bits(bt.bias_gelu(x, bias, out=out), expected)


def test_both_overloads_agree() -> None:
    """A graph stored before the overload `few` existed passes 57 operands, most of them None."""
    x, w = reversed_dimensions(torch.randn(3, 4, 6)), torch.randn(12)[::2]
    graph = make_fx(lambda x, w: bt.rms_norm(x, w))(x, w)
    (node,) = [n for n in graph.graph.nodes if n.target is torch.ops.bridge.program.few]
    expected = everything(bt.rms_norm, [compact(x), compact(w)], compact)
    for given in ((), (None,) * 55):

        def stored(x: Tensor, w: Tensor, given: Any = given) -> Any:
            return torch.ops.bridge.program.default(x, w, *given, **node.kwargs)

        for one, other in zip(everything(stored, [x, w], lambda t: t), expected, strict=True):
            assert_same_bits(one, other)


WITHOUT_NODES = """
import torch, bridge.torch as bt
from bridge.torch._adapter import nodes
x = torch.randn(3, 4, 6).mT
for _ in range(2):
    y, expected = bt.glu(x), bt.glu(x.contiguous())
    assert y.is_contiguous() and torch.equal(y, expected)
    y, expected = bt.rms_norm(x, torch.ones(8)[::2]), bt.rms_norm(x.contiguous(), torch.ones(4))
    assert y.is_contiguous() and torch.equal(y, expected)
assert nodes.state() == "Python"
"""


def test_without_the_module_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's Python functions would lay out a result like its strided operand."""
    monkeypatch.setenv("BRIDGE_COMPILE", "0")
    subprocess.run([sys.executable, "-c", WITHOUT_NODES], check=True)
