"""`__torch_function__`: fx, modes and subclasses see the public functions as torch's own."""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

import bridge.torch as bt
from bridge import Quantization
from bridge.torch import apex, huggingface, liger, megatron, slapo
from tests.torch.expected import assert_same_bits

# By the expected name: calls of x [4, 5] and bias [5]. The last call draws random numbers.
FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], ...]] = {
    "bias_gelu": (
        lambda x, b: bt.bias_gelu(x, b),
        lambda x, b: bt.bias_gelu(x, approximate="none"),
        lambda x, b: bt.bias_gelu(bias=b, x=x),
    ),
    "bias_gelu_": (lambda x, b: bt.bias_gelu_(x * 1.0, b, approximate="sigmoid"),),
    "scaled_softmax": (
        lambda x, b: bt.scaled_softmax(x),
        lambda x, b: bt.scaled_softmax(x, x.shape[-1] ** -0.5),
        lambda x, b: bt.scaled_softmax(x, 2),
        lambda x, b: bt.scaled_softmax(x, 0.5, out=torch.empty_like(x)),
    ),
    "scaled_masked_softmax": (lambda x, b: bt.scaled_masked_softmax(x, x > b, scale=0.5),),
    "scaled_causal_softmax": (lambda x, b: bt.scaled_causal_softmax(x, 0.5),),
    "scaled_softmax_backward": (lambda x, b: bt.scaled_softmax_backward(x, x, causal=True),),
    "bias_dropout_add": (
        lambda x, b: bt.bias_dropout_add(x, b, x, p=0.5, seed=3),
        lambda x, b: bt.bias_dropout_add(x, b, x, p=0.5, training=False),
        lambda x, b: bt.bias_dropout_add(x, b, x, p=0),
        lambda x, b: bt.bias_dropout_add(x, b),
    ),
    "rms_norm": (
        lambda x, b: bt.rms_norm(x, b, offset=1.0),
        lambda x, b: bt.rms_norm(x, residual=x, eps=0.5)[1],
        lambda x, b: bt.rms_norm(x, out=torch.empty_like(x)),
    ),
    "layer_norm": (
        lambda x, b: bt.layer_norm(x, b, b),
        lambda x, b: bt.layer_norm(x, bias=b, residual=x)[0],
    ),
    "dyt": (lambda x, b: bt.dyt(x, b[:1], b), lambda x, b: bt.dyt(x, alpha=b[:1], bias=b)),
    "poly_norm": (
        lambda x, b: bt.poly_norm(x, b[:3], b[:1]),
        lambda x, b: bt.poly_norm(x, weight=b[1:4], eps=0.1),
    ),
    "gated_rms_norm": (
        lambda x, b: bt.gated_rms_norm(x, x, b),
        lambda x, b: bt.gated_rms_norm(x[:, :4], gate=x[:, :4], groups=2, norm_first=False),
    ),
    "interpolate": (
        lambda x, b: bt.interpolate(x[None], 3),
        lambda x, b: bt.interpolate(x[None], scale_factor=2.0, mode="linear"),
    ),
    "conv1d": (
        lambda x, b: bt.conv1d(x[None], x.t()[..., None], b),
        lambda x, b: bt.conv1d(x[None], x[:, :1, None], padding=1, groups=4),
    ),
    "conv_transpose1d": (lambda x, b: bt.conv_transpose1d(x[None], x[..., None], b),),
    "conv2d": (
        lambda x, b: bt.conv2d(x[None, :, None], x.t()[..., None, None], b),
        lambda x, b: bt.conv2d(x[None, :, None], x[:, :1, None, None], padding=1, groups=4),
    ),
    "conv_transpose2d": (
        lambda x, b: bt.conv_transpose2d(x[None, :, None], x[..., None, None], b),
    ),
    "conv3d": (
        lambda x, b: bt.conv3d(x[None, :, None, None], x.t()[..., None, None, None], b),
        lambda x, b: bt.conv3d(
            x[None, :, None, None], x[:, :1, None, None, None], padding=1, groups=4
        ),
    ),
    "conv_transpose3d": (
        lambda x, b: bt.conv_transpose3d(x[None, :, None, None], x[..., None, None, None], b),
    ),
    "max_pool": (
        lambda x, b: bt.max_pool(x[None], 2),
        lambda x, b: bt.max_pool(x[None], 2, return_indices=True)[0],
    ),
    "avg_pool": (lambda x, b: bt.avg_pool(x[None], 2, count_include_pad=False),),
    "adaptive_avg_pool": (lambda x, b: bt.adaptive_avg_pool(x[None], 1),),
    "batch_norm": (
        lambda x, b: bt.batch_norm(x, b, b, b, training=False),
        lambda x, b: bt.batch_norm(x, None, None, training=True),
    ),
    "quantize": (
        lambda x, b: bt.quantize(x, Quantization("int8_row"))[0],
        lambda x, b: bt.quantize(x[:2], Quantization("fp8_row"))[1],
    ),
    "fake_quantize": (
        lambda x, b: bt.fake_quantize(x, Quantization("int8_row")),
        lambda x, b: bt.fake_quantize(x[:2], Quantization("fp8_row")),
    ),
    "dequantize": (
        lambda x, b: bt.dequantize(x.to(torch.int8), x[:, 0]),
        lambda x, b: bt.dequantize(x.to(torch.int8), x[:, 0], dtype=torch.float64),
    ),
    "group_norm": (
        lambda x, b: bt.group_norm(x, 5, b, b),
        lambda x, b: bt.group_norm(x[:, None, :4], 2, eps=0.1, channels_last=True),
    ),
    "glu": (
        lambda x, b: bt.glu(x, x, b, activation="gelu", weight=x[:, 0], limit=2.0),
        lambda x, b: bt.glu(x[:, :4], interleaved=True),
    ),
    "swiglu": (lambda x, b: bt.swiglu(x[:, :4]), lambda x, b: bt.swiglu(x, x, linear_offset=1.0)),
    "geglu": (lambda x, b: bt.geglu(x, up=x, out=torch.empty_like(x)),),
    "reglu": (lambda x, b: bt.reglu(x, x, b),),
    "squared_relu": (lambda x, b: bt.squared_relu(x, x[:, :1]),),
    "log_softmax": (
        lambda x, b: bt.log_softmax(x, 0.5),
        lambda x, b: bt.log_softmax(x, out=torch.empty_like(x)),
    ),
    "logsumexp": (lambda x, b: bt.logsumexp(x, scale=2.0),),
    "token_log_probs": (lambda x, b: bt.token_log_probs(x, torch.arange(4), scale=0.5),),
    "entropy": (lambda x, b: bt.entropy(x, scale=0.5),),
    "kl_div": (lambda x, b: bt.kl_div(x, x + 1, temperature=2.0),),
    "js_div": (lambda x, b: bt.js_div(x, x.exp(), beta=0.3),),
    "tv_distance": (lambda x, b: bt.tv_distance(x, x.exp()),),
    "policy_loss": (
        lambda x, b: bt.policy_loss(x, x, x[:, 0], kind="sapo"),
        lambda x, b: bt.policy_loss(x, x, x, x > 0, ref_log_probs=x, kl=0.1, reduction="none"),
    ),
    "preference_loss": (
        lambda x, b: bt.preference_loss(x, x, kind="simpo", margin=0.5),
        lambda x, b: bt.preference_loss(x, None, x, kind="kto", desirable=x > 0, baseline=b[0]),
    ),
    "linear_token_log_probs": (
        lambda x, b: bt.linear_token_log_probs(x, x, torch.arange(4), bias=b[:4], chunk=3)[0],
    ),
    "linear_divergence": (
        lambda x, b: bt.linear_divergence(x, x, x, x, q_bias=b[:4], kind="tv", bits="portable"),
    ),
    "cross_entropy": (
        lambda x, b: bt.cross_entropy(x, torch.arange(4), reduction="none", z_loss=0.1),
        lambda x, b: bt.cross_entropy(x, torch.arange(4), ignore_index=2, overwrite_logits=True),
    ),
    "top_k": (lambda x, b: bt.top_k(x, 2)[0],),
    "moe_router": (lambda x, b: bt.moe_router(x, 2, bias=b, score="sigmoid")[0],),
    "moe_permute": (lambda x, b: bt.moe_permute(x, torch.ones(4, 2, dtype=torch.int64), 3)[0],),
    "moe_combine": (lambda x, b: bt.moe_combine(x, None, torch.tensor([[3, 0], [1, 2]])),),
    "seeded_sample": (lambda x, b: bt.seeded_sample(x, 3, 1, top_p=0.5),),
    "embedding": (lambda x, b: bt.embedding(torch.tensor([[3, 0], [1, 3]]), x),),
    "linear_cross_entropy": (
        lambda x, b: bt.linear_cross_entropy(x, x, torch.arange(4), bias=b[:4], chunk=3),
        lambda x, b: bt.linear_cross_entropy(x, x, torch.arange(4), bits="portable"),
    ),
    "rotary": (
        lambda x, b: bt.rotary(x[:, :4], b[:2], b[2:4]),
        lambda x, b: bt.rotary(x[:, :4], b[:1], b[1:2], interleaved=True),
    ),
    "rms_norm_rotary": (
        lambda x, b: bt.rms_norm_rotary(x[:, :4], b[:4], b[:2], b[2:4]),
        lambda x, b: bt.rms_norm_rotary(x[:, :4], None, b[:1], b[1:2], interleaved=True),
    ),
    "attention": (
        lambda x, b: bt.attention(x[None], x[None], x[None], causal=True, window=2),
        lambda x, b: bt.attention(x[None], x[None], x[None], mask=x[:, :4] > 0, sink=b[:1]),
    ),
    "matmul": (lambda x, b: bt.matmul(x, b), lambda x, b: bt.matmul(b=x.T, a=x)),
    "linear": (lambda x, b: bt.linear(x, x, b[:4]),),
    "make_viewless_tensor": (lambda x, b: bt.make_viewless_tensor(x[1:], True, True),),
    "all_gather": (lambda x, b: bt.all_gather(x, dim=1),),
}
TABLES = torch.ones(3, 1, 4, 4)
DROP_INS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "GeLUFunction": lambda x, b: megatron.GeLUFunction.apply(x, b),
    "bias_gelu": lambda x, b: megatron.bias_gelu(b[None], x),
    "bias_gelu_back": lambda x, b: megatron.bias_gelu_back(x, b, x),
    "train": lambda x, b: megatron.bias_dropout_add_fused_train((x, b), x, 0.5),
    "inference": lambda x, b: megatron.bias_dropout_add_fused_inference((x, b), x, 0.5),
    "softmax": lambda x, b: megatron.ScaledSoftmax.apply(x, 0.5),
    "masked softmax": lambda x, b: megatron.ScaledMaskedSoftmax.apply(x, x > 0, 0.5),
    "causal softmax": lambda x, b: megatron.ScaledUpperTriangMaskedSoftmax.apply(x, 0.5),
    "bias_swiglu": lambda x, b: megatron.bias_swiglu(x[:, :4], b[:4]),
    "swiglu_back": lambda x, b: megatron.swiglu_back(x[:, :2], x[:, :4]),
    "weighted_bias_swiglu_impl": lambda x, b: megatron.weighted_bias_swiglu_impl(
        x[:, :4], None, x[:, :1]
    ),
    "weighted_bias_quick_geglu_impl": lambda x, b: megatron.weighted_bias_quick_geglu_impl(
        x[:, :4], b[:4], x[:, :1], False, 1.0, 2.0
    ),
    "weighted_squared_relu": lambda x, b: megatron.weighted_squared_relu_impl(x, x[:, :1]),
    "weighted_squared_relu_back": lambda x, b: megatron.weighted_squared_relu_back(x, x, x[:, :1])[
        0
    ],
    "fused_layer_norm_affine": lambda x, b: apex.fused_layer_norm_affine(x, b, b, 5),
    "FusedRMSNormFunction": lambda x, b: apex.FusedRMSNormFunction.apply(x, [4, 5], 1e-5),
    "liger_rms_norm": lambda x, b: liger.liger_rms_norm(x, b, 1e-6),
    "liger_fused_add_rms_norm": lambda x, b: liger.liger_fused_add_rms_norm(x, x, b, 1e-6)[0],
    "liger_geglu": lambda x, b: liger.liger_geglu(x, x),
    "LigerSiLUMulFunction": lambda x, b: liger.LigerSiLUMulFunction.apply(x, x, 0.5),
    "fused_vocab_parallel_cross_entropy": lambda x, b: megatron.fused_vocab_parallel_cross_entropy(
        x, torch.arange(4), None
    ),
    "SoftmaxCrossEntropyLoss": lambda x, b: apex.SoftmaxCrossEntropyLoss.apply(
        x, torch.arange(4), 0.1
    ),
    "liger_rope": lambda x, b: liger.liger_rope(
        x[None, None, :, 1:], x[None, None, :, 1:], x[:, 1:], x[:, 1:]
    )[0],
    "fused_apply_rotary_pos_emb": lambda x, b: apex.fused_apply_rotary_pos_emb(
        x[:, None, None], x[:, None, None, :4]
    ),
    "FusedRoPECachedFunc": lambda x, b: apex.FusedRoPECachedFunc.apply(
        x[:, None, None], x[:, None, None, :4], x[:, None, None, 1:], True
    ),
    "liger_softmax": lambda x, b: liger.liger_softmax(x),
    "LigerMLPFunction": lambda x, b: liger.LigerMLPFunction.apply(x, x, x, x.T),
    "liger_llama4_text_rotary_pos_emb": lambda x, b: liger.liger_llama4_text_rotary_pos_emb(
        x[None, None, :, 1:], x[None, None, :, 1:], torch.ones(1, 2, dtype=torch.complex64)
    )[0],
    "liger_qwen2vl_mrope": lambda x, b: liger.liger_qwen2vl_mrope(
        x[None, None, :, 1:], x[None, None, :, 1:], TABLES, TABLES, (1, 1)
    )[0],
    "liger_cross_entropy": lambda x, b: liger.liger_cross_entropy(x, torch.arange(4)),
    "new_gelu": lambda x, b: slapo.new_gelu(x),
    "bias_new_gelu": lambda x, b: slapo.bias_new_gelu(x, b[None]),
    "bias_dropout": lambda x, b: slapo.bias_dropout(x, b, 0.5),
}
EVERY = [(name, i) for name, functions in FUNCTIONS.items() for i in range(len(functions))]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gelu = bt.BiasGELU(5).double()
        self.add = bt.BiasDropoutAdd(0.25)
        self.softmax = megatron.FusedScaleMaskSoftmax(False, False, "causal", True, None, True, 0.5)

    def forward(self, x):  # type: ignore[no-untyped-def]  # fx cannot pickle these annotations
        y = self.add(self.gelu(x), residual=x)
        return self.softmax(y[None, None], None)[0, 0]


