"""scaled_softmax and its masked, causal and backward forms: their special properties."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import grad
from torch.func import jvp, vmap
from torch.library import opcheck

from bridge.catalogue.softmax_programs import (
    derivative_program,
    jacobian_program,
    softmax_program,
)
from bridge.torch import (
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from tests.torch.attention import softmax64
from tests.torch.cases import MASK
from tests.torch.expected import assert_close, assert_same_bits

NAN, INF = float("nan"), float("inf")


def test_hidden_elements_take_no_part(draw: Any) -> None:
    """Hidden x may be anything; a row with nothing visible gives zeros with zero gradients."""
    x, g = draw(4, 5), draw(4, 5)
    wild = x.masked_fill(MASK, NAN)
    wild[2, :2] = torch.tensor([INF, -INF])
    results = []
    for values in (x, wild):
        values = values.requires_grad_()
        y = scaled_masked_softmax(values, MASK, 0.5)
        results += [(y, *grad(y, values, g))]
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)
        assert not one[MASK].any()
        assert one[1].all()
    assert_close(results[0][0], softmax64(x, MASK, 0.5))


def test_rows_without_a_largest_element(draw: Any) -> None:
    rows = torch.tensor([[-INF] * 3, [NAN, 0, 1], [INF, 0, 1], [-INF, 0, 0]], requires_grad=True)
    y = scaled_softmax(rows)
    assert y[0].tolist() == [0.0] * 3
    assert y[1:3].isnan().all()
    assert y[3].tolist() == [0.0, 0.5, 0.5]
    (dx,) = grad(y, rows, torch.ones(4, 3))
    assert not dx[0].any()


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 1), (1, 5), (3, 1, 1), (2, 1, 4, 5)])
def test_masks_broadcast_from_the_right(draw: Any, shape: tuple[int, ...]) -> None:
    x, mask = draw(2, 3, 4, 5), draw(*shape) > 0
    g = draw(2, 3, 4, 5)
    x.requires_grad_()
    for m in (mask, mask.byte() * 200, mask.expand(2, 3, 4, 5)):
        y = scaled_masked_softmax(x, m, 2.0)
        expected = softmax64(x, mask, 2.0)
        torch.testing.assert_close(y, expected, rtol=1e-14, atol=1e-15)
        pair = (grad(out, x, g, retain_graph=True)[0] for out in (y, expected))
        torch.testing.assert_close(*pair, rtol=1e-13, atol=1e-14)


def test_a_transposed_mask_is_read_as_it_is(draw: Any) -> None:
    x, mask = draw(6, 6), draw(6, 6) > 0
    assert_same_bits(scaled_masked_softmax(x, mask.T), scaled_masked_softmax(x, mask.T.clone()))
    wide = draw(6, 12) > 0
    assert_same_bits(
        scaled_masked_softmax(x, wide[:, ::2]), scaled_masked_softmax(x, wide[:, ::2].clone())
    )


def test_vmap_over_mask_alone_and_both(draw: Any) -> None:
    x, masks = draw(2, 4, 5), draw(3, 5) > 0
    y = vmap(lambda m: scaled_masked_softmax(x, m))(masks)
    many = draw(4, 2, 5)
    both = vmap(scaled_masked_softmax, in_dims=(0, 1))(many, MASK.T)
    for i in range(3):
        assert_same_bits(y[i], scaled_masked_softmax(x, masks[i]))
    for i in range(4):
        assert_same_bits(both[i], scaled_masked_softmax(many[i], MASK[i]))


def test_the_graph_keeps_y_alone(draw: Any) -> None:
    """Neither x nor the mask is kept alive after the forward pass."""
    x, mask, g = draw(4, 5, grad=True), MASK.clone(), draw(4, 5)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = scaled_masked_softmax(x * 1.0, mask)
    assert [t.data_ptr() for t in kept if t.numel() > 1] == [y.data_ptr()]
    h = x * 1.0
    alive = [weakref.ref(h), weakref.ref(mask)]
    y = scaled_masked_softmax(h, mask)
    del h, mask
    kept.clear()
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    y.backward(g)
    assert_close(x.grad, grad(softmax64(x, MASK), x, g)[0], ulps=16)


def test_a_changed_result_is_noticed(draw: Any) -> None:
    x = draw(4, 5, grad=True)
    y = scaled_softmax(x)
    y.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(draw(4, 5))


@pytest.mark.parametrize("causal", [False, True])
def test_backward_into_its_operands(draw: Any, causal: bool) -> None:
    x, g = draw(4, 5, grad=True), draw(4, 5)
    y = scaled_causal_softmax(x, 0.7) if causal else scaled_softmax(x, 0.7)
    (expected,) = grad(y, x, g)
    y = y.detach()
    assert_same_bits(scaled_softmax_backward(g, y, 0.7, causal=causal), expected)
    for out in (torch.empty_like(g), y.clone(), g.clone()):
        arguments = g, y
        if torch.equal(out, g):
            arguments = out, y
        elif torch.equal(out, y):
            arguments = g, out
        assert scaled_softmax_backward(*arguments, 0.7, causal=causal, out=out) is out
        assert_same_bits(out, expected)


def test_out(draw: Any) -> None:
    x, wide = draw(4, 5), torch.full((4, 9), 7.0, dtype=torch.float64)
    for function in (
        scaled_softmax,
        scaled_causal_softmax,
        lambda x, **options: scaled_masked_softmax(x, MASK, **options),
    ):
        expected = function(x)
        for out in (torch.empty_like(x), wide[:, 2:7], x.clone()):
            version = out._version
            source = out if torch.equal(out, x) else x
            assert function(source, out=out) is out
            assert_same_bits(out, expected)
            assert out._version > version
        with pytest.raises(RuntimeError, match="does not support automatic differentiation"):
            function(x.clone().requires_grad_(), out=torch.empty_like(x))
    with pytest.raises(ValueError, match=r"scaled_causal_softmax: out has shape \[5, 4\]"):
        scaled_causal_softmax(x, out=torch.empty(5, 4, dtype=torch.float64))
    assert (wide[:, :2] == 7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_out_is_x_in_a_long_row(draw: Any, dtype: torch.dtype, causal: bool) -> None:
    """The row is longer than any buffer: float32 powers are stored in the memory of x."""
    function = scaled_causal_softmax if causal else scaled_softmax
    x = draw(2, 2**18 + 70).to(dtype)
    expected = function(x, 0.7)
    assert_same_bits(function(x, 0.7, out=x), expected)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3), (2, 3, 0), (1,), (1, 1)])
def test_empty_and_single(draw: Any, shape: tuple[int, ...]) -> None:
    x = draw(*shape, grad=True)
    functions = [scaled_softmax, lambda x: scaled_masked_softmax(x, x.detach() > 1e9)]
    for function in functions + [scaled_causal_softmax] * (len(shape) > 1):
        y = function(x)
        y.backward(draw(*shape))
        assert y.shape == x.grad.shape == shape
        assert (y == 1).all()


def test_long_rows_sum_to_one(draw: Any) -> None:
    x = draw(3, 20_001, dtype=torch.float32)
    y = scaled_softmax(x)
    assert_close(y.double(), softmax64(x), ulps=2.0**31)
    torch.testing.assert_close(y.double().sum(-1), torch.ones(3).double(), rtol=0, atol=5e-7)


def test_scale_is_not_rounded(draw: Any) -> None:
    """0.1 in bfloat16 has an error of 0.1 %, which at scale·x = 30 would become 3 %."""
    x = torch.tensor([[300.0, 290.0, 0.0]], dtype=torch.bfloat16)
    assert_close(scaled_softmax(x, 0.1), softmax64(x, None, 0.1), ulps=0.51)


def test_opcheck(draw: Any) -> None:
    x = draw(4, 5, dtype=torch.float32, grad=True)
    u, v, w = (draw(4, 5, grad=True) for _ in range(3))
    last = torch.arange(4)
    for operands, params in (
        ((x, MASK), softmax_program(0.5, "float32", (True, False))),
        (
            (x.detach().T.contiguous().T, MASK.byte()),
            softmax_program(0.5, "float32", (True, False)),
        ),
        ((u, v, last), jacobian_program(0.5, "float64", True)),
        ((u, v, w), derivative_program(0.5, "float64", True, (True,) * 3, False)),
    ):
        given = (*operands, *[None] * (8 - len(operands)))
        opcheck(torch.ops.bridge.program.few, given, asdict(params))


@pytest.mark.usefixtures("fresh_compiler")
def test_dynamic_shapes_and_scales_under_compile(draw: Any) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def attention(x: Any, mask: Any) -> Any:
        return scaled_masked_softmax(x, mask[:, None], 0.3)

    compiled = torch.compile(attention, fullgraph=True, backend=counter, dynamic=True)
    for batch, queries, keys in ((2, 3, 4), (3, 5, 7), (4, 2, 9)):
        x, mask = draw(batch, queries, keys, grad=True), draw(batch, keys) > 0
        y = compiled(x, mask)
        assert_same_bits(y, attention(x, mask))
        y.backward(draw(*y.shape))
    assert counter.frame_count == 1
    compiled = torch.compile(scaled_softmax, fullgraph=True, backend="aot_eager")
    for scale in (0.1, 0.2, 0.3, 1):
        assert_same_bits(compiled(x, scale), scaled_softmax(x, scale))


def test_tangents_of_hidden_elements_take_no_part(draw: Any) -> None:
    x, t = draw(4, 5), draw(4, 5)
    wild = t.masked_fill(MASK, INF)
    _, along = jvp(lambda x: scaled_masked_softmax(x, MASK), (x,), (t,))
    assert_same_bits(jvp(lambda x: scaled_masked_softmax(x, MASK), (x,), (wild,))[1], along)
    assert not along[MASK].any()


F32 = torch.ones(2, 3)
BAD = {
    "integer x": (
        lambda: scaled_softmax(F32.int()),
        TypeError,
        "scaled_softmax: x has dtype int32, expected one of float16, bfloat16, float32, float64",
    ),
    "array": (
        lambda: scaled_softmax(np.ones(3)),
        TypeError,
        "scaled_softmax: x has type ndarray, expected torch.Tensor",
    ),
    "0-dimensional": (
        lambda: scaled_softmax(torch.tensor(1.0)),
        ValueError,
        "scaled_softmax: x has shape [], expected at least one dimension",
    ),
    "causal of one dimension": (
        lambda: scaled_causal_softmax(torch.ones(3)),
        ValueError,
        "scaled_causal_softmax: x has shape [3], expected at least two dimensions",
    ),
    "float mask": (
        lambda: scaled_masked_softmax(F32, F32),
        TypeError,
        "scaled_masked_softmax: mask has dtype float32, expected bool or uint8; True (non-zero) "
        "hides an element",
    ),
    "mask that requires a gradient": (
        lambda: scaled_masked_softmax(F32, F32.clone().requires_grad_()),
        TypeError,
        "scaled_masked_softmax: mask has dtype float32, expected bool or uint8",
    ),
    "no mask": (
        lambda: scaled_masked_softmax(F32, None),
        TypeError,
        "scaled_masked_softmax: mask has type NoneType, expected torch.Tensor",
    ),
    "mask shape": (
        lambda: scaled_masked_softmax(F32, torch.ones(3, 2) > 0),
        ValueError,
        "scaled_masked_softmax: mask has shape [3, 2], which does not broadcast to x of shape "
        "[2, 3]; True (non-zero) hides an element",
    ),
    "mask of more dimensions": (
        lambda: scaled_masked_softmax(F32, torch.ones(1, 2, 3) > 0),
        ValueError,
        "scaled_masked_softmax: mask has shape [1, 2, 3], which does not broadcast",
    ),
    "mask on another device": (
        lambda: scaled_masked_softmax(F32, (F32 > 0).to("meta")),
        ValueError,
        "scaled_masked_softmax: mask is on meta, expected cpu, where x is",
    ),
    "scale of another type": (
        lambda: scaled_softmax(F32, "1"),
        TypeError,
        "scaled_softmax: scale has type str, expected a real number",
    ),
    "scale True": (
        lambda: scaled_softmax(F32, True),
        TypeError,
        "scaled_softmax: scale has type bool, expected a real number",
    ),
    "infinite scale": (
        lambda: scaled_causal_softmax(F32, INF),
        ValueError,
        "scaled_causal_softmax: scale is inf, expected a finite number",
    ),
    "dtype of g": (
        lambda: scaled_softmax_backward(F32.double(), F32),
        TypeError,
        "scaled_softmax_backward: g has dtype float64, expected float32, the dtype of y",
    ),
    "shape of g": (
        lambda: scaled_softmax_backward(F32[0], F32),
        ValueError,
        "scaled_softmax_backward: g has shape [3], expected [2, 3], the shape of y",
    ),
    "dtype of y": (
        lambda: scaled_softmax_backward(F32, F32.int()),
        TypeError,
        "scaled_softmax_backward: y has dtype int32, expected one of",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(what: str) -> None:
    call, error, message = BAD[what]
    scaled_softmax(F32, 1.0)
    for _ in range(2):  # the second call uses the cached plan
        with pytest.raises(error, match=re.escape(message)):
            call()


class Own(Tensor):
    """Handles one public function, and no other."""

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        assert function is scaled_causal_softmax
        return "own"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_causal_calls_on_other_kinds_of_tensors(draw: Any, layout: torch.layout) -> None:
    """The last columns are fake beside a fake x, and none are made for an x that is not ours."""
    with FakeTensorMode():
        fake = torch.empty(2, 3)
    assert type(scaled_causal_softmax(fake)) is FakeTensor
    assert scaled_causal_softmax(draw(2, 3).as_subclass(Own)) == "own"
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
    with pytest.raises(TypeError, match="scaled_causal_softmax: x is nested"):
        scaled_causal_softmax(nested)
