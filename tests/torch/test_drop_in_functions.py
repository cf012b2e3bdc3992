"""Drop-ins for autograd Functions: they are such Functions, with an `apply` without overhead."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad, grad, gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy, gelu, linear, relu, rms_norm, silu

from bridge.torch import apex, liger, megatron, slapo, towhee
from tests.torch.attention import above_diagonal, softmax64
from tests.torch.expected import assert_close, assert_same_bits, clamped

ALONE = SimpleNamespace(world_size=1, local_rank=0)
MASK = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.4


class DropIn(NamedTuple):
    """A Function with its other arguments, and its definition."""

    function: Any
    shapes: tuple[tuple[int, ...], ...]
    others: tuple[Any, ...]
    definition: Callable[..., Tensor]


def _gelu(x: Tensor, bias: Tensor) -> Tensor:
    return gelu(x + bias, approximate="tanh")


def _swiglu(x: Tensor, bias: Any = 0.0, weights: Any = 1.0, limit: float = math.inf) -> Tensor:
    gate, up = (x + bias).chunk(2, -1)
    return silu(clamped(gate, -math.inf, limit)) * clamped(up, -limit, limit) * weights


def _geglu(x: Tensor, bias: Any = 0.0) -> Tensor:
    gate, up = (x + bias).chunk(2, -1)
    return gelu(gate, approximate="tanh") * up


def _quick_geglu(x: Tensor, bias: Any, weights: Tensor, offset: float) -> Tensor:
    gate, up = (x + bias).chunk(2, -1)
    return gate * torch.sigmoid(1.702 * gate) * (up + offset) * weights


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float) -> Tensor:
    """Composed, because torch.func.hessian of torch's own has a wrong mixed second derivative."""
    centred = x - x.mean((-2, -1), keepdim=True)
    return centred / (centred.pow(2).mean((-2, -1), keepdim=True) + eps).sqrt() * weight + bias