def assert_same_calls(one: Callable[..., Tensor], other: Callable[..., Tensor], *args: Any) -> None:
    results = []
    for function in (one, other):
        torch.manual_seed(7)
        results.append(function(*args))
    assert_same_bits(*results)


def test_every_function_is_here() -> None:
    public = {name for name in bt.__all__ if not inspect.isclass(getattr(bt, name))}
    assert set(FUNCTIONS) == public - {"replace"}  # it takes no tensor


@pytest.mark.parametrize(("name", "i"), EVERY)
def test_symbolic_trace(draw: Any, name: str, i: int) -> None:
    function = FUNCTIONS[name][i]
    x, bias = draw(4, 5), draw(5)
    if name == "scaled_softmax":
        bt.scaled_softmax(x)  # no cached plan accepts a Proxy
    traced = fx.symbolic_trace(function)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert getattr(bt, name) in called
    assert_same_calls(traced, function, x, bias)


@pytest.mark.parametrize("name", DROP_INS)
def test_symbolic_trace_of_drop_ins(draw: Any, name: str) -> None:
    traced = fx.symbolic_trace(DROP_INS[name])
    assert_same_calls(traced, DROP_INS[name], draw(4, 5), draw(5))


def test_symbolic_trace_of_modules(draw: Any) -> None:
    """The traced module can also be saved and loaded."""
    model, x = Model(), draw(4, 5)
    traced = fx.symbolic_trace(model)
    assert_same_calls(traced, model, x)
    loaded = pickle.load(io.BytesIO(pickle.dumps(traced)))
    assert_same_calls(loaded, model, x)


