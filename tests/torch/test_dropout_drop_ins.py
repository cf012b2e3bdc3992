"""bias_dropout_add of bridge.torch.megatron, bias_dropout of bridge.torch.slapo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

from bridge.torch import bias_dropout_add
from bridge.torch.megatron import (
    bias_dropout_add_fused_inference,
    bias_dropout_add_fused_train,
    get_bias_dropout_add,
)
from bridge.torch.slapo import bias_dropout
from tests.torch.expected import DTYPES, assert_close, assert_same_bits

BIASES = [None, (6,), (1, 1, 6), (1, 6), (2, 4, 6), (4, 1), (1,), ()]
biases = pytest.mark.parametrize("bias_shape", BIASES)


def same_mask(function: Any, *arguments: Any, **named: Any) -> Any:
    """The function's result from the same state of the generator each time."""
    torch.manual_seed(11)
    return function(*arguments, **named)


def drawn(draw: Any, shape: Any, **named: Any) -> Any:
    return None if shape is None else draw(*shape, **named)


def composed(x: Tensor, bias: Tensor | None, residual: Tensor | None, keep: Any) -> Tensor:
    h = (x if bias is None else x + bias) * keep
    return h if residual is None else residual + h


@biases
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_values_and_gradients(draw: Any, bias_shape: Any, p: float) -> None:
    """The mask is read off the result for ones, and the rest must follow from it."""
    x, residual = draw(2, 4, 6, grad=True), draw(2, 4, 6, grad=True)
    bias, g = drawn(draw, bias_shape, grad=True), draw(2, 4, 6)
    zeros = torch.zeros(2, 4, 6, dtype=torch.float64)
    keep = same_mask(bias_dropout_add_fused_train, (zeros + 1, None), zeros, p)
    if p == 0.4:
        assert set(keep.unique().tolist()) == {0.0, 1 / 0.6}
    inputs = [t for t in (x, residual, bias) if t is not None]
    y = same_mask(bias_dropout_add_fused_train, (x, bias), residual, prob=p)
    expected = composed(x, bias, residual, keep)
    assert_close(y, expected)
    for ours, theirs in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


