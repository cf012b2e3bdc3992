"""The norms of apex in its published cases, on the CPU.

Shapes and tolerances come from tests/L0/run_fused_layer_norm. Each case is also compared with
float64, with gradients of random cotangents.
"""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn.functional import layer_norm, rms_norm

from bridge.torch import apex, megatron
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.replay import replay

SHAPE = [32, 16]
FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16
# By dtype: the widest published tolerances for values and gradients of a norm, except those that
# `replay` itself makes tighter.
PUBLISHED = {
    ("Layer", FLOAT): {"rtol": 2e-3, "atol": 2e-4},
    ("Layer", HALF): {"rtol": 1e-3, "atol": 1e-3},
    ("Layer", BFLOAT): {"rtol": 1.6e-2, "atol": 3e-3},
    ("RMS", FLOAT): {"rtol": 2e-3, "atol": 2e-4},
    ("RMS", HALF): {"rtol": 1.6e-2, "atol": 3e-3},
    ("RMS", BFLOAT): {"rtol": 1.6e-2, "atol": 3e-2},
}
NORMS = pytest.mark.parametrize("norm", ["Layer", "RMS"])


def made(norm: str, kind: str = "", **options: Any) -> Any:
    return getattr(apex, f"{kind}Fused{norm}Norm")(SHAPE, **options)


def exact(norm: str, x: Tensor, *parameters: Tensor) -> Tensor:
    if norm == "Layer":
        weight, bias = parameters or (None, None)
        return layer_norm(x, SHAPE, weight, bias, 1e-5)
    return rms_norm(x, SHAPE, *parameters, eps=1e-5)


def as_function(module: Any) -> Callable[..., Tensor]:
    """Returns the module as a function of its input and parameters."""
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, given, (x,))

    return run


def inputs(draw: Any, batch: int, contiguous: bool, dtype: torch.dtype) -> Tensor:
    if contiguous:
        return draw(batch, *SHAPE, dtype=dtype) / 3
    x = (draw(batch * 3, SHAPE[0] * 5, SHAPE[1] * 3, dtype=dtype) / 3)[::3, ::5, ::3]
    assert not x.is_contiguous()
    return x


CASES = [
    *[(2048, kind, affine, FLOAT) for kind, affine in (("", False), ("", True), ("Mixed", True))],
    *[(16, kind, affine, FLOAT) for kind, affine in (("", False), ("", True), ("Mixed", True))],
    (16, "", True, HALF),
    (16, "", True, BFLOAT),
]


def check(
    draw: Any,
    norm: str,
    batch: int,
    contiguous: bool,
    kind: str,
    affine: bool,
    dtype: torch.dtype,
    memory_efficient: bool,
) -> None:
    options = {} if kind else {"elementwise_affine": affine}
    module = made(norm, kind, memory_efficient=memory_efficient, **options).to(dtype)
    x = inputs(draw, batch, contiguous, dtype)
    tensors = [x, *(draw(*SHAPE, dtype=dtype) for _ in module.parameters())]
    function = as_function(module)
    replay(function, lambda *given: exact(norm, *given), tensors, ulps=16)
    # The published cases use parameters of ones and zeros, and cotangents in [0, 1).
    x = x.requires_grad_()
    g = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    y, wide = module(x), x.detach().double().requires_grad_()
    expected = exact(norm, wide)
    pairs = [(y, expected), (grad(y, x, g)[0], grad(expected, wide, g.double())[0])]
    for one, other in pairs:
        torch.testing.assert_close(one, other.to(dtype), **PUBLISHED[norm, dtype])


@NORMS
@pytest.mark.sampled(12)
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("batch", "kind", "affine", "dtype"), CASES)
@pytest.mark.parametrize("memory_efficient", [True, False])
def test_published(
    draw: Any,
    norm: str,
    batch: int,
    contiguous: bool,
    kind: str,
    affine: bool,
    dtype: torch.dtype,
    memory_efficient: bool,
) -> None:
    batch = batch if contiguous else min(batch, 128)
    check(draw, norm, batch, contiguous, kind, affine, dtype, memory_efficient)


@NORMS
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "Mixed"])
def test_published_at_full_size(draw: Any, norm: str, kind: str) -> None:
    check(draw, norm, 65536, True, kind, True, FLOAT, True)