@pytest.mark.parametrize("module", [bt.RMSNorm(5), bt.CrossEntropyLoss()], ids=repr)
def test_symbolic_trace_of_what_depends_on_the_input(draw: Any, module: Any) -> None:
    """The module depends on the input's dtype or dimensions."""
    given = [draw(4, 5), torch.tensor([0, 1, 2, 4])][: 1 + isinstance(module, bt.CrossEntropyLoss)]
    assert_same_bits(fx.symbolic_trace(module)(*given), module(*given))


MODULES: dict[str, nn.Module] = {
    "BiasDropoutAdd": bt.BiasDropoutAdd(0.25),
    "BiasGELU": bt.BiasGELU(5),
    "BatchNorm1d": bt.BatchNorm1d(5).eval(),
    "BatchNorm2d": bt.BatchNorm2d(5).eval(),
    "BatchNorm3d": bt.BatchNorm3d(5).eval(),
    "Conv1d": bt.Conv1d(5, 3, 2),
    "Conv2d": bt.Conv2d(5, 3, 2),
    "Conv3d": bt.Conv3d(5, 3, 2),
    "ConvTranspose1d": bt.ConvTranspose1d(5, 3, 2),
    "ConvTranspose2d": bt.ConvTranspose2d(5, 3, 2),
    "ConvTranspose3d": bt.ConvTranspose3d(5, 3, 2),
    "CrossEntropyLoss": bt.CrossEntropyLoss(),
    "DyT": bt.DyT(5),
    "GEGLU": bt.GEGLU(),
    "GLU": bt.GLU("silu"),
    "GatedRMSNorm": bt.GatedRMSNorm(5),
    "GroupNorm": bt.GroupNorm(1, 5),
    "LayerNorm": bt.LayerNorm(5),
    "Linear": bt.Linear(5, 3),
    "LinearCrossEntropyLoss": bt.LinearCrossEntropyLoss(5, 7),
    "LogSoftmax": bt.LogSoftmax(-1),
    "PolyNorm": bt.PolyNorm(),
    "RMSNorm": bt.RMSNorm(5),
    "ReGLU": bt.ReGLU(),
    "Softmax": bt.Softmax(-1),
    "SquaredReLU": bt.SquaredReLU(),
    "SwiGLU": bt.SwiGLU(),
}


