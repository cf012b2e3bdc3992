"""Norms, gated units and rotary embedding of Liger-Kernel: its published cases, on the CPU.

Shapes and tolerances come from test/transformers, with the largest shapes reduced. Each case is
also compared with float64, with gradients of random cotangents. Tolerances of 1 and 10000 are not
repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn.functional import gelu, layer_norm, linear, relu, silu

from bridge.torch import liger
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.replay import replay

FLOAT, BFLOAT = torch.float32, torch.bfloat16
NORM_TOLERANCES = {FLOAT: {"atol": 1e-4, "rtol": 1e-6}, BFLOAT: {"atol": 2e-1, "rtol": 2e-2}}
BOTH = pytest.mark.parametrize("dtype", [FLOAT, BFLOAT], ids=str)
MODES = pytest.mark.parametrize(
    ("casting_mode", "offset"), [("llama", 0.0), ("gemma", 1.0), ("none", 0.0)]
)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return normal if weight is None else normal * weight


def of_parameters(module: torch.nn.Module) -> Callable[..., Any]:
    """Returns the module as a function of its inputs and then its parameters."""
    names = [name for name, _ in module.named_parameters()]

    def run(*tensors: Tensor) -> Any:
        count = len(tensors) - len(names)
        given = dict(zip(names, tensors[count:], strict=True))
        return torch.func.functional_call(module, given, tensors[:count])

    return run


# test_rms_norm.py
@BOTH
@MODES
@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", [(2, 128, 512), (5, 123, 123)], ids=str)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm(
    draw: Any,
    shape: Any,
    dtype: torch.dtype,
    casting_mode: str,
    offset: float,
    in_place: bool,
    affine: bool,
) -> None:
    module = liger.LigerRMSNorm(
        shape[-1],
        offset=offset,
        casting_mode=casting_mode,
        in_place=in_place,
        elementwise_affine=affine,
    ).to(dtype)
    tensors = [draw(*shape, dtype=dtype) / 3, *(p.detach() for p in module.parameters())]
    replay(
        of_parameters(module),
        lambda x, w=None: rms_norm(x, None if w is None else offset + w),
        tensors,
        NORM_TOLERANCES[dtype],
    )


@BOTH
@pytest.mark.parametrize(("casting_mode", "offset"), [("llama", 0.0), ("gemma", 1.0)])
@pytest.mark.parametrize("shape", [(2, 2, 8), (9, 7, 41)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm_functional(
    draw: Any, shape: Any, dtype: torch.dtype, casting_mode: str, offset: float, affine: bool
) -> None:
    x = draw(*shape, dtype=dtype)
    w = draw(shape[-1], dtype=dtype) if affine else None
    tensors = (x,) if w is None else (x, w)
    for function in (
        lambda x, w=None: liger.liger_rms_norm(
            X=x, W=w, eps=1e-6, offset=offset, casting_mode=casting_mode
        ),
        lambda x, w=None: liger.LigerRMSNormFunction.apply(x, w, 1e-6, offset, casting_mode),
    ):
        exact = lambda x, w=None: rms_norm(x, None if w is None else offset + w)  # noqa: E731
        replay(function, exact, tensors, NORM_TOLERANCES[dtype], ulps=16)


# test_fused_add_rms_norm.py
@BOTH
@MODES
@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", [(2, 128, 512), (5, 123, 123), (2, 2, 8), (9, 7, 41)], ids=str)
@pytest.mark.parametrize("in_place", [True, False])
def test_fused_add_rms_norm(
    draw: Any, shape: Any, dtype: torch.dtype, casting_mode: str, offset: float, in_place: bool
) -> None:
    d = shape[-1]
    module = liger.LigerFusedAddRMSNorm(
        d, offset=offset, casting_mode=casting_mode, in_place=in_place
    ).to(dtype)
    x, residual, weight = (draw(*s, dtype=dtype) / 3 for s in (shape, shape, (d,)))

    def exact(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        # The input of the norm is the sum rounded to its dtype.
        rounding = (x.to(dtype) + r.to(dtype)).double() - (x + r)
        s = x + r + rounding.detach()
        return rms_norm(s, offset + w), s

    published = NORM_TOLERANCES[dtype]
    replay(of_parameters(module), exact, (x, residual, weight), published, ulps=16)
    found = liger.liger_fused_add_rms_norm(
        X=x, R=residual, W=weight, eps=1e-6, offset=offset, casting_mode=casting_mode
    )
    for one, other in zip(found, of_parameters(module)(x, residual, weight), strict=True):
        assert_same_bits(one, other)


# test_layer_norm.py
@BOTH
@pytest.mark.parametrize(
    "shape", [(2, 8, 64), (4, 16, 128), (1, 1, 1023), (3, 7, 256), (1, 1, 1500)], ids=str
)
def test_layer_norm(draw: Any, shape: Any, dtype: torch.dtype) -> None:
    d = shape[-1]
    module = liger.LigerLayerNorm(d, eps=1e-6).to(dtype)
    tensors = [draw(*s, dtype=dtype) / 3 for s in (shape, (d,), (d,))]
    published = {FLOAT: {"atol": 1e-5, "rtol": 1e-5}, BFLOAT: {"atol": 4e-2, "rtol": 2e-2}}
    exact = lambda x, w, b: layer_norm(x, (d,), w, b, 1e-6)  # noqa: E731
    replay(of_parameters(module), exact, tensors, published[dtype], ulps=16)
    functional = lambda x, w, b: liger.liger_layer_norm(X=x, W=w, B=b, eps=1e-6)  # noqa: E731
    assert_same_bits(functional(*tensors), of_parameters(module)(*tensors))
    original = torch.nn.LayerNorm(d)
    original.load_state_dict(module.state_dict())
    module.load_state_dict(original.state_dict())


def config(**changes: Any) -> Any:
    values = {"hidden_size": 16, "intermediate_size": 24, "hidden_act": "silu"}
    return SimpleNamespace(**{**values, **changes})


def gated(activation: Callable[[Tensor], Tensor], gate: float = 1.0, down: float = 1.0) -> Any:
    def run(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
        return linear(activation(linear(x, g) * gate) * linear(x, u) * down, d)

    return run


def phi3(x: Tensor, both: Tensor, d: Tensor) -> Tensor:
    gate, up = linear(x, both).chunk(2, -1)
    return linear(silu(gate) * up, d)


MLPS: dict[str, tuple[Callable[[Any], Any], Callable[..., Tensor]]] = {
    "LigerSwiGLUMLP": (liger.LigerSwiGLUMLP, gated(silu)),
    "LigerQwen3MoeSwiGLUMLP": (liger.LigerQwen3MoeSwiGLUMLP, gated(silu)),
    "LigerHunyuanV1SwiGLUMLP": (liger.LigerHunyuanV1SwiGLUMLP, gated(silu)),
    "LigerFalconH1SwiGLUMLP": (liger.LigerFalconH1SwiGLUMLP, gated(silu, 0.7, 1.3)),
    "LigerPhi3SwiGLUMLP": (liger.LigerPhi3SwiGLUMLP, phi3),
    "LigerBlockSparseTop2MLP": (
        liger.LigerBlockSparseTop2MLP,
        lambda x, w1, w2, w3: gated(silu)(x, w1, w3, w2),
    ),
    "LigerGEGLUMLP": (liger.LigerGEGLUMLP, gated(lambda x: gelu(x, approximate="tanh"))),
    "LigerGEGLUMLPForGemma4": (
        liger.LigerGEGLUMLPForGemma4,
        gated(lambda x: gelu(x, approximate="tanh")),
    ),
}


# test_swiglu.py, test_geglu.py
@BOTH
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", MLPS)
@pytest.mark.parametrize(("shape", "wide"), [((2, 256, 256), 512), ((6, 42, 123), 431)], ids=str)
def test_mlps(draw: Any, name: str, shape: Any, wide: int, dtype: torch.dtype) -> None:
    """Inputs have sizes as in models; products of normal matrices would be in the thousands."""
    make, exact = MLPS[name]
    options = config(hidden_size=shape[-1], intermediate_size=wide, mlp_multipliers=(0.7, 1.3))
    module = make(options).to(dtype)
    parameters = [p.detach() for p in module.parameters()]
    # torch rounds matrix products to the dtype in between: little, relative to the largest number.
    replay(of_parameters(module), exact, [draw(*shape, dtype=dtype) / 3, *parameters], ulps=32)


@BOTH
@pytest.mark.parametrize("shape", [(2, 8, 8), (9, 7, 41)], ids=str)
def test_gates_functional(draw: Any, shape: Any, dtype: torch.dtype) -> None:
    a, b = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    published = {FLOAT: {"atol": 1e-5, "rtol": 1e-5}, BFLOAT: {"atol": 5e-2, "rtol": 1e-2}}
    replay(lambda a, b: liger.liger_swiglu(a=a, b=b), lambda a, b: silu(a) * b, (a, b))
    tanh = lambda a, b: gelu(a, approximate="tanh") * b  # noqa: E731
    replay(lambda a, b: liger.liger_geglu(a=a, b=b), tanh, (a, b), published[dtype])
    packed = torch.cat((a, b), -1)
    y = liger.LigerFusedGateUpSiLUMulFunction.apply(packed, True)
    assert_same_bits(y, liger.LigerSiLUMulFunction.apply(a, b))
    relu_published = {FLOAT: {"atol": 1e-5, "rtol": 1e-5}, BFLOAT: {"atol": 1e-1, "rtol": 5e-2}}
    for squared in (liger.liger_relu_squared, liger.LigerReLUSquared()):
        replay(squared, lambda x: relu(x) ** 2, (a,), relu_published[dtype])


@BOTH
@pytest.mark.parametrize("shape", [(2, 8, 8), (9, 7, 41)], ids=str)
@pytest.mark.parametrize("multipliers", [(0.7, 1.3), (1.5, 0.5), (1.0, 1.0)], ids=str)
def test_multipliers(draw: Any, shape: Any, dtype: torch.dtype, multipliers: Any) -> None:
    gate, down = multipliers
    published = {FLOAT: {"atol": 1e-3, "rtol": 1e-5}, BFLOAT: {"atol": 1e-1, "rtol": 1e-2}}
    tensors = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    replay(
        lambda a, b: liger.LigerSiLUMulFunction.apply(a, b, gate, down),
        lambda a, b: silu(a * gate) * b * down,
        tensors,
        published[dtype],
    )
    if multipliers == (1.0, 1.0):
        ours = liger.LigerSiLUMulFunction.apply(*tensors, 1.0, 1.0)
        assert_same_bits(ours, liger.LigerSiLUMulFunction.apply(*tensors))


@pytest.mark.parametrize("name", [name for name in MLPS if "GEGLU" not in name])
def test_another_activation(name: str) -> None:
    options = config(hidden_act="gelu", mlp_multipliers=(1.0, 1.0))
    with pytest.raises(ValueError, match="hidden_act is 'gelu', expected 'silu' or 'swish'"):
        MLPS[name][0](options)
    MLPS[name][0](config(hidden_act="swish", mlp_multipliers=(1.0, 1.0)))


# test_geglu.py: layers of Gemma 4 that share keys and values.
@pytest.mark.parametrize(
    ("changes", "layer_idx", "factor"),
    [
        ({"num_kv_shared_layers": 8}, None, 1),
        ({"num_kv_shared_layers": 8, "use_double_wide_mlp": False}, 31, 1),
        ({"num_kv_shared_layers": 8}, 0, 1),
        ({"num_kv_shared_layers": 8}, 23, 1),
        ({"num_kv_shared_layers": 8}, 24, 2),
        ({"num_kv_shared_layers": 8}, 31, 2),
        ({"num_kv_shared_layers": 0}, 31, 1),
    ],
)
def test_gemma4(draw: Any, changes: Any, layer_idx: int | None, factor: int) -> None:
    values = {"num_hidden_layers": 32, "use_double_wide_mlp": True, **changes}
    mlp = liger.LigerGEGLUMLPForGemma4(config(**values), layer_idx)
    assert mlp.intermediate_size == mlp.gate_proj.out_features == 24 * factor
    assert mlp.up_proj.out_features == mlp.down_proj.in_features == 24 * factor
    assert mlp.down_proj.out_features == mlp.gate_proj.in_features == 16
    x = draw(2, 8, 16, dtype=FLOAT, grad=True)
    y = mlp(x)
    assert y.shape == grad(y.sum(), x)[0].shape == x.shape


def tables(positions: int, d: int, dtype: torch.dtype, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Returns doubled tables, as in Hugging Face's models."""
    angles = torch.arange(positions)[:, None] * 10000.0 ** -(torch.arange(0, d, 2) / d)
    doubled = torch.cat((angles, angles), -1).expand(batch, -1, -1)
    return doubled.cos().to(dtype), doubled.sin().to(dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


# test_rope.py, with reduced heads and positions in its largest cases.
@pytest.mark.sampled(8)
@pytest.mark.parametrize("expanded", [True, False])
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "positions", "heads", "kv_heads", "d"),
    [
        (1, 18, 32, 32, 64),
        (2, 18, 32, 8, 64),
        (3, 11, 7, 21, 92),
        (3, 11, 7, 15, 92),
        (1, 257, 2, 1, 128),
        (1, 2, 2, 2, 8),
        (1, 2, 1, 2, 8),
        (9, 7, 41, 41, 40),
    ],
)
def test_rope(
    draw: Any,
    batch: int,
    positions: int,
    heads: int,
    kv_heads: int,
    d: int,
    dtype: torch.dtype,
    expanded: bool,
) -> None:
    q, k = (
        (draw(batch, positions, count, d, dtype=dtype) / 3).transpose(1, 2)
        for count in (heads, kv_heads)
    )
    cos, sin = tables(positions, d, dtype, batch if expanded else 1)
    wide = cos.double()[:, None], sin.double()[:, None]
    published = {FLOAT: 1e-5, BFLOAT: 1e-1, torch.float16: 1e-2}
    replay(
        lambda q, k: liger.liger_rotary_pos_emb(q, k, cos, sin),
        lambda q, k: (turned(q, *wide), turned(k, *wide)),
        (q, k),
        {"atol": published[dtype], "rtol": 1e-5},
    )
    found = liger.liger_rope(q=q, k=k, cos=cos, sin=sin, position_ids=torch.arange(positions))
    for one, other in zip(found, liger.LigerRopeFunction.apply(q, k, cos, sin), strict=True):
        assert_same_bits(one, other)
    swapped = liger.liger_rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
    for one, other in zip(found, swapped, strict=True):
        assert_same_bits(one, other.transpose(1, 2))


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize(("positions", "heads", "d"), [(128, 8, 64), (42, 7, 92)])
def test_rope_of_vision(draw: Any, positions: int, heads: int, d: int, dtype: torch.dtype) -> None:
    """Tables [positions, d] stay float32 there; the results have the dtype of q and k."""
    q, k = (draw(positions, heads, d, dtype=dtype) / 3 for _ in range(2))
    cos, sin = (table[0] for table in tables(positions, d, FLOAT))
    wide = cos.double()[:, None], sin.double()[:, None]
    exact = lambda q, k: (turned(q, *wide), turned(k, *wide))  # noqa: E731
    replay(lambda q, k: liger.liger_rotary_pos_emb_vision(q, k, cos, sin), exact, (q, k))
    four = [t[None].transpose(1, 2) for t in (q, k)]
    with_batch = liger.liger_rotary_pos_emb(*four, cos, sin)
    for one, other in zip(
        with_batch, liger.liger_rotary_pos_emb_vision(q, k, cos, sin), strict=True
    ):
        assert_same_bits(one, other[None].transpose(1, 2))