@NORMS
@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_published_autocast(draw: Any, norm: str, dtype: torch.dtype, affine: bool) -> None:
    """All tensors are converted first, as in apex: the bits are those of a module of that dtype."""
    native = made(norm, elementwise_affine=affine).to(dtype)
    fused = made(norm, elementwise_affine=affine)
    x, g = draw(16, *SHAPE, dtype=FLOAT, grad=True), draw(16, *SHAPE, dtype=dtype)
    lower = x.detach().to(dtype).requires_grad_()
    expected = native(lower)
    with torch.autocast("cpu", dtype=dtype):
        actual = fused(x)
        double = x.detach().double()
        assert apex.fused_rms_norm(double, SHAPE).dtype == torch.float64
    assert_same_bits(actual, expected)
    (dx,), (expected_dx,) = grad(actual, x, g), grad(expected, lower, g)
    assert dx.dtype == FLOAT
    assert torch.equal(dx, expected_dx.float())


@NORMS
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("affine", [True, False])
def test_published_compiled(draw: Any, norm: str, affine: bool) -> None:
    module = made(norm, elementwise_affine=affine)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, g = draw(16, *SHAPE, dtype=FLOAT, grad=True), draw(16, *SHAPE, dtype=FLOAT)
    y, expected = compiled(x), module(x)
    assert_same_bits(y, expected)
    assert_same_bits(grad(y, x, g)[0], grad(expected, x, g)[0])


@NORMS
@pytest.mark.parametrize("kind", ["", "Mixed"])
def test_published_export(draw: Any, norm: str, kind: str) -> None:
    """The original exports to ONNX, with torch's own operations."""
    module, x = made(norm, kind), draw(16, *SHAPE, dtype=FLOAT)
    program = torch.export.export(module, (x,))
    assert_same_bits(program.module()(x), module(x))


MIXES = pytest.mark.parametrize(
    ("dtype", "of_weight"), [(BFLOAT, FLOAT), (FLOAT, BFLOAT), (HALF, BFLOAT)], ids=str
)


@NORMS
@MIXES
def test_dtypes(draw: Any, norm: str, dtype: torch.dtype, of_weight: torch.dtype) -> None:
    """The result of a norm has the input's dtype, and of a mixed norm its parameters' dtype."""
    for kind, expected in (("", dtype), ("Mixed", of_weight)):
        module = made(norm, kind).to(of_weight)
        tensors = [draw(4, *SHAPE, dtype=dtype)]
        tensors += [draw(*SHAPE, dtype=of_weight) for _ in module.parameters()]
        function = as_function(module)
        replay(function, lambda *given: exact(norm, *given), tensors, ulps=16, dtypes=[expected])


FUNCTIONALS: dict[str, tuple[str, int]] = {
    "fused_layer_norm": ("Layer", 0),
    "fused_layer_norm_affine": ("Layer", 2),
    "mixed_dtype_fused_layer_norm_affine": ("Layer", 2),
    "fused_rms_norm": ("RMS", 0),
    "fused_rms_norm_affine": ("RMS", 1),
    "mixed_dtype_fused_rms_norm_affine": ("RMS", 1),
    "FusedLayerNormFunction": ("Layer", 0),
    "FusedLayerNormAffineFunction": ("Layer", 2),
    "FusedLayerNormAffineMixedDtypesFunction": ("Layer", 2),
    "FusedRMSNormFunction": ("RMS", 0),
    "FusedRMSNormAffineFunction": ("RMS", 1),
    "FusedRMSNormAffineMixedDtypesFunction": ("RMS", 1),
}


@pytest.mark.parametrize("name", FUNCTIONALS)
@pytest.mark.parametrize("shape", [12, [3, 4], torch.Size([2, 3, 2])], ids=str)
def test_functions(draw: Any, name: str, shape: Any) -> None:
    norm, count = FUNCTIONALS[name]
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    ours = getattr(apex, name)
    ours = getattr(ours, "apply", ours)

    def wanted(x: Tensor, *rows: Tensor) -> Tensor:
        if norm == "Layer":
            return layer_norm(x, sizes, *(rows or (None, None)), 1e-3)
        return rms_norm(x, sizes, *rows, eps=1e-3)

    tensors = [draw(3, 2, *sizes), *(draw(*sizes) for _ in range(count))]
    replay(lambda *given: ours(*given, shape, 1e-3, True), wanted, tensors, ulps=32)
    with pytest.raises(ValueError, match=r"x has shape \[5\], expected .* in the last dimensions"):
        ours(draw(5), *tensors[1:], shape, 1e-3)
    if count:
        with pytest.raises(ValueError, match=r"weight has shape \[7\], expected"):
            ours(tensors[0], *(draw(7) for _ in range(count)), shape, 1e-3)