def test_every_module_is_here() -> None:
    public = {name for name in bt.__all__ if inspect.isclass(getattr(bt, name))}
    assert set(MODULES) == public - {"JaxModule", "invariant"}


CONFIG = SimpleNamespace(
    normalization="LayerNorm",
    layernorm_zero_centered_gamma=False,
    persist_layer_norm=False,
    sequence_parallel=False,
)
DROP_IN_MODULES: dict[str, nn.Module] = {
    "FusedAddRMSNorm": liger.LigerFusedAddRMSNorm(5),
    "FusedRMSNorm": apex.FusedRMSNorm(5),
    "LayerNorm of Megatron": megatron.FusedLayerNorm(CONFIG, 5),
    "LigerSoftmax": liger.LigerSoftmax(),
    "LlamaRMSNorm": huggingface.LlamaRMSNorm(5),
    "NewGELUActivation": huggingface.NewGELUActivation(),
}


@pytest.mark.parametrize("name", [*MODULES, *DROP_IN_MODULES])
def test_a_trace_of_a_module_alone_is_saved_and_loaded(name: str) -> None:
    module = {**MODULES, **DROP_IN_MODULES}[name]
    # A trace would take the output_size for a tensor.
    takes_a_size = name.startswith("ConvTranspose")
    traced = fx.symbolic_trace(nn.Sequential(module) if takes_a_size else module)
    assert pickle.loads(pickle.dumps(traced)).code == traced.code