SCORES = ((2, 3, 5, 7),)
TOKENS, WEIGHTS, ROW = (2, 4), (2, 1), (4,)
DROP_INS = {
    "GeLUFunction": DropIn(megatron.GeLUFunction, ((3, 4), (4,)), (), _gelu),
    "GeLUFunction, a column": DropIn(megatron.GeLUFunction, ((3, 4), (3, 1)), (), _gelu),
    "BiasGeLUFunction": DropIn(slapo.BiasGeLUFunction, ((3, 4), (4,)), (), _gelu),
    "ScaledSoftmax": DropIn(
        megatron.ScaledSoftmax, SCORES, (0.7,), lambda x, scale: softmax64(x, None, scale)
    ),
    "ScaledMaskedSoftmax": DropIn(megatron.ScaledMaskedSoftmax, SCORES, (MASK, 0.7), softmax64),
    "GenericScaledMaskedSoftmax": DropIn(
        megatron.GenericScaledMaskedSoftmax, SCORES, (MASK, 0.7), softmax64
    ),
    "ScaledUpperTriangMaskedSoftmax": DropIn(
        megatron.ScaledUpperTriangMaskedSoftmax,
        ((2, 5, 7),),
        (0.7,),
        lambda x, scale: softmax64(x, above_diagonal(5, 7), scale),
    ),
    "MakeViewlessTensor": DropIn(
        megatron.MakeViewlessTensor, ((3, 4),), (True,), lambda x, _: x + 0.0
    ),
    "BiasSwiGLUFunction": DropIn(
        megatron.BiasSwiGLUFunction,
        (TOKENS, ROW),
        (False, False, 2.0),
        lambda x, bias, *_: _swiglu(x, bias, limit=2.0),
    ),
    "SwiGLUFunction": DropIn(
        megatron.SwiGLUFunction, (TOKENS,), (False, False, None), lambda x, *_: _swiglu(x)
    ),
    "WeightedSwiGLUFunction": DropIn(
        megatron.WeightedSwiGLUFunction,
        (TOKENS, WEIGHTS),
        (False, None),
        lambda x, weights, *_: _swiglu(x, 0.0, weights),
    ),
    "BiasGeGLUFunction": DropIn(megatron.BiasGeGLUFunction, (TOKENS, ROW), (), _geglu),
    "GeGLUFunction": DropIn(megatron.GeGLUFunction, (TOKENS,), (), _geglu),
    "WeightedQuickGeGLUFunction": DropIn(
        megatron.WeightedQuickGeGLUFunction,
        (TOKENS, WEIGHTS),
        (False, 0.5),
        lambda x, weights, _, offset: _quick_geglu(x, 0.0, weights, offset),
    ),
    "WeightedBiasQuickGeGLUFunction": DropIn(
        megatron.WeightedBiasQuickGeGLUFunction,
        (TOKENS, ROW, WEIGHTS),
        (False, 0.5),
        lambda x, bias, weights, _, offset: _quick_geglu(x, bias, weights, offset),
    ),
    "WeightedSquaredReLUFunction": DropIn(
        megatron.WeightedSquaredReLUFunction,
        (TOKENS, WEIGHTS),
        (),
        lambda x, weights: relu(x) ** 2 * weights,
    ),
    "FusedLayerNormAffineFunction": DropIn(
        apex.FusedLayerNormAffineFunction,
        ((2, 2, 2), (2, 2), (2, 2)),
        ([2, 2], 1e-2),
        _layer_norm,
    ),
    "FusedRMSNormFunction": DropIn(
        apex.FusedRMSNormFunction,
        (TOKENS,),
        (4, 1e-2),
        lambda x, _, eps: rms_norm(x, (4,), eps=eps),
    ),
    "LigerRMSNormFunction": DropIn(
        liger.LigerRMSNormFunction,
        (TOKENS, ROW),
        (1e-2, 1.0),
        lambda x, w, eps, offset: rms_norm(x, (4,), offset + w, eps),
    ),
    "LigerSiLUMulFunction": DropIn(
        liger.LigerSiLUMulFunction,
        (TOKENS, TOKENS),
        (0.5, 2.0),
        lambda a, b, gate, down: silu(a * gate) * b * down,
    ),
    "LigerSoftmaxFunction": DropIn(
        liger.LigerSoftmaxFunction, SCORES, (), lambda x: softmax64(x, None, 1.0)
    ),
    "LigerModulatedRMSNormFunction": DropIn(
        liger.LigerModulatedRMSNormFunction,
        (TOKENS, ROW, TOKENS, TOKENS),
        (1e-2, 1.0),
        lambda x, w, scale, shift, eps, offset: (
            (1 + scale) * rms_norm(x, (4,), offset + w, eps) + shift
        ),
    ),
    "LigerMLPFunction": DropIn(
        liger.LigerMLPFunction,
        (TOKENS, (3, 4), (3, 4), (4, 3)),
        (0.5, 2.0),
        lambda x, gate, up, down, m, n: linear(silu(linear(x, gate) * m) * linear(x, up), down) * n,
    ),
    "LigerVocabParallelCEFunction": DropIn(
        liger.LigerVocabParallelCEFunction,
        (TOKENS,),
        (torch.tensor([3, 0]), None, -100, 0.1, "pytorch", "global"),
        lambda x, labels, *_: cross_entropy(x, labels, reduction="none", label_smoothing=0.1),
    ),
    "AllGather": DropIn(towhee.AllGather, ((3, 4),), (ALONE,), lambda x, _: x + 0.0),
    "AllGather2": DropIn(towhee.AllGather2, ((3, 4),), (ALONE,), lambda x, _: x + 0.0),
}

each = pytest.mark.parametrize("drop_in", DROP_INS.values(), ids=DROP_INS.keys())


def tensors(draw: Any, drop_in: DropIn) -> tuple[Tensor, ...]:
    return tuple(draw(*shape, grad=True) for shape in drop_in.shapes)