def test_signatures() -> None:
    """Megatron-LM looks for `memory_efficient` with `inspect`."""
    assert inspect.getfullargspec(apex.FusedLayerNormAffineFunction.forward).args == [
        *("ctx", "input", "weight", "bias", "normalized_shape", "eps", "memory_efficient")
    ]
    function = apex.fused_layer_norm_affine
    assert list(inspect.signature(function).parameters) == [
        *("input", "weight", "bias", "normalized_shape", "eps", "memory_efficient")
    ]
    assert inspect.signature(function).parameters["eps"].default == 1e-6


@NORMS
def test_state_and_attributes(norm: str) -> None:
    module = made(norm, eps=1e-3, memory_efficient=True)
    assert module.normalized_shape == torch.Size(SHAPE)
    assert (module.eps, module.elementwise_affine, module.memory_efficient) == (1e-3, True, True)
    assert repr(module) == (
        f"Fused{norm}Norm(torch.Size([32, 16]), eps=0.001, elementwise_affine=True)"
    )
    original = getattr(torch.nn, f"{norm}Norm")(SHAPE)
    original.load_state_dict(module.state_dict())
    module.load_state_dict(original.state_dict())
    assert list(module.state_dict()) == ["weight", *(["bias"] if norm == "Layer" else [])]
    assert module.weight.unique().tolist() == [1.0]
    plain = made(norm, elementwise_affine=False)
    assert plain.weight is None
    assert not plain.state_dict()
    x = torch.randn(3, *SHAPE)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
    assert made(norm, "Mixed").state_dict().keys() == module.state_dict().keys()
    assert isinstance(made(norm, "Mixed"), type(module))


@NORMS
def test_mixed_without_parameters(norm: str) -> None:
    name = f"MixedFused{norm}Norm"
    with pytest.warns(UserWarning, match=f"{name} takes no elementwise_affine"):
        assert made(norm, "Mixed", elementwise_affine=True).elementwise_affine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="elementwise_affine is False"):
            made(norm, "Mixed", elementwise_affine=False)
    with pytest.raises(TypeError, match=f"{name}: there is no argument 'device'"):
        made(norm, "Mixed", device="cpu")


@pytest.mark.parametrize("weighted", [None, FLOAT, HALF, BFLOAT, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT, torch.float64], ids=str)
def test_manual_rms_norm(draw: Any, dtype: torch.dtype, weighted: Any) -> None:
    """Dtypes follow the original's operations: a sum in float32, a weight of 16 bits."""
    x = draw(5, *SHAPE, dtype=dtype).requires_grad_()
    weight = None if weighted is None else draw(*SHAPE, dtype=weighted).requires_grad_()
    found = apex.manual_rms_norm(x, SHAPE, weight, 1e-5)
    normal = x * torch.rsqrt(x.float().square().mean((-1, -2), keepdim=True) + 1e-5)
    if weight is not None and weight.dtype in (HALF, BFLOAT):
        normal = normal.to(weight.dtype)
    original = normal if weight is None else weight * normal
    assert found.dtype == original.dtype
    smooth = [t for t in (x, weight) if t is not None]
    wide = [t.detach().double().requires_grad_() for t in smooth]
    expected = rms_norm(wide[0], SHAPE, *wide[1:], eps=1e-5)
    g = torch.randn(found.shape, dtype=found.dtype)
    least = max(torch.finfo(t.dtype).eps for t in (*smooth, found))
    for one, other in zip(
        (found, *grad(found, smooth, g)), (expected, *grad(expected, wide, g.double())), strict=True
    ):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error <= 8 * least


def test_no_dimensions() -> None:
    with pytest.raises(ValueError, match="normalized_shape is empty"):
        apex.FusedLayerNorm([])