def test_no_annotation_of_a_forward_is_a_text() -> None:
    """A text as annotation would make a trace by torch.fx that cannot be saved."""
    for module in (bt, apex, huggingface, liger, megatron, slapo):
        public = [getattr(module, name) for name in module.__all__]
        for kind in filter(inspect.isclass, public):
            if issubclass(kind, nn.Module):
                hints = inspect.get_annotations(kind.forward).values()
                assert not [hint for hint in hints if isinstance(hint, str)], kind


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "i"), EVERY)
def test_modes(draw: Any, name: str, i: int) -> None:
    """A mode sees each call once, and nothing inside it."""
    function, public = FUNCTIONS[name][i], getattr(bt, name)
    x, bias = draw(4, 5), draw(5)

    def watched(x: Tensor, bias: Tensor) -> Tensor:
        with seen:
            return function(x, bias)

    for _ in range(2):
        seen = Seen()
        assert_same_calls(watched, function, x, bias)
        own = [func for func, _, _ in seen.calls if func is public]
        assert len(own) == 1
        assert not [func for func, _, _ in seen.calls if func is torch.randint]
        assert not [func for func, _, _ in seen.calls if "bridge." in str(func)]


def test_arguments_come_as_they_were_given(draw: Any) -> None:
    x, bias = draw(4, 5), draw(5)
    with Seen() as seen:
        bt.bias_dropout_add(x, bias, p=1, training=False)
        bt.scaled_softmax(x, 2)
    (_, args, kwargs), (_, others, out) = seen.calls
    assert args[0] is x
    assert args[1] is bias
    assert args[2] is None
    assert kwargs == {"p": 1, "seed": None, "offset": 0, "training": False}
    assert others[0] is x
    assert others[1:] == (2,)
    assert out == {"sink": None, "out": None}


