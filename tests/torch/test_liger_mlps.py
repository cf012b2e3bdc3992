"""Liger-Kernel's layers for tiled computation, in one kernel, and for experts.

They are compared with formulas in float64, in values and in gradients of random cotangents.
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
from torch.autograd import grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, linear, silu
from torch.utils._python_dispatch import TorchDispatchMode

from bridge.torch import liger
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.replay import replay
from tests.torch.test_liger import config, of_parameters
from tests.torch.test_liger_layers import caller_of

FLOAT, BFLOAT = torch.float32, torch.bfloat16
BOTH = pytest.mark.parametrize("dtype", [FLOAT, BFLOAT], ids=str)


# By name: the constructor of a tiled layer, its ordinary class, and their common formula.
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
    """Records the number of elements of an operation's largest result."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for y in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(y, Tensor):
                self.elements = max(self.elements, y.numel())
        return results


@pytest.mark.parametrize("name", TILED)
def test_tiles_keep_the_peak_low(name: str) -> None:
    """No array saved for the backward pass is wider than the input."""
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
    """`fn` draws random numbers, and the backward pass draws the same ones."""
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


def test_tiles_with_exchanged_tensors(draw: Any) -> None:
    """The backward pass reads the tensors of a functional call that has ended by then."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(6, 6).double()
            self.register_buffer("factor", torch.ones(6).double())

        def forward(self, x: Tensor) -> Tensor:
            fn = lambda layer, x: layer.inner(x).tanh() * layer.factor  # noqa: E731
            return liger.apply_tiled_mlp(fn, self, x, 4)

    w, b, factor = given = draw(6, 6, grad=True), draw(6, grad=True), draw(6, grad=True)
    x, g = draw(9, 6, grad=True), draw(9, 6)
    names = ("inner.weight", "inner.bias", "factor")
    y = torch.func.functional_call(Layer(), dict(zip(names, given, strict=True)), x)
    expected = (x @ w.T + b).tanh() * factor
    assert_close(y, expected)
    slopes, exact = (grad(r, [x, *given], g, create_graph=True) for r in (y, expected))
    second, exact_second = (
        grad([s.square().sum() for s in each], [x, *given]) for each in (slopes, exact)
    )
    for one, other in zip((*slopes, *second), (*exact, *exact_second), strict=True):
        assert_close(one, other, 64)  # torch's products of tiles round in another order


@pytest.mark.parametrize("inner", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_tiles_of_another_dtype_than_that_of_autocast(draw: Any, inner: torch.dtype) -> None:
    layer = torch.nn.Linear(6, 6)
    x = draw(2, 9, 6, grad=True, dtype=torch.float32)

    def fn(module: torch.nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return module(x).to(inner)

    expected = fn(layer, x)
    g = torch.randn_like(expected)
    slopes = grad(expected, [x, *layer.parameters()], g)
    for outer in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", outer):
            y = liger.apply_tiled_mlp(fn, layer, x, 4)
        assert_close(y, expected, ulps=2)
        for one, other in zip(grad(y, [x, *layer.parameters()], g), slopes, strict=True):
            assert_close(one, other, ulps=32)


def test_tiles_of_what_has_no_positions() -> None:
    with pytest.raises(ValueError, match=r"apply_tiled_mlp: x has shape \(6,\), expected"):
        liger.apply_tiled_mlp(lambda module, x: x, torch.nn.Linear(6, 6), torch.ones(6))


def test_the_methods_of_the_tiled_function(draw: Any) -> None:
    """Gradients of parameters are added to their `grad`, as in the original's backward."""
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


def test_a_symbolic_trace_of_tiles_takes_every_position(draw: Any) -> None:
    module = liger.LigerTiledSwiGLUMLP(config(), 3).double()
    options = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True}
    traced = make_fx(lambda x: module(x), **options)(draw(4, 16))
    for positions in (4, 2, 9):
        x = draw(positions, 16)
        assert_close(traced(x), module(x))


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
    """Computes the experts token by token."""
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
    with pytest.raises(ValueError, match="top_k_index has -1, expected numbers of 3 experts"):
        module(torch.ones(1, 16), torch.tensor([[-1]]), torch.ones(1, 1))
    with pytest.raises(ValueError, match="hidden_act is 'gelu'"):
        liger.LigerExperts(config(num_experts=3, hidden_act="gelu"))
