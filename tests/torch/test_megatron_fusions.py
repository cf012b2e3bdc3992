"""Gated units, squared ReLU and layer norm of Megatron-LM: its published cases and every function.

Shapes and tolerances of the published cases are the original's (tests/unit_tests/fusions). Each is
also compared with float64, with gradients of random cotangents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, relu, silu

from bridge.torch import megatron
from tests.torch.expected import DTYPES, assert_close, assert_same_bits, clamped
from tests.torch.replay import replay

BOTH = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
PUBLISHED = {
    torch.float32: {"rtol": 1e-6, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-3},
}
CLAMP = 10.0


def halves(y: Tensor, clamp: float | None = None) -> tuple[Tensor, Tensor]:
    first, second = y.chunk(2, -1)
    if clamp is None:
        return first, second
    return clamped(first, -math.inf, clamp), clamped(second, -clamp, clamp)


def swiglu(y: Tensor, clamp: float | None = None) -> Tensor:
    first, second = halves(y, clamp)
    return silu(first) * second


def geglu(y: Tensor) -> Tensor:
    first, second = halves(y)
    return gelu(first, approximate="tanh") * second


def quick_geglu(y: Tensor, offset: float = 0.0, clamp: float | None = None) -> Tensor:
    first, second = halves(y, clamp)
    return first * torch.sigmoid(1.702 * first) * (second + offset)


def squared_relu(x: Tensor) -> Tensor:
    return relu(x) ** 2


def in_parts(function: Callable[..., Any], *others: Any) -> Callable[..., Any]:
    return lambda *tensors: function(*tensors, *others)


# Megatron-LM, tests/unit_tests/fusions/test_swiglu_fusion.py.
class TestSwiglu:
    @BOTH
    def test_weighted(self, draw: Any, dtype: torch.dtype) -> None:
        tensors = draw(16, 64, dtype=dtype) / 3, draw(16, 1, dtype=torch.float32)
        replay(
            lambda x, w: megatron.weighted_bias_swiglu_impl(x, None, w),
            lambda x, w: swiglu(x) * w,
            tensors,
            PUBLISHED[dtype] if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 3e-6},
        )
        apart = megatron.bias_swiglu_impl(tensors[0], None) * tensors[1]
        together = megatron.weighted_bias_swiglu_impl(tensors[0], None, tensors[1])
        torch.testing.assert_close(together, apart.to(dtype), **PUBLISHED[dtype])

    @BOTH
    def test_clamped_and_weighted(self, draw: Any, dtype: torch.dtype) -> None:
        replay(
            lambda x, w: megatron.weighted_bias_swiglu_impl(x, None, w, clamp_value=CLAMP),
            lambda x, w: swiglu(x, CLAMP) * w,
            (draw(16, 64, dtype=dtype) * 5 / 3, draw(16, 1, dtype=torch.float32)),
            PUBLISHED[dtype] if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 3e-5},
        )

    @BOTH
    @pytest.mark.parametrize("clamp", [CLAMP, None, 0.0, -1.0])
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_with_a_bias_and_a_clamp(
        self, draw: Any, dtype: torch.dtype, clamp: float | None, with_bias: bool
    ) -> None:
        """A clamp that is not positive means no clamp, as in the original."""
        tensors = [draw(16, 64, dtype=dtype) * 5 / 3, draw(64, dtype=dtype) / 3][: 1 + with_bias]
        limit = CLAMP if clamp == CLAMP else None
        replay(
            lambda x, b=None: megatron.bias_swiglu_impl(x, b, clamp_value=clamp),
            lambda x, b=0.0: swiglu(x + b, limit),
            tensors,
        )
        y = megatron.bias_swiglu_impl(*tensors, *([] if with_bias else [None]), clamp_value=clamp)
        exact = swiglu(sum(t.double() for t in tensors), limit).to(dtype)
        torch.testing.assert_close(y, exact, **PUBLISHED[dtype])


# Megatron-LM, tests/unit_tests/fusions/test_weighted_squared_relu_fusion.py.
@BOTH
def test_weighted_squared_relu(draw: Any, dtype: torch.dtype) -> None:
    replay(
        megatron.weighted_squared_relu_impl,
        lambda x, w: squared_relu(x) * w,
        (draw(16, 64, dtype=dtype) / 3, draw(16, 1, dtype=torch.float32) / 3),
        PUBLISHED[dtype] if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 3e-6},
    )


Y, BIAS, WEIGHTS = (5, 12), (12,), (5, 1)
# Each function of the four files: (shapes, our function, its formula).
FUNCTIONS: dict[str, tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]] = {
    "swiglu": ((Y,), megatron.swiglu, swiglu),
    "bias_swiglu": ((Y, BIAS), megatron.bias_swiglu, lambda y, b: swiglu(y + b)),
    "weighted_swiglu": ((Y, WEIGHTS), megatron.weighted_swiglu, lambda y, w: swiglu(y) * w),
    "clamped_swiglu": ((Y,), in_parts(megatron.clamped_swiglu, 2.0), lambda y: swiglu(y, 2.0)),
    "bias_clamped_swiglu": (
        (Y, BIAS),
        in_parts(megatron.bias_clamped_swiglu, 2.0),
        lambda y, b: swiglu(y + b, 2.0),
    ),
    "clamped_weighted_swiglu": (
        (Y, WEIGHTS),
        in_parts(megatron.clamped_weighted_swiglu, 2.0),
        lambda y, w: swiglu(y, 2.0) * w,
    ),
    "geglu": ((Y,), megatron.geglu, geglu),
    "bias_geglu": ((BIAS, Y), megatron.bias_geglu, lambda b, y: geglu(y + b)),
    "bias_geglu_impl": ((Y, BIAS), megatron.bias_geglu_impl, lambda y, b: geglu(y + b)),
    "quick_gelu": ((Y,), megatron.quick_gelu, lambda y: y * torch.sigmoid(1.702 * y)),
    "quick_geglu": ((Y,), in_parts(megatron.quick_geglu, 1.0), in_parts(quick_geglu, 1.0)),
    "weighted_quick_geglu": (
        (Y, WEIGHTS),
        in_parts(megatron.weighted_quick_geglu, 0.5),
        lambda y, w: quick_geglu(y, 0.5) * w,
    ),
    "weighted_bias_quick_geglu": (
        (Y, BIAS, WEIGHTS),
        in_parts(megatron.weighted_bias_quick_geglu, 0.5),
        lambda y, b, w: quick_geglu(y + b, 0.5) * w,
    ),
    "weighted_bias_quick_geglu_impl": (
        (Y, WEIGHTS),
        lambda y, w: megatron.weighted_bias_quick_geglu_impl(y, None, w, False, 1.0, 2.0),
        lambda y, w: quick_geglu(y, 1.0, 2.0) * w,
    ),
    "weighted_bias_quick_geglu_impl, clamped before the bias": (
        (Y, BIAS, WEIGHTS),
        lambda y, b, w: megatron.weighted_bias_quick_geglu_impl(y, b, w, False, 1.0, 2.0),
        lambda y, b, w: quick_geglu(torch.cat(halves(y, 2.0), -1) + b, 1.0) * w,
    ),
    "weighted_squared_relu": (
        (Y, WEIGHTS),
        megatron.weighted_squared_relu,
        lambda x, w: squared_relu(x) * w,
    ),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(draw: Any, name: str, dtype: torch.dtype) -> None:
    shapes, ours, exact = FUNCTIONS[name]
    replay(ours, exact, [draw(*shape, dtype=dtype) for shape in shapes], ulps=32)


WEIGHTED = [name for name, (shapes, _, _) in FUNCTIONS.items() if WEIGHTS in shapes]


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_a_wider_dtype(draw: Any, name: str, wide: torch.dtype) -> None:
    """The result has the dtype of the tokens, each gradient the dtype of its tensor."""
    shapes, ours, exact = FUNCTIONS[name]
    dtypes = [wide if shape == WEIGHTS else torch.bfloat16 for shape in shapes]
    pairs = zip(shapes, dtypes, strict=True)
    replay(ours, exact, [draw(*shape, dtype=dtype) for shape, dtype in pairs], ulps=32)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_a_wider_dtype_take_no_pass(draw: Any, name: str) -> None:
    """One kernel writes the 16-bit result, and one takes a separate bias: no conversion follows."""
    shapes, ours, _ = FUNCTIONS[name]
    dtypes = [torch.float32 if shape == WEIGHTS else torch.bfloat16 for shape in shapes]
    tensors = [draw(*shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    code = make_fx(ours)(*tensors).code
    assert code.count("torch.ops.bridge.program") == 1 + (BIAS in shapes)
    assert "_to_copy" not in code


# By differentiated function: its backward function of g and the tensors, in the original's order.
BACKWARDS: dict[str, Callable[..., Any]] = {
    "swiglu": megatron.swiglu_back,
    "bias_swiglu": megatron.bias_swiglu_back,
    "weighted_swiglu": megatron.weighted_swiglu_back,
    "clamped_swiglu": in_parts(megatron.clamped_swiglu_back, 2.0),
    "bias_clamped_swiglu": in_parts(megatron.bias_clamped_swiglu_back, 2.0),
    "clamped_weighted_swiglu": in_parts(megatron.clamped_weighted_swiglu_back, 2.0),
    "geglu": megatron.geglu_back,
    "bias_geglu_impl": megatron.bias_geglu_back,
    "quick_geglu": in_parts(megatron.quick_geglu_back, 1.0),
    "weighted_quick_geglu": in_parts(megatron.weighted_quick_geglu_back, 0.5),
    "weighted_bias_quick_geglu": in_parts(megatron.weighted_bias_quick_geglu_back, 0.5),
    "weighted_squared_relu": megatron.weighted_squared_relu_back,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards(draw: Any, name: str, dtype: torch.dtype) -> None:
    """The gradient of a bias is the gradient of the tokens, before its sum."""
    shapes, ours, _ = FUNCTIONS[name]
    tensors = [
        draw(*shape, dtype=torch.float32 if shape == WEIGHTS and dtype != torch.float64 else dtype)
        for shape in shapes
    ]
    inputs = [t.requires_grad_() for t in tensors]
    y = ours(*inputs)
    g = draw(*y.shape, dtype=dtype)
    found = BACKWARDS[name](g, *tensors)
    found = found if isinstance(found, tuple) else (found,)
    dy, *others = grad(y, inputs, g)
    expected = [dy]
    if name == "weighted_bias_quick_geglu":
        expected.append(dy)
    if WEIGHTS in shapes:
        expected.append(others[-1])
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, ulps=4)


@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_are_differentiable(draw: Any, name: str) -> None:
    small = {Y: (2, 4), BIAS: (4,), WEIGHTS: (2, 1)}
    tensors = [draw(*small[shape], grad=True) for shape in FUNCTIONS[name][0]]
    g = draw(*FUNCTIONS[name][1](*tensors).shape, grad=True)
    assert gradcheck(BACKWARDS[name], (g, *tensors), check_forward_ad=True, fast_mode=True)


def test_a_cotangent_of_a_wider_dtype(draw: Any) -> None:
    g, y = draw(5, 6, dtype=torch.float32), draw(*Y, dtype=torch.bfloat16)
    back = megatron.swiglu_back(g, y)
    assert back.dtype == torch.float32
    x = y.double().requires_grad_()
    assert_close(back, grad(swiglu(x), x, g.double())[0], ulps=16)
    assert megatron.clamped_swiglu_back(g, y, 2.0).dtype == torch.bfloat16
    assert megatron.bias_clamped_swiglu_back(g, y, draw(12), 2.0).dtype == torch.float64


@pytest.mark.parametrize(
    ("shape", "bias_shape"),
    [((4, 12), (4, 12)), ((4, 12), (4, 1)), ((4, 12), (1, 12)), ((4, 12), ()), ((12,), (4, 12))],
)
def test_biases_of_other_shapes(draw: Any, shape: Any, bias_shape: Any) -> None:
    tensors = draw(*shape), draw(*bias_shape)
    replay(megatron.bias_swiglu, lambda y, b: swiglu(y + b), tensors, ulps=32)
    replay(megatron.BiasGeGLUFunction.apply, lambda y, b: geglu(y + b), tensors, ulps=32)
    g = draw(4, 6) if 4 in (*shape, *bias_shape) else draw(6)
    x = (tensors[0] + tensors[1]).requires_grad_()
    expected = grad(swiglu(x), x, g)[0]
    assert_close(megatron.bias_swiglu_back(g, *tensors), expected, ulps=32)


@pytest.mark.parametrize("shape", [(3, 4, 12), (12, 12), (2, 3, 2, 12)], ids=str)
def test_any_leading_dimensions(draw: Any, shape: Any) -> None:
    """The original allows two or three. Weights are per token, or have the input's dimensions."""
    x, bias = draw(*shape), draw(12)
    rows = x.flatten(0, -2)
    weights = draw(len(rows), 1)
    given = weights.unflatten(0, shape[:-1])
    pairs = [
        (megatron.bias_swiglu_impl(x, bias), swiglu(rows + bias)),
        (megatron.bias_swiglu_impl(x, None), swiglu(rows)),
        (megatron.bias_geglu_impl(x, None), geglu(rows)),
        (megatron.weighted_bias_swiglu_impl(x, None, weights), swiglu(rows) * weights),
        (megatron.weighted_bias_swiglu_impl(x, None, given), swiglu(rows) * weights),
        (
            megatron.weighted_bias_quick_geglu_impl(x, bias, weights),
            quick_geglu(rows + bias) * weights,
        ),
        (megatron.weighted_squared_relu_impl(x, given), squared_relu(rows) * weights),
    ]
    for y, expected in pairs:
        assert_close(y, expected.unflatten(0, shape[:-1]), ulps=32)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_weight_for_all_tokens(draw: Any, shape: Any) -> None:
    y, weight, g = draw(*Y, grad=True), draw(*shape, grad=True), draw(5, 6)
    ours, exact = megatron.weighted_swiglu(y, weight), swiglu(y) * weight
    for one, other in zip(grad(ours, (y, weight), g), grad(exact, (y, weight), g), strict=True):
        assert_close(one, other, ulps=32)
    _, dweights = megatron.weighted_swiglu_back(g, y, weight)
    assert dweights.shape == (5, 1)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_for_any_number_of_tokens(draw: Any) -> None:
    """The number of tokens that a router sends to an expert is known only at run time."""
    compiled = torch.compile(
        lambda x, w: megatron.weighted_bias_swiglu_impl(x, None, w, clamp_value=2.0),
        fullgraph=True,
        backend="aot_eager",
    )
    for tokens in (7, 3):
        x, w = draw(tokens, 12, dtype=torch.bfloat16), draw(tokens, 1, dtype=torch.float32)
        for tensor in (x, w):
            torch._dynamo.decorators.mark_unbacked(tensor, 0)
        expected = megatron.clamped_weighted_swiglu(x, w, 2.0)
        assert_same_bits(compiled(x, w), expected)


