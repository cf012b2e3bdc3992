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
    bias_dropout_add_unfused,
    get_bias_dropout_add,
)
from bridge.torch.slapo import bias_dropout
from tests.torch.expected import DTYPES, assert_close, assert_same_bits

BIASES = [None, (6,), (1, 1, 6), (1, 6), (2, 4, 6), (4, 1), (1,), ()]
biases = pytest.mark.parametrize("bias_shape", BIASES)


def same_mask(function: Any, *arguments: Any, **named: Any) -> Any:
    """Returns the function's result with the generator always in the same state."""
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
    """The mask is read from the result for ones, and the other results must follow from it."""
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


def test_nothing_is_written_where_something_is_drawn(draw: Any) -> None:
    tensors = [draw(2, 4, 6), draw(6), draw(2, 4, 6)]
    before = [t.clone() for t in tensors]
    x, bias, residual = tensors
    for y in (
        bias_dropout_add_fused_train((x, bias), residual, 0.3),
        bias_dropout(x, bias, 0.3, True, inplace=True),
        bias_dropout(x, bias, 0.3, False, inplace=True),
    ):
        assert y.data_ptr() not in [t.data_ptr() for t in tensors]
    for tensor, copy in zip(tensors, before, strict=True):
        assert_same_bits(tensor, copy)


def infer(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    function: Any = bias_dropout_add_fused_inference,
) -> bool:
    """True if inference wrote into x; the result is right, and nothing else changed."""
    before = [None if t is None else t.detach().clone() for t in (x, bias, residual)]
    expected = composed(*(None if t is None else t.double() for t in before), 1)
    y = function((x, bias), residual, 0.3)
    assert y.dtype == residual.dtype
    assert_close(y, expected)
    written = y is x
    assert written == (y.data_ptr() == x.data_ptr())
    for tensor, copy in list(zip((x, bias, residual), before, strict=True))[written:]:
        if tensor is not None:
            assert_same_bits(tensor.detach(), copy)
    return written


IN_PLACE = {
    "a bias of the last dimension": lambda draw: (draw(4, 6), draw(6), draw(4, 6)),
    "no bias": lambda draw: (draw(4, 6), None, draw(4, 6)),
    "a bias that broadcasts": lambda draw: (draw(4, 6), draw(4, 1), draw(4, 6)),
    "a bias of x's shape": lambda draw: (draw(4, 6), draw(4, 6), draw(4, 6)),
    "a smaller residual": lambda draw: (draw(4, 6), draw(6), draw(4, 1)),
    "no dimensions": lambda draw: (draw(), None, draw()),
    "another order of dimensions": lambda draw: (draw(6, 4).mT + 0.0, draw(6), draw(4, 6)),
    "a bias of another dtype": lambda draw: (
        draw(4, 6, dtype=torch.float32),
        draw(6),
        draw(4, 6, dtype=torch.float32),
    ),
    "a view beside x": lambda draw: (draw(4, 6), draw(2, 6)[1], draw(6, 4).mT),
    "a detached x": lambda draw: (draw(4, 6, grad=True).detach(), draw(6), draw(4, 6)),
}