def test_functions_of_several_results(draw: Any) -> None:
    """A Function that calls `forward` and `backward` has the gradients of `apply`."""
    x, r, w = draw(3, 6, grad=True), draw(3, 6, grad=True), draw(6, grad=True)
    tensors = {
        liger.LigerFusedAddRMSNormFunction: ((x, r, w), (1e-6,)),
        liger.LigerRopeFunction: (
            (draw(2, 2, 3, 8, grad=True), draw(2, 1, 3, 8, grad=True)),
            tables(3, 8, torch.float64),
        ),
    }
    for function, (inputs, others) in tensors.items():

        class Caller(torch.autograd.Function):
            forward = staticmethod(function.forward)
            backward = staticmethod(function.backward)

        results, expected = (f.apply(*inputs, *others) for f in (Caller, function))
        g = [draw(*y.shape) for y in results]
        for one, other in zip(grad(results, inputs, g), grad(expected, inputs, g), strict=True):
            assert_close(one, other)


GEMMA = (liger.LigerRMSNormForGemma, liger.LigerRMSNormForGemma2, liger.LigerRMSNormForGemma3)


def test_defaults_of_models() -> None:
    for module in (*(make(8) for make in GEMMA), liger.LigerRMSNormForQwen3Next(8)):
        assert (module.offset, module.casting_mode) == (1.0, "gemma")
        assert not module.weight.count_nonzero()
    for make in (liger.LigerRMSNormForOlmo2, liger.LigerRMSNormForGlm4):
        module = make(8)
        assert (module.offset, module.casting_mode, module.in_place) == (0.0, "llama", False)
    assert liger.LigerRMSNormForGemma(8).in_place
    assert not liger.LigerRMSNormForGemma2(8).in_place
    bare = liger.LigerRMSNormForGemma4(8, with_scale=False)
    assert bare.weight is None
    x = torch.randn(3, 8, dtype=BFLOAT)
    assert_close(bare(x), rms_norm(x.double()), ulps=1)
    assert_same_bits(liger.LigerRMSNormForGemma4(dim=8)(x), bare(x))