@biases
def test_inference(draw: Any, bias_shape: Any) -> None:
    x, residual, g = draw(2, 4, 6, grad=True), draw(2, 4, 6, grad=True), draw(2, 4, 6)
    bias = drawn(draw, bias_shape, grad=True)
    inputs = [t for t in (x, residual, bias) if t is not None]
    y = bias_dropout_add_fused_inference((x, bias), residual, 0.4)
    expected = composed(x, bias, residual, 1)
    assert_close(y, expected)
    for ours, theirs in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_written(draw: Any, training: bool) -> None:
    """The original's inference adds bias and residual to x in place."""
    tensors = [draw(2, 4, 6), draw(6), draw(2, 4, 6)]
    before = [t.clone() for t in tensors]
    x, bias, residual = tensors
    y = get_bias_dropout_add(training, True)((x, bias), residual, 0.3)
    assert y.data_ptr() not in [t.data_ptr() for t in tensors]
    z = bias_dropout(x, bias, 0.3, training, inplace=True)
    assert z.data_ptr() not in [t.data_ptr() for t in tensors]
    for tensor, copy in zip(tensors, before, strict=True):
        assert_same_bits(tensor, copy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("residual_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_dtypes(draw: Any, dtype: Any, residual_dtype: Any, training: bool) -> None:
    x, bias = draw(4, 6, dtype=dtype, grad=True), draw(6, dtype=dtype, grad=True)
    residual = draw(4, 6, dtype=residual_dtype, grad=True)
    y = get_bias_dropout_add(training, True)((x, bias), residual, 0.0)
    assert y.dtype == residual_dtype
    assert_close(y, residual.double() + x.double() + bias.double(), ulps=1)
    gradients = grad(y, (x, bias, residual), torch.ones_like(y))
    assert [g.dtype for g in gradients] == [dtype, dtype, residual_dtype]
    if torch.promote_types(dtype, residual_dtype) == residual_dtype:
        z = bias_dropout(x, residual[0], 0.0, training)
        assert z.dtype == residual_dtype


def test_residual_of_another_shape(draw: Any) -> None:
    x, bias = draw(1, 4, 6), draw(6)
    small, large = draw(4, 1), draw(3, 4, 6)
    keep = same_mask(bias_dropout, torch.ones(1, 4, 6, dtype=torch.float64), None, 0.5)
    y = same_mask(bias_dropout_add_fused_train, (x, bias), small, 0.5)
    assert_close(y, composed(x, bias, small, keep))
    y = same_mask(bias_dropout_add_fused_train, (x, bias), large, 0.5)
    assert_close(y, composed(x, bias, large, keep))  # one mask for what x is repeated over
    half = large.to(torch.bfloat16)
    assert bias_dropout_add_fused_train((x, bias), half, 0.5).dtype == torch.bfloat16


def test_the_devices_generator_decides(draw: Any) -> None:
    x, bias, residual = draw(64, 6), draw(6), draw(64, 6)
    function = bias_dropout_add_fused_train
    first = same_mask(function, (x, bias), residual, 0.5)
    following = function((x, bias), residual, 0.5)
    assert not torch.equal(first, following)
    assert_same_bits(same_mask(function, (x, bias), residual, 0.5), first)
    assert_same_bits(same_mask(bias_dropout_add, x, bias, residual, p=0.5), first)


def test_which_function() -> None:
    for fused in (True, False):
        assert get_bias_dropout_add(True, fused) is bias_dropout_add_fused_train
        assert get_bias_dropout_add(training=False, fused=fused) is bias_dropout_add_fused_inference


@biases
@pytest.mark.parametrize("inplace", [True, False])
def test_slapo(draw: Any, bias_shape: Any, inplace: bool) -> None:
    x, bias, g = draw(2, 4, 6, grad=True), drawn(draw, bias_shape, grad=True), draw(2, 4, 6)
    keep = same_mask(bias_dropout, torch.ones(2, 4, 6, dtype=torch.float64), None)
    assert set(keep.unique().tolist()) == {0.0, 2.0}
    y = same_mask(bias_dropout, x, bias, inplace=inplace)
    expected = composed(x, bias, None, keep)
    assert_close(y, expected)
    inputs = [t for t in (x, bias) if t is not None]
    for ours, theirs in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert_close(bias_dropout(x, bias, training=False), composed(x, bias, None, 1))


def test_slapo_dtype_is_that_of_the_sum(draw: Any) -> None:
    half, single = draw(4, 6, dtype=torch.bfloat16), draw(6, dtype=torch.float32)
    assert bias_dropout(half, single).dtype == torch.float32
    assert bias_dropout(half, single[0]).dtype == torch.bfloat16  # 0-dimensional: no promotion
    assert bias_dropout(half, single.bfloat16()).dtype == torch.bfloat16


def test_errors(draw: Any) -> None:
    x, bias, residual = draw(4, 6), draw(6), draw(4, 6)
    for p in (-0.1, 1.5, float("nan")):
        for function in (bias_dropout_add_fused_train, bias_dropout_add_fused_inference):
            with pytest.raises(ValueError, match="expected a probability, from 0 to 1"):
                function((x, bias), residual, p)
        with pytest.raises(ValueError, match="expected a probability, from 0 to 1"):
            bias_dropout(x, bias, p)
    with pytest.raises(TypeError, match="residual has type list"):
        bias_dropout_add_fused_train((x, bias), [1.0], 0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="x has dtype int64"):
        bias_dropout(x.long(), None)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("bias_shape", [None, (6,), (2, 4, 6)])
def test_under_compile(draw: Any, bias_shape: Any) -> None:
    x, residual = draw(2, 4, 6), draw(2, 4, 6)
    bias = drawn(draw, bias_shape)
    for training, p in ((True, 0.0), (False, 0.4)):
        function = get_bias_dropout_add(training, True)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert_same_bits(compiled((x, bias), residual, p), function((x, bias), residual, p))
    compiled = torch.compile(bias_dropout_add_fused_train, fullgraph=True, backend="aot_eager")
    y = compiled((x, bias), residual, 0.5)
    dropped = y == residual
    expected = composed(x, bias, residual, 2.0)
    assert 0 < int(dropped.sum()) < y.numel()
    torch.testing.assert_close(y[~dropped], expected[~dropped])