@pytest.mark.parametrize("arguments", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_inference_writes_into_x(draw: Any, arguments: Any) -> None:
    x, bias, residual = arguments(draw)
    version = x._version
    assert infer(x, bias, residual)
    assert x._version == version + 1
    with torch.inference_mode():
        x, bias, residual = arguments(draw)
        assert infer(x, bias, residual)


def _shared(draw: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x and residual in one NumPy array; torch does not know that they share memory."""
    memory = draw(5, 6).numpy()
    return torch.from_numpy(memory[:4]), draw(6), torch.from_numpy(memory[1:])


def _itself(draw: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = draw(4, 6)
    return x, draw(6), x


def _alias(draw: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = draw(4, 6)
    return x, draw(6), x.detach()


def _own_row(draw: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = draw(4, 6)
    return x, x[1], draw(4, 6)


NEW = {
    "x wants a gradient": lambda draw: (draw(4, 6, grad=True), draw(6), draw(4, 6)),
    "bias wants a gradient": lambda draw: (draw(4, 6), draw(6, grad=True), draw(4, 6)),
    "residual wants a gradient": lambda draw: (draw(4, 6), draw(6), draw(4, 6, grad=True)),
    "a wider residual": lambda draw: (draw(4, 6, dtype=torch.float32), None, draw(4, 6)),
    "a narrower residual": lambda draw: (draw(4, 6), None, draw(4, 6, dtype=torch.float32)),
    "a view": lambda draw: (draw(2, 4, 6)[1], draw(6), draw(4, 6)),
    "a larger residual": lambda draw: (draw(1, 6), draw(6), draw(4, 6)),
    "a larger bias": lambda draw: (draw(4, 6), draw(2, 4, 6), draw(4, 6)),
    "elements that share memory": lambda draw: (
        draw(1, 6).expand(4, 6).detach(),
        draw(6),
        draw(4, 6),
    ),
    "x is the residual": _itself,
    "x has the residual's memory": _alias,
    "x has some of the residual's memory": _shared,
    "x holds the bias": _own_row,
}


@pytest.mark.parametrize("arguments", NEW.values(), ids=NEW.keys())
def test_inference_leaves_x_alone(draw: Any, arguments: Any) -> None:
    assert not infer(*arguments(draw))
    with torch.no_grad():  # the original does not write here either
        assert not infer(*arguments(draw))


def test_inference_leaves_an_inference_tensor_alone(draw: Any) -> None:
    with torch.inference_mode():
        x = draw(4, 6)
    assert not infer(x, draw(6), draw(4, 6))


def test_inference_under_transforms(draw: Any) -> None:
    """Tangents and batches may belong to any argument; a write into x could not hold them."""
    x, bias, residual = draw(3, 6), draw(6), draw(3, 6)
    before = x.clone()

    def function(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return bias_dropout_add_fused_inference((x, bias), residual, 0.3)

    directions = draw(3, 6), draw(6), draw(3, 6)
    _, tangent = torch.func.jvp(function, (x, bias, residual), directions)
    assert_close(tangent, directions[0] + directions[1] + directions[2])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(bias, directions[1])
        y = function(x, dual, residual)
        assert_close(torch.autograd.forward_ad.unpack_dual(y).tangent, directions[1].expand(3, 6))
    biases = draw(4, 6)
    batched = torch.func.vmap(function, in_dims=(None, 0, None))(x, biases, residual)
    assert_close(batched, x + biases[:, None] + residual)
    assert_same_bits(x, before)


def test_errors_come_before_anything_is_written(draw: Any) -> None:
    x, residual = draw(4, 6), draw(4, 6)
    before = x.clone()
    for bias, p, error in (
        (draw(6), 1.5, ValueError),
        (draw(4, 1), 1.5, ValueError),
        (draw(6).long(), 0.3, TypeError),
        (draw(5), 0.3, ValueError),
        ([1.0], 0.3, TypeError),
    ):
        with pytest.raises(error):
            bias_dropout_add_fused_inference((x, bias), residual, p)
    with pytest.raises(TypeError, match="residual has type list"):
        bias_dropout_add_fused_inference((x, None), [1.0], 0.3)  # type: ignore[arg-type]
    assert_same_bits(x, before)


def test_a_backward_pass_that_needs_x_notices(draw: Any) -> None:
    w, x = draw(4, 6, grad=True), draw(4, 6)
    product = (w * x).sum()
    assert infer(x, None, draw(4, 6))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


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
    assert_close(y, composed(x, bias, large, keep))  # one mask, also where x is repeated
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
    for training in (True, False):
        fused = get_bias_dropout_add(training, True)
        assert bias_dropout_add_unfused(training) is fused
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
        first, second = x.clone(), x.clone()
        ours = compiled((first, bias), residual, p)
        assert_same_bits(ours, function((second, bias), residual, p))
        assert_same_bits(first, second)  # both wrote to it, or neither
    compiled = torch.compile(bias_dropout_add_fused_train, fullgraph=True, backend="aot_eager")
    y = compiled((x, bias), residual, 0.5)
    dropped = y == residual
    expected = composed(x, bias, residual, 2.0)
    assert 0 < int(dropped.sum()) < y.numel()
    torch.testing.assert_close(y[~dropped], expected[~dropped])


# During tracing, memory shared by tensors that are no views of each other is not detected. And
# torch's aot_autograd loses every `copy_` into a float64 tensor without dimensions.
_TRACED = {what: made for what, made in (IN_PLACE | NEW).items() if made not in (_alias, _shared)}
del _TRACED["no dimensions"]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("what", _TRACED)
def test_compiled_inference_writes_where_eager_does(draw: Any, what: str) -> None:
    compiled = torch.compile(
        bias_dropout_add_fused_inference, fullgraph=True, backend="aot_eager", dynamic=False
    )
    assert infer(*_TRACED[what](draw), compiled) == (what in IN_PLACE)