class Wrapped(Tensor):
    """A subclass with torch's own `__torch_function__`: results have its class."""


class Units:
    """An object with a unit and values, which is no tensor."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(argument: Any) -> Any:
            return argument.values if isinstance(argument, Units) else argument

        named = {name: plain(value) for name, value in (kwargs or {}).items()}
        return Units(func(*map(plain, args), **named))


@pytest.mark.parametrize(("name", "i"), EVERY)
def test_subclasses(draw: Any, name: str, i: int) -> None:
    function, x, bias = FUNCTIONS[name][i], draw(4, 5), draw(5)

    def wrapped(x: Tensor, bias: Tensor) -> Tensor:
        y = function(x.as_subclass(Wrapped), bias)
        assert type(y) is Wrapped
        return y.as_subclass(Tensor)

    assert_same_calls(wrapped, function, x, bias)


def test_what_is_no_tensor(draw: Any) -> None:
    x, bias, mask = draw(4, 5), draw(5), draw(4, 5) > 0
    cases: list[tuple[Any, Any]] = [
        (bt.bias_gelu(Units(x), bias), bt.bias_gelu(x, bias)),  # type: ignore[arg-type]
        (bt.bias_gelu(x, Units(bias)), bt.bias_gelu(x, bias)),  # type: ignore[arg-type]
        (bt.scaled_masked_softmax(x, Units(mask)), bt.scaled_masked_softmax(x, mask)),  # type: ignore[arg-type]
        (
            bt.bias_dropout_add(x, residual=Units(x), p=0.5, seed=1),  # type: ignore[arg-type]
            bt.bias_dropout_add(x, residual=x, p=0.5, seed=1),
        ),
    ]
    for found, expected in cases:
        assert type(found) is Units
        assert_same_bits(found.values, expected)


def test_derivatives_through_a_mode(draw: Any) -> None:
    x, bias, g = draw(4, 5, grad=True), draw(5, grad=True), draw(4, 5)
    expected = torch.autograd.grad(bt.bias_gelu(x, bias), (x, bias), g)
    with Seen():
        y = bt.bias_gelu(x, bias)
    for one, other in zip(torch.autograd.grad(y, (x, bias), g), expected, strict=True):
        assert_same_bits(one, other)