def test_an_offset_in_a_tensor(draw: Any) -> None:
    y, bias, weights = draw(*Y, grad=True), draw(*BIAS), draw(*WEIGHTS)
    offset = torch.tensor(0.5, requires_grad=True)
    y1 = megatron.WeightedQuickGeGLUFunction.apply(y, weights, False, offset)
    assert_same_bits(y1, megatron.weighted_quick_geglu(y, weights, 0.5))
    y2 = megatron.WeightedBiasQuickGeGLUFunction.apply(y, bias, weights, False, offset)
    assert_same_bits(y2, megatron.weighted_bias_quick_geglu(y, bias, weights, 0.5))
    assert grad(y1.sum(), offset, allow_unused=True) == (None,)


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_gradient_passes_at_the_bounds(with_bias: bool) -> None:
    bounds = torch.tensor([[2.0, 1.0, 1.0, 2.0, -2.0, 3.0]], requires_grad=True)
    bias = torch.zeros(6) if with_bias else None
    weights = torch.ones(1, 1)
    y = megatron.weighted_bias_quick_geglu_impl(bounds, bias, weights, clamp_value=2.0)
    (slope,) = grad(y.sum(), bounds)
    assert slope[0, :5].all()
    assert slope[0, 5] == 0.0


@pytest.mark.parametrize("with_bias", [False, True])
def test_autocast_leaves_what_is_clamped_alone(draw: Any, with_bias: bool) -> None:
    y, weights = draw(*Y, dtype=torch.float16), draw(*WEIGHTS, dtype=torch.float16)
    bias = draw(*BIAS, dtype=torch.float16) if with_bias else None
    expected = megatron.weighted_bias_quick_geglu_impl(y, bias, weights, clamp_value=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        found = megatron.weighted_bias_quick_geglu_impl(y, bias, weights, clamp_value=0.5)
    assert_same_bits(found, expected)


FP8, OFFLOAD = "fp8_input_store is True", "cpu_offload_input is True"
X, W = torch.ones(Y), torch.ones(WEIGHTS)
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "swiglu, fp8": (lambda: megatron.bias_swiglu_impl(X, None, True), NotImplementedError, FP8),
    "swiglu, offload": (
        lambda: megatron.bias_swiglu_impl(X, X, False, True),
        NotImplementedError,
        OFFLOAD,
    ),
    "weighted, fp8": (
        lambda: megatron.weighted_bias_swiglu_impl(X, None, W, True),
        NotImplementedError,
        FP8,
    ),
    "quick, fp8": (
        lambda: megatron.weighted_bias_quick_geglu_impl(X, None, W, True),
        NotImplementedError,
        FP8,
    ),
    "quick Function, fp8": (
        lambda: megatron.WeightedQuickGeGLUFunction.apply(X, W, True),
        NotImplementedError,
        FP8,
    ),
    "quick Function with a bias, fp8": (
        lambda: megatron.WeightedBiasQuickGeGLUFunction.apply(X, X, W, True),
        NotImplementedError,
        FP8,
    ),
    "a bias beside weights": (
        lambda: megatron.weighted_bias_swiglu_impl(X, X, W),  # type: ignore[arg-type]
        NotImplementedError,
        "there is a bias, expected None",
    ),
    "a negative clamp": (
        lambda: megatron.weighted_bias_quick_geglu_impl(X, X, W, clamp_value=-1.0),
        ValueError,
        "clamp_value is -1.0, expected a positive number",
    ),
    "a clamp of zero": (
        lambda: megatron.clamped_swiglu(X, 0.0),
        ValueError,
        "clamp_value is 0.0, expected a positive number",
    ),
    "weights for each column": (
        lambda: megatron.weighted_swiglu(X, torch.ones(6)),
        ValueError,
        "weights has shape [6], expected [5, 1], one for each row",
    ),
    "weights of another number": (
        lambda: megatron.weighted_squared_relu_impl(X, torch.ones(4, 1)),
        ValueError,
        "weights has shape [4, 1], expected [5, 1], one for each row",
    ),
    "an odd number of columns": (lambda: megatron.swiglu(X[:, 1:]), ValueError, "two halves"),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: megatron.bias_swiglu_impl(X.int(), None), TypeError, "swiglu: gate has dtype int"),
        (lambda: megatron.weighted_swiglu(X, W.int()), TypeError, "swiglu: weight has dtype int"),
        (lambda: megatron.weighted_swiglu(X, W[1:]), ValueError, "swiglu: weights has shape"),
        (lambda: megatron.clamped_swiglu(X, -1.0), ValueError, "swiglu: clamp_value is -1.0"),
        (lambda: megatron.bias_swiglu(X, X[0, 1:]), ValueError, "swiglu: bias has shape [11]"),
        (lambda: megatron.swiglu_back(X, X), ValueError, "swiglu_back: g has shape [5, 12]"),
        (lambda: megatron.bias_geglu(X[0], X.int()), TypeError, "geglu: gate has dtype int32"),
        (lambda: megatron.geglu_back(X, None), TypeError, "geglu_back: y has type NoneType"),
        (lambda: megatron.quick_geglu(X, math.inf), ValueError, "quick_geglu: linear_offset is"),
        (
            lambda: megatron.weighted_bias_quick_geglu_impl(None, X, W, clamp_value=1.0),
            TypeError,
            "weighted_bias_quick_geglu_impl: input has type NoneType",
        ),
        (
            lambda: megatron.weighted_squared_relu(X, W.int()),
            TypeError,
            "weighted_squared_relu: weight has dtype int32",
        ),
        (
            lambda: megatron.bias_gelu(X[0, 1:], X),
            ValueError,
            "bias_gelu: bias has shape [11], expected a shape that broadcasts with x's, [5, 12]",
        ),
        (
            lambda: megatron.bias_gelu_back(X[0, 1:], X[0], X),
            ValueError,
            "bias_gelu_back: g has shape [11]",
        ),
        (
            lambda: megatron.bias_dropout_add_fused_inference((X, None), X[:, 1:], 0.1),
            ValueError,
            "bias_dropout_add: residual has shape [5, 11]",
        ),
    ],
)
def test_errors_begin_with_the_function(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(words)}"):
        call()