def test_softmax_is_that_of_megatron() -> None:
    for name in ("GenericScaledMaskedSoftmax", "ScaledMaskedSoftmax"):
        assert getattr(apex, name) is getattr(megatron, name)
    ours, its = apex.FusedScaleMaskSoftmax, megatron.FusedScaleMaskSoftmax
    assert issubclass(ours, its)
    assert ours.forward is its.forward


# apex/contrib/test/layer_norm, with rows of any length, while the original has a list of lengths.
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 768), (7, 41)], ids=str)
@pytest.mark.parametrize("memory_efficient", [True, False])
def test_fast_layer_norm(draw: Any, shape: Any, dtype: torch.dtype, memory_efficient: bool) -> None:
    d = shape[-1]
    module = apex.FastLayerNorm(d, 1e-3, memory_efficient).to(dtype)
    tensors = [draw(*shape, dtype=dtype) / 3, draw(d, dtype=dtype), draw(d, dtype=dtype)]
    ours = as_function(module)
    replay(ours, lambda x, w, b: layer_norm(x, (d,), w, b, 1e-3), tensors, ulps=16)
    fn = apex.FastLayerNormFN
    assert issubclass(fn, torch.autograd.Function)
    assert_same_bits(fn.apply(*tensors, 1e-3, memory_efficient), ours(*tensors))
    apart = torch.stack((tensors[0],) * 2, -1)[..., 0]
    assert_same_bits(ours(apart, *tensors[1:]), ours(*tensors))
    original = torch.nn.LayerNorm(d, dtype=dtype)
    original.load_state_dict(module.state_dict())
    module.load_state_dict(original.state_dict())
    assert_same_bits(pickle.loads(pickle.dumps(module))(tensors[0]), module(tensors[0]))
    assert (module.epsilon, module.memory_efficient) == (1e-3, memory_efficient)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT, torch.float64], ids=str)
def test_fast_layer_norm_has_the_dtype_of_its_weight(dtype, draw) -> None:
    """Float32 rows with 16-bit weights have 16-bit results, as in the original's kernel table."""
    module, x = apex.FastLayerNorm(24).to(dtype), draw(5, 24, dtype=torch.float32)
    torch.nn.init.normal_(module.weight)
    weight, bias = (p.double() for p in (module.weight, module.bias))
    expected = torch.nn.functional.layer_norm(x.double(), (24,), weight, bias)
    for y in (module(x), apex.FastLayerNormFN.apply(x, module.weight, module.bias, 1e-5)):
        assert y.dtype == dtype
        assert_close(y, expected, 4.0 if dtype != torch.float64 else 2.0**26)


@pytest.mark.parametrize(
    "options", [{"input_in_fp16": True, "input_in_bf16": True}, {"scale": 0.5}], ids=str
)
def test_the_softmax_raises_what_apex_raises(options) -> None:
    """It raises RuntimeError, while Megatron-LM's module of this name asserts."""
    names = ("input_in_fp16", "input_in_bf16", "attn_mask_type", "scaled_masked_softmax_fusion")
    names += ("mask_func", "softmax_in_fp32", "scale")
    values = dict(zip(names, (False, False, "causal", True, None, False, None), strict=True))
    for module, error in ((apex, RuntimeError), (megatron, AssertionError)):
        with pytest.raises(error, match=r"FusedScaleMaskSoftmax: .*(both true|without softmax)"):
            module.FusedScaleMaskSoftmax(**{**values, **options})
    layer = apex.FusedScaleMaskSoftmax(**values)
    assert isinstance(layer, megatron.FusedScaleMaskSoftmax)
    x = torch.randn(1, 2, 4, 4)
    assert_same_bits(pickle.loads(pickle.dumps(layer))(x, None), layer(x, None))


def test_fast_layer_norm_under_autocast() -> None:
    """The tensors are converted first, as in the original."""
    module, x = apex.FastLayerNorm(8), torch.randn(3, 8)
    with torch.autocast("cpu", BFLOAT):
        assert module(x).dtype == BFLOAT
        assert apex.FastLayerNormFN.apply(x, module.weight, module.bias, 1e-5).dtype == FLOAT
    with pytest.raises(ValueError, match=r"x has shape \[3, 7\], expected \[8\]"):
        module(torch.randn(3, 7))
