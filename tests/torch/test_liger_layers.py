"""Liger-Kernel's softmax, modulated norm, rotary embeddings of models, and layers in tiles.

Held to formulas in float64, by values and by gradients of random cotangents.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, grad
from torch.nn.functional import gelu, linear, silu
from torch.utils._python_dispatch import TorchDispatchMode

import bridge.torch as bt
from bridge.torch import liger
from tests.torch.expected import DTYPES, assert_close, assert_same_bits
from tests.torch.replay import replay
from tests.torch.test_liger import config, of_parameters, rms_norm

FLOAT, BFLOAT = torch.float32, torch.bfloat16
BOTH = pytest.mark.parametrize("dtype", [FLOAT, BFLOAT], ids=str)


def caller_of(function: Any) -> Any:
    """A Function of a user's, which calls the methods of another."""

    class Caller(Function):
        forward = staticmethod(function.forward)
        backward = staticmethod(function.backward)

    return Caller


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 33), (2, 3, 5, 1025), (2, 0, 4), (3, 1)], ids=str)
def test_softmax(draw: Any, shape: Any, dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    if x.numel() and shape[-1] > 1:
        replay(
            liger.liger_softmax,
            lambda x: torch.exp(x - x.logsumexp(-1, keepdim=True)),
            (x,),
            ulps=32,
        )
    for function in (liger.LigerSoftmaxFunction.apply, liger.LigerSoftmax(), bt.scaled_softmax):
        assert_same_bits(function(x), liger.liger_softmax(x))
    if len(shape) > 2:
        apart = x.transpose(0, 1)
        assert_same_bits(liger.liger_softmax(apart), liger.liger_softmax(apart.contiguous()))


def test_softmax_of_a_number() -> None:
    with pytest.raises(ValueError, match="expected at least one dimension"):
        liger.LigerSoftmax()(torch.tensor(1.0))


def modulated(
    x: Tensor, weight: Tensor | None, scale: Tensor, shift: Tensor | None, offset: float = 0.0
) -> Tensor:
    """Sample by sample, as the original counts rows."""
    normal = rms_norm(x, None if weight is None else offset + weight).flatten(0, -2)
    each = normal.shape[0] // scale[..., 0].numel()
    scale = scale.reshape(-1, x.shape[-1]).repeat_interleave(each, 0)
    y = normal * (1 + scale)
    if shift is not None:
        y = y + shift.reshape(-1, x.shape[-1]).repeat_interleave(each, 0)
    return y.reshape(x.shape)


@BOTH
@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("shape", "of_scale"),
    [
        ((6, 41), (41,)),
        ((2, 3, 8), (1, 8)),
        ((3, 5, 33), (3, 33)),
        ((3, 5, 33), (3, 5, 33)),
        ((2, 3, 8), (6, 8)),
        ((4, 2, 3, 8), (4, 1, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_shift", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_modulated_norm(
    draw: Any,
    shape: Any,
    of_scale: Any,
    with_shift: bool,
    affine: bool,
    offset: float,
    dtype: torch.dtype,
) -> None:
    d = shape[-1]
    module = liger.LigerModulatedRMSNorm(d, offset=offset, elementwise_affine=affine).to(dtype)
    weights = (draw(d, dtype=dtype),) if affine else ()
    shifts = (draw(*of_scale, dtype=dtype),) if with_shift else ()
    tensors = draw(*shape, dtype=dtype), draw(*of_scale, dtype=dtype), *shifts, *weights

    def exact(x: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        shift = others[0] if with_shift else None
        return modulated(x, others[-1] if affine else None, scale, shift, offset)

    replay(of_parameters(module), exact, tensors, ulps=32)
    x, scale, *_ = tensors
    shift, weight = (t[0] if t else None for t in (shifts, weights))
    found = liger.liger_modulated_rms_norm(
        X=x, W=weight, scale=scale, shift=shift, offset=offset, casting_mode="gemma"
    )
    assert_same_bits(found, of_parameters(module)(*tensors))
    apart = torch.stack((x, x), -1)[..., 0]
    assert_same_bits(
        liger.LigerModulatedRMSNormFunction.apply(apart, weight, scale, shift, 1e-6, offset), found
    )


def test_a_modulated_norm_of_other_shapes() -> None:
    x, norm = torch.ones(2, 3, 8), liger.LigerModulatedRMSNorm(8)
    for scale in (torch.ones(4, 8), torch.ones(7), torch.ones(0, 8)):
        with pytest.raises(ValueError, match=r"modulated_rms_norm: scale has shape .*the 6 of X"):
            norm(x, scale)
    with pytest.raises(ValueError, match=r"shift has shape \[2, 8\], expected \[8\], as scale"):
        norm(x, torch.ones(8), torch.ones(2, 8))
    with pytest.raises(AssertionError, match="casting_mode is 'bert'"):
        liger.LigerModulatedRMSNorm(8, casting_mode="bert")(x, torch.ones(8))
    with pytest.raises(TypeError, match="scale has type list"):
        norm(x, [1.0])
    assert norm(torch.ones(0, 3, 8), torch.ones(8)).shape == (0, 3, 8)
    assert repr(norm) == (
        "LigerModulatedRMSNorm(weight_shape=(8,), eps=1e-06, offset=0.0, casting_mode=llama, "
        "in_place=True)"
    )
    torch.nn.RMSNorm(8).load_state_dict(norm.state_dict())
    assert not list(liger.LigerModulatedRMSNorm(8, elementwise_affine=False).parameters())


def by_complex_numbers(x: Tensor, freqs: Tensor) -> Tensor:
    """What models do: freqs broadcasts to `[batch, positions, heads, d/2]`."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * freqs).flatten(-2)


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize("batch_of_table", [None, 1, 3])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 8), (3, 1, 18)])
def test_rotary_of_llama_4(
    draw: Any, heads: int, kv_heads: int, d: int, batch_of_table: int | None, dtype: torch.dtype
) -> None:
    q, k = draw(3, 5, heads, d, dtype=dtype), draw(3, 5, kv_heads, d, dtype=dtype)
    leading = () if batch_of_table is None else (batch_of_table,)
    freqs = torch.polar(torch.ones((), dtype=FLOAT), draw(*leading, 7, d // 2, dtype=FLOAT))
    wide = freqs.to(torch.complex128)[..., :5, None, :]
    exact = lambda *given: tuple(by_complex_numbers(x, wide) for x in given)  # noqa: E731
    text = lambda q, k: liger.liger_llama4_text_rotary_pos_emb(q, k, freqs)  # noqa: E731
    replay(text, exact, (q, k), dtypes=(dtype, dtype))
    found = liger.LigerLlama4RopeFunction.apply(q, k, freqs, 64)
    for one, other in zip(found, text(q, k), strict=True):
        assert_same_bits(one, other)
    with pytest.raises(TypeError, match=r"freqs_cis has dtype torch.float32, expected a complex"):
        liger.liger_llama4_text_rotary_pos_emb(q, k, freqs.real)


@BOTH
@pytest.mark.parametrize("shape", [(5, 4), (5, 1, 4), (1, 5, 1, 4)], ids=str)
@pytest.mark.parametrize("is_complex", [True, False])
def test_rotary_of_llama_4_of_vision(
    draw: Any, shape: Any, is_complex: bool, dtype: torch.dtype
) -> None:
    """A table that was cast has lost its imaginary parts, which are 0 then, as in the model."""
    q, k = draw(2, 5, 3, 8, dtype=dtype), draw(2, 5, 1, 8, dtype=dtype)
    freqs = torch.polar(torch.ones((), dtype=FLOAT), draw(*shape, dtype=FLOAT))
    freqs = freqs if is_complex else freqs.real.to(BFLOAT)
    wide = freqs.to(torch.complex128).reshape(5, 1, 4)
    replay(
        lambda q, k: liger.liger_llama4_vision_rotary_pos_emb(q, k, freqs),
        lambda *given: tuple(by_complex_numbers(x, wide) for x in given),
        (q, k),
        dtypes=(dtype, dtype),
    )


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize(("d", "section"), [(8, (1, 2, 1)), (20, (2, 4, 4)), (12, (6, 0, 0))])
def test_rotary_of_qwen_2_vl(
    draw: Any, d: int, section: tuple[int, ...], dtype: torch.dtype
) -> None:
    q, k = (draw(2, heads, 5, d, dtype=dtype) for heads in (4, 1))
    angles = draw(3, 2, 5, d // 2, dtype=FLOAT)
    cos, sin = (torch.cat((t, t), -1) for t in (angles.cos(), angles.sin()))
    which = torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    own = torch.stack([angles[n, ..., i] for i, n in enumerate(which.tolist())], -1).double()

    def exact(*given: Tensor) -> tuple[Tensor, ...]:
        pairs = [torch.stack(x.chunk(2, -1), -1).flatten(-2) for x in given]
        freqs = torch.polar(torch.ones((), dtype=torch.float64), own)[:, None]
        turned = [by_complex_numbers(x, freqs).unflatten(-1, (-1, 2)) for x in pairs]
        return tuple(torch.cat(t.unbind(-1), -1) for t in turned)

    ours = lambda q, k: liger.liger_multimodal_rotary_pos_emb(q, k, cos, sin, section)  # noqa: E731
    # The tables are those of float32 angles.
    replay(ours, exact, (q, k), dtypes=(dtype, dtype))
    for function in (liger.liger_qwen2vl_mrope, liger.LigerQwen2VLMRopeFunction.apply):
        for one, other in zip(function(q, k, cos, sin, list(section)), ours(q, k), strict=True):
            assert_same_bits(one, other)
    swapped = liger.liger_qwen2vl_mrope(*(t.transpose(1, 2) for t in (q, k)), cos, sin, section, 2)
    for one, other in zip(swapped, ours(q, k), strict=True):
        assert_same_bits(one.transpose(1, 2), other)


def test_rotary_of_qwen_2_vl_of_other_shapes() -> None:
    q, table = torch.ones(1, 2, 3, 8), torch.ones(3, 1, 3, 8)
    for given, section in (((q, q, table[:2], table), (1, 1, 2)), ((q, q, table, table), (3, 2))):
        with pytest.raises(ValueError, match=r"cos has shape .* mrope_section, \[\d, \d"):
            liger.liger_multimodal_rotary_pos_emb(*given, section)


# By their names: how a tiled layer is made, its ordinary kind, and what both compute.
TILED: dict[str, tuple[Any, Any, Callable[[Tensor], Tensor]]] = {
    "LigerTiledSwiGLUMLP": (liger.LigerTiledSwiGLUMLP, liger.LigerSwiGLUMLP, silu),
    "LigerTiledGEGLUMLP": (
        liger.LigerTiledGEGLUMLP,
        liger.LigerGEGLUMLP,
        lambda x: gelu(x, approximate="tanh"),
    ),
}
ACTIVATIONS = {"LigerTiledSwiGLUMLP": "silu", "LigerTiledGEGLUMLP": "gelu_pytorch_tanh"}


@BOTH
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("shape", [(2, 48, 16), (37, 16), (3, 5, 16), (1, 1, 16)], ids=str)
@pytest.mark.parametrize("num_shards", [None, 1, 4, 100, 0])
def test_tiled(
    draw: Any, name: str, shape: Any, num_shards: int | None, dtype: torch.dtype
) -> None:
    make, ordinary, activation = TILED[name]
    module = make(config(hidden_act=ACTIVATIONS[name]), num_shards=num_shards).to(dtype)
    same = ordinary(config()).to(dtype)
    same.load_state_dict(module.state_dict())
    module.load_state_dict(same.state_dict())

    def exact(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
        return linear(activation(linear(x, g)) * linear(x, u), d)

    parameters = [p.detach() for p in module.parameters()]
    replay(of_parameters(module), exact, [draw(*shape, dtype=dtype) / 3, *parameters], ulps=64)
    x = draw(*shape, dtype=dtype).requires_grad_()
    assert_close(module(x), same(x), ulps=4)
    flipped = x.detach().flip(-1).transpose(-1, -2).contiguous().transpose(-1, -2)
    assert_close(module(flipped), same(flipped), ulps=4)


class Largest(TorchDispatchMode):
    """The number of elements of the largest result of an operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for y in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(y, Tensor):
                self.elements = max(self.elements, y.numel())
        return results


@pytest.mark.parametrize("name", TILED)
def test_tiles_keep_the_peak_low(name: str) -> None:
    """Nothing that is saved for the backward pass is wider than the input."""
    make, ordinary, _ = TILED[name]
    options = config(hidden_act=ACTIVATIONS[name], intermediate_size=640)
    x = torch.randn(256, 16, requires_grad=True)
    found = {}
    for kind, module in (("tiled", make(options, 8)), ("ordinary", ordinary(options))):
        saved: list[int] = []
        own = {p.data_ptr() for p in module.parameters()}

        def pack(t: Tensor, saved: list[int] = saved, own: set[int] = own) -> Tensor:
            if t.data_ptr() not in own:
                saved.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            module(x)
        found[kind] = max(saved)
        with torch.no_grad(), Largest() as largest:
            module(x)
        assert largest.elements == (32 if kind == "tiled" else 256) * 640
    assert found == {"tiled": 32 * 16, "ordinary": 256 * 640}


def test_tiles_of_any_function(draw: Any) -> None:
    """`fn` draws random numbers, and the backward pass the same again."""
    layer = torch.nn.Linear(6, 6).double()
    fn = lambda module, x: torch.nn.functional.dropout(module(x), 0.5).tanh()  # noqa: E731
    x, g = draw(2, 9, 6, grad=True), draw(2, 9, 6)
    inputs = [x, *layer.parameters()]
    torch.manual_seed(3)
    y = liger.apply_tiled_mlp(fn, layer, x, 4, compute_params=list(layer.parameters()))
    torch.manual_seed(3)
    expected = torch.cat([fn(layer, part) for part in x.chunk(4, -2)], -2)
    assert_same_bits(y, expected)
    gradients, others = (grad(r, inputs, g, create_graph=True) for r in (y, expected))
    for one, other in zip(gradients, others, strict=True):
        assert_same_bits(one, other)
    for one, other in zip(*(grad(r[0].sum(), inputs[1]) for r in (gradients, others)), strict=True):
        assert_close(one, other)


def test_the_methods_of_the_tiled_function(draw: Any) -> None:
    """Gradients of parameters are added to their `grad`, as the original's backward does."""
    layer = torch.nn.Linear(6, 6).double()
    fn = lambda module, x: module(x).tanh()  # noqa: E731
    x, g = draw(9, 6, grad=True), draw(9, 6)
    expected = grad(fn(layer, x), [x, *layer.parameters()], g)
    y = caller_of(liger.LigerTiledMLPFunction).apply(fn, layer, x, 3, None)
    (dx,) = grad(y, x, g)
    for one, other in zip((dx, *(p.grad for p in layer.parameters())), expected, strict=True):
        assert_close(one, other)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", TILED)
def test_tiles_under_compile_and_transforms(draw: Any, name: str) -> None:
    module = TILED[name][0](config(hidden_act=ACTIVATIONS[name]), 3).double()
    x, g = draw(7, 16, grad=True), draw(7, 16)
    inputs = [x, *module.parameters()]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x), module(x))
    expected = grad(module(x), inputs, g)
    for one, other in zip(grad(compiled(x), inputs, g), expected, strict=True):
        assert_close(one, other)
    (by_func,) = torch.func.vjp(module, x)[1](g)
    assert_close(by_func, expected[0])
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same_bits(copied(x), module(x))


def test_activations_of_tiles() -> None:
    bare = SimpleNamespace(hidden_size=16, intermediate_size=24)
    liger.LigerTiledSwiGLUMLP(bare), liger.LigerTiledGEGLUMLP(bare)
    with pytest.raises(ValueError, match="hidden_act is 'gelu', expected 'silu' or 'swish'"):
        liger.LigerTiledSwiGLUMLP(config(hidden_act="gelu"))
    with pytest.raises(ValueError, match="hidden_act is 'silu', expected 'gelu' or 'gelu_new'"):
        liger.LigerTiledGEGLUMLP(config(hidden_act="silu"))


@BOTH
@pytest.mark.parametrize("multipliers", [(1.0, 1.0), (0.7, 1.3)], ids=str)
def test_mlp_of_one_kernel(draw: Any, multipliers: Any, dtype: torch.dtype) -> None:
    gate, down = multipliers
    options = config(mlp_multipliers=multipliers)
    make = liger.LigerMLP if multipliers == (1.0, 1.0) else liger.LigerFalconH1MLP
    module = make(options).to(dtype)
    parameters = [p.detach() for p in module.parameters()]
    tensors = [draw(2, 7, 16, dtype=dtype) / 3, *parameters]

    def exact(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
        return linear(silu(linear(x, g) * gate) * linear(x, u), d) * down

    replay(of_parameters(module), exact, tensors, ulps=64)
    replay(lambda *given: liger.LigerMLPFunction.apply(*given, gate, down), exact, tensors, ulps=64)
    assert list(module.state_dict()) == [f"{n}_proj.weight" for n in ("gate", "up", "down")]
    with pytest.raises(ValueError, match=r"config\.mlp_bias is true, expected no bias"):
        liger.LigerFalconH1MLP(config(mlp_multipliers=multipliers, mlp_bias=True))


def experts(x: Tensor, w: Tensor, up: Tensor, down: Tensor, index: Tensor) -> Tensor:
    """Token by token."""
    rows = []
    for token, numbers, weights in zip(x, index.tolist(), w, strict=True):
        parts = []
        for expert, weight in zip(numbers, weights, strict=True):
            first, second = linear(token, up[expert]).chunk(2, -1)
            parts.append(weight * linear(silu(first) * second, down[expert]))
        rows.append(sum(parts))
    return torch.stack(rows)


@BOTH
@pytest.mark.parametrize(("tokens", "chosen"), [((2, 5), 2), ((13,), 3), ((1,), 1)], ids=str)
@pytest.mark.parametrize(
    "names", [("num_experts", "moe_intermediate_size"), ("num_local_experts",)]
)
def test_experts(
    draw: Any, tokens: Any, chosen: int, names: tuple[str, ...], dtype: torch.dtype
) -> None:
    sizes = dict(zip(names, (5, 7), strict=False))
    module = liger.LigerExperts(config(**sizes)).to(dtype)
    wide = sizes.get("moe_intermediate_size", 24)
    assert {n: p.shape for n, p in module.named_parameters()} == {
        "gate_up_proj": (5, 2 * wide, 16),
        "down_proj": (5, 16, wide),
    }
    # The last expert has no token.
    index = torch.stack([torch.randperm(4)[:chosen] for _ in range(torch.Size(tokens).numel())])
    x, weights = draw(len(index), 16, dtype=dtype) / 3, draw(len(index), chosen, dtype=dtype) / 3
    up, down = draw(5, 2 * wide, 16, dtype=dtype) / 12, draw(5, 16, wide, dtype=dtype) / 12

    def ours(x: Tensor, w: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(("gate_up_proj", "down_proj"), parameters, strict=True))
        x, w, own = (t.unflatten(0, tokens) for t in (x, w, index.int()))
        return torch.func.functional_call(module, given, (x, own, w)).flatten(0, -2)

    exact = lambda *given: experts(*given, index)  # noqa: E731
    replay(ours, exact, (x, weights, up, down), ulps=64)
    assert ours(x, weights.float(), up, down).dtype == dtype


def test_an_expert_that_is_not_there() -> None:
    module = liger.LigerExperts(config(num_experts=3))
    with pytest.raises(ValueError, match="top_k_index has 3, expected numbers of 3 experts"):
        module(torch.ones(1, 16), torch.tensor([[3]]), torch.ones(1, 1))
    with pytest.raises(ValueError, match="hidden_act is 'gelu'"):
        liger.LigerExperts(config(num_experts=3, hidden_act="gelu"))


def test_methods_of_functions(draw: Any) -> None:
    """A user's Function that calls `forward` and `backward` has the gradients of `apply`."""
    q, k = draw(2, 3, 2, 4, grad=True), draw(2, 3, 1, 4, grad=True)
    freqs = torch.polar(torch.ones((), dtype=torch.float64), draw(3, 2))
    tables = draw(3, 2, 3, 4), draw(3, 2, 3, 4)
    x, weights = draw(5, 4, grad=True), draw(5, 2, grad=True)
    up, down = draw(3, 6, 4, grad=True), draw(3, 4, 3, grad=True)
    index = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])
    heads = q.transpose(1, 2), k.transpose(1, 2)
    calls: list[tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]] = [
        (liger.LigerLlama4RopeFunction, (q, k, freqs), (q, k)),
        (liger.LigerQwen2VLMRopeFunction, (*heads, *tables, (1, 1)), (q, k)),
        (liger.LigerFusedMoEFunction, (x, up, down, index, weights), (x, up, down, weights)),
    ]
    for function, arguments, inputs in calls:
        assert issubclass(function, Function)
        found, expected = (f.apply(*arguments) for f in (caller_of(function), function))
        found, expected = (y if isinstance(y, tuple) else (y,) for y in (found, expected))
        g = [draw(*y.shape) for y in expected]
        for one, other in zip(grad(found, inputs, g), grad(expected, inputs, g), strict=True):
            assert_close(one, other)