def test_attributes_and_state() -> None:
    module = liger.LigerRMSNorm(8, eps=1e-3, init_fn="zeros", row_mode=True)
    assert repr(module) == (
        "LigerRMSNorm(weight_shape=(8,), eps=0.001, offset=0.0, in_place=True, row_mode=True)"
    )
    assert module.variance_epsilon == 1e-3
    assert not module.weight.count_nonzero()
    torch.nn.RMSNorm(8).load_state_dict(module.state_dict())
    module.load_state_dict(torch.nn.RMSNorm(8).state_dict())
    assert "weight_shape=None" in repr(liger.LigerRMSNorm(8, elementwise_affine=False))
    added = liger.LigerFusedAddRMSNorm(8)
    assert repr(added) == "LigerFusedAddRMSNorm((8,), eps=1e-06, offset=0.0, in_place=False)"
    normal = liger.LigerLayerNorm(8, bias=True)
    assert normal.bias.count_nonzero() == 8
    assert repr(normal) == "LigerLayerNorm(8, eps=1e-06)"
    assert list(liger.LigerSwiGLUMLP(config()).state_dict()) == [
        *("gate_proj.weight", "up_proj.weight", "down_proj.weight")
    ]


@pytest.mark.parametrize(
    "make", [liger.LigerRMSNorm, liger.LigerFusedAddRMSNorm, liger.LigerLayerNorm]
)
def test_another_start(make: Any) -> None:
    with pytest.raises(AssertionError, match="init_fn is 'normal', expected 'ones' or 'zeros'"):
        make(8, init_fn="normal")


def test_another_casting_mode() -> None:
    with pytest.raises(AssertionError, match="casting_mode is 'bert', expected 'llama'"):
        liger.LigerRMSNorm(8, casting_mode="bert")(torch.ones(2, 8))


@pytest.mark.parametrize("of_weight", [FLOAT, torch.float64], ids=str)
def test_the_dtype_of_the_input_stays(draw: Any, of_weight: torch.dtype) -> None:
    x, w, b = draw(3, 8, dtype=BFLOAT), draw(8, dtype=of_weight), draw(8, dtype=of_weight)
    replay(lambda x, w: liger.liger_rms_norm(x, w, 1e-6), rms_norm, (x, w))
    exact = lambda x, w, b: layer_norm(x, (8,), w, b, 1e-6)  # noqa: E731
    replay(lambda x, w, b: liger.liger_layer_norm(x, w, b, 1e-6), exact, (x, w, b))
    added = liger.liger_fused_add_rms_norm(x, x.to(of_weight), w, 1e-6)
    assert {t.dtype for t in added} == {BFLOAT}