@pytest.mark.usefixtures("fresh_compiler")
def test_a_clamp_value_that_changes_is_compiled(draw: Any) -> None:
    run = torch.compile(
        lambda x, w, c: megatron.weighted_bias_quick_geglu_impl(x, X[0], w, clamp_value=c),
        fullgraph=True,
        backend="aot_eager",
    )
    x, w = draw(*Y, dtype=torch.float32), draw(*WEIGHTS, dtype=torch.float32)
    for clamp in (1.0, 0.5, 2.0):
        expected = megatron.weighted_bias_quick_geglu_impl(x, X[0], w, clamp_value=clamp)
        assert_same_bits(run(x, w, clamp), expected)


def config(**changes: Any) -> Any:
    values = {
        "normalization": "LayerNorm",
        "layernorm_zero_centered_gamma": False,
        "persist_layer_norm": True,
        "sequence_parallel": False,
        "memory_efficient_layer_norm": False,
    }
    return SimpleNamespace(**{**values, **changes})


class TestFusedLayerNorm:
    @pytest.mark.parametrize("zero_centred", [False, True])
    @pytest.mark.parametrize("hidden_size", [64, (4, 16)], ids=str)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_values(
        self, draw: Any, zero_centred: bool, hidden_size: Any, dtype: torch.dtype
    ) -> None:
        options = config(layernorm_zero_centered_gamma=zero_centred, memory_efficient_layer_norm=1)
        module = megatron.FusedLayerNorm(options, hidden_size, eps=1e-3).to(dtype)
        sizes = tuple(module.hidden_size)
        assert module.weight.unique().tolist() == [0.0 if zero_centred else 1.0]
        assert not module.bias.count_nonzero()

        def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            given = {"weight": weight, "bias": bias}
            y = torch.func.functional_call(module, given, (x,))
            assert y._base is None
            return y

        def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            # 1 + weight is rounded as in the original.
            whole = weight + ((weight.to(dtype) + 1).double() - weight).detach() * zero_centred
            return torch.nn.functional.layer_norm(x, sizes, whole, bias, 1e-3)

        replay(ours, exact, [draw(3, 5, *sizes, dtype=dtype), *(draw(*sizes, dtype=dtype),) * 2])

    def test_attributes_and_state(self) -> None:
        options = config(sequence_parallel=True)
        module = megatron.FusedLayerNorm(
            config=options,
            hidden_size=8,
            eps=1e-6,
            persist_layer_norm=False,
            zero_centered_gamma=True,
            normalization="LayerNorm",
        )
        assert module.weight.sequence_parallel
        assert module.bias.sequence_parallel
        assert module.sequence_parallel
        assert module.config is options
        assert module.persist_layer_norm
        assert not module.zero_centered_gamma
        torch.nn.LayerNorm(8).load_state_dict(module.state_dict())
        module.load_state_dict(torch.nn.LayerNorm(8).state_dict())

    def test_another_norm(self) -> None:
        with pytest.raises(AssertionError, match="normalization is 'RMSNorm'"):
            megatron.FusedLayerNorm(config(normalization="RMSNorm"), 8)