def derived(function: Any) -> dict[str, Any]:
    """Returns users' subclasses of a Function, and Functions that call its methods."""

    class Forward(function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            return 3 * function.forward(ctx, *arguments)

    class Backward(function):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return tuple(None if d is None else 3 * d for d in function.backward(ctx, g))

    class Caller(Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            return function.forward(ctx, *arguments)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return function.backward(ctx, g)

    return {"forward": Forward, "backward": Backward, "caller": Caller}


@each
def test_is_a_function(drop_in: DropIn) -> None:
    function = drop_in.function
    assert issubclass(function, Function)
    for method in ("apply", "forward", "backward"):
        assert getattr(function, method) is not getattr(Function, method)
    assert not inspect.ismethod(function.apply), "torch's own would be called through forward"


@each
@pytest.mark.sampled(10)
def test_apply_is_the_public_function(draw: Any, drop_in: DropIn) -> None:
    """Its derivatives include some that torch refuses for Functions with forward and backward."""
    inputs = tensors(draw, drop_in)
    count = len(inputs)

    def apply(*given: Tensor) -> Tensor:
        return drop_in.function.apply(*given, *drop_in.others)

    def defined(*given: Tensor) -> Tensor:
        return drop_in.definition(*given, *drop_in.others)

    y = apply(*inputs)
    assert_close(y, defined(*inputs), ulps=16)
    g = draw(*y.shape)
    for ours, theirs in zip(grad(y, inputs, g), grad(defined(*inputs), inputs, g), strict=True):
        assert_close(ours, theirs, ulps=64)
    plain = tuple(t.detach() for t in inputs)
    directions = tuple(draw(*t.shape) for t in plain)
    tangent = torch.func.jvp(apply, plain, directions)[1]
    assert_close(tangent, torch.func.jvp(defined, plain, directions)[1], ulps=64)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(plain, directions, strict=True)]
        assert_close(forward_ad.unpack_dual(apply(*duals)).tangent, tangent)
    batches = tuple(torch.stack([t, 2 * t]) for t in plain)
    together = torch.func.vmap(apply)(*batches)
    assert_close(together[1], defined(*(batch[1] for batch in batches)), ulps=16)
    positions = tuple(range(count))
    hessians = torch.func.hessian(lambda *given: (apply(*given) * g).sum(), positions)(*plain)
    expected = torch.func.hessian(lambda *given: (defined(*given) * g).sum(), positions)(*plain)
    for ours, theirs in zip(hessians, expected, strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


@each
@pytest.mark.sampled(10)
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_apply_compiles(draw: Any, drop_in: DropIn) -> None:
    inputs = tensors(draw, drop_in)
    named = drop_in.function.apply  # like bias_gelu_impl

    def inside(*given: Tensor) -> Tensor:
        return drop_in.function.apply(*given, *drop_in.others)

    for function in (inside, lambda *given: named(*given, *drop_in.others)):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        ours, theirs = compiled(*inputs), inside(*inputs)
        assert_same_bits(ours, theirs)
        g = draw(*ours.shape)
        for one, other in zip(grad(ours, inputs, g), grad(theirs, inputs, g), strict=True):
            assert_same_bits(one, other)

    def tangent(*given: Tensor) -> Tensor:
        return torch.func.jvp(inside, given, given)[1]

    plain = tuple(t.detach() for t in inputs)
    compiled = torch.compile(tangent, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(*plain), tangent(*plain))


@each
@pytest.mark.sampled(24)
@pytest.mark.parametrize("what", ["forward", "backward", "caller"])
def test_derived_functions(draw: Any, drop_in: DropIn, what: str) -> None:
    function = derived(drop_in.function)[what]
    inputs = tensors(draw, drop_in)

    def apply(*given: Tensor) -> Tensor:
        return function.apply(*given, *drop_in.others)

    y, expected = apply(*inputs), drop_in.definition(*inputs, *drop_in.others)
    assert_close(y, 3 * expected if what == "forward" else expected, ulps=16)
    g = draw(*y.shape)
    times = 3 if what == "backward" else 1
    for ours, theirs in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
        assert_close(ours, times * theirs, ulps=256)
    if what == "caller":
        assert gradcheck(apply, inputs)
        assert gradgradcheck(apply, inputs)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's, at a graph break
def test_a_derived_function_under_compile(draw: Any) -> None:
    """Its own forward and backward run, not `apply` of its base class."""
    x, bias = draw(3, 4, grad=True), draw(4, grad=True)
    function = derived(megatron.GeLUFunction)["backward"]
    compiled = torch.compile(lambda x, bias: 2 * function.apply(x, bias), backend="aot_eager")
    y, expected = compiled(x, bias), 2 * function.apply(x, bias)
    assert_same_bits(y, expected)
    g = draw(3, 4)
    for ours, theirs in zip(grad(y, (x, bias), g), grad(expected, (x, bias), g), strict=True):
        assert_same_bits(ours, theirs)


def test_a_derived_function_without_methods_of_its_own() -> None:
    class Named(megatron.GeLUFunction):
        """The interface of slapo's Function."""

    class Further(derived(megatron.GeLUFunction)["forward"]):
        """A subclass with its own forward."""

    assert Named.apply is megatron.GeLUFunction.apply
    x = torch.ones(2, 3)
    assert_same_bits(Further.apply(x, None), 3 * megatron.GeLUFunction.apply(x, None))


def test_gelu_without_a_bias(draw: Any) -> None:
    x, g = draw(3, 4, grad=True), draw(3, 4)
    function = derived(megatron.GeLUFunction)["caller"]
    (ours,), (theirs,) = (
        grad(y, x, g) for y in (function.apply(x, None), megatron.GeLUFunction.apply(x, None))
    )
    assert_close(ours, theirs)
