"""Modules of gated units, of softmax and log-softmax, and of linear cross-entropy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from scipy.special import erf
from torch import Tensor, fx

import bridge.torch as bt
from bridge.jax import nnx as bn
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.replay import replay

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Activations in NumPy for values, and in torch for gradients.
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    "SwiGLU": (lambda x: x / (1 + np.exp(-x)), torch.nn.SiLU()),
    "GEGLU": (lambda x: x * (1 + erf(x / np.sqrt(2))) / 2, torch.nn.GELU()),
    "ReGLU": (lambda x: np.maximum(x, 0), torch.nn.ReLU()),
}
WORDS = {"SwiGLU": "silu", "GEGLU": "gelu", "ReGLU": "relu"}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2,), (3, 34), (2, 3, 130), (0, 4), (2, 0)], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_units(name: str, shape: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    packed = (torch.randn(shape, dtype=torch.float64) * 2).to(dtype)
    in_numpy, in_torch = ACTIVATIONS[name]
    ours = getattr(bt, name)()
    gate, up = np.split(packed.double().numpy(), 2, -1)
    if packed.numel():
        assert_close(ours(packed), torch.as_tensor(in_numpy(gate) * up), ulps=4)

        def exact(packed: Tensor) -> Tensor:
            gate, up = packed.chunk(2, -1)
            return in_torch(gate) * up

        replay(ours, exact, (packed,))
    assert_same_bits(bt.GLU(WORDS[name])(packed), ours(packed))
    assert_same_bits(ours(*packed.chunk(2, -1)), ours(packed))
    if len(shape) > 1:
        apart = torch.stack((packed, packed), -1)[..., 1]
        assert_same_bits(ours(apart), ours(packed))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_options_of_gated_units(name: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 16) * 2, torch.rand(3)
    ours = getattr(bt, name)(1.5, 0.5, True)
    gate, up = x[:, ::2].double().numpy(), x[:, 1::2].double().numpy()
    gate, up = np.minimum(gate, 1.5), np.clip(up, -1.5, 1.5) + 0.5
    expected = ACTIVATIONS[name][0](gate) * up * weight[:, None].double().numpy()
    assert_close(ours(x, weight=weight), torch.as_tensor(expected))
    options = (
        f"activation={WORDS[name]!r}, limit=1.5, linear_offset=0.5, interleaved=True, blocks=1"
    )
    assert repr(ours) == f"{name}({options})"
    assert not ours.state_dict()
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), fx.symbolic_trace(ours)):
        assert_same_bits(other(x), ours(x))
    in_jax = getattr(bn, name)(1.5, 0.5, True)
    np.testing.assert_array_equal(
        in_jax(jnp.asarray(x), weight=jnp.asarray(weight)), ours(x, None, weight)
    )


@pytest.mark.parametrize("modules", [bt, bn], ids=["torch", "nnx"])
def test_wrong_options_of_gated_units(modules: Any) -> None:
    for given, error, words in (
        ({"limit": 0}, ValueError, "GEGLU: limit is 0.0, expected a positive number"),
        ({"limit": "a"}, TypeError, "GEGLU: limit has type str"),
        ({"linear_offset": np.inf}, ValueError, "GEGLU: linear_offset is inf, expected a finite"),
    ):
        with pytest.raises(error, match=words):
            modules.GEGLU(**given)
    with pytest.raises(ValueError, match="GLU: activation is 'tanh', expected one of 'silu'"):
        modules.GLU("tanh")
    with pytest.raises(TypeError, match="interleaved"):
        modules.SwiGLU(interleaved=torch.ones(2) if modules is bt else np.ones(2))
    x: Any = torch.ones(2, 4) if modules is bt else jnp.ones((2, 4))
    with pytest.raises(ValueError, match="interleaved is True and up is given"):
        modules.SwiGLU(interleaved=True)(x, x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_units_of_flax(name: str, rng: Any) -> None:
    """A jitted layer with gradients of its parameters has the bits of torch."""
    packed = rng.normal(size=(3, 34)).astype(np.float32)
    ours = getattr(bn, name)()
    np.testing.assert_array_equal(
        ours(jnp.asarray(packed)), getattr(bt, name)()(torch.tensor(packed))
    )
    layer = nnx.Sequential(nnx.Linear(5, 34, rngs=nnx.Rngs(0)), ours)
    x = jnp.asarray(rng.normal(size=(4, 5)), jnp.float32)
    found = nnx.jit(lambda m, x: m(x))(layer, x)
    linear = layer.layers[0]
    kernel, bias = (np.asarray(p[...], np.float64) for p in (linear.kernel, linear.bias))
    gate, up = np.split(np.asarray(x, np.float64) @ kernel + bias, 2, -1)
    np.testing.assert_allclose(found, ACTIVATIONS[name][0](gate) * up, rtol=1e-5, atol=1e-6)
    gradients = nnx.grad(lambda m, x: m(x).sum())(layer, x)
    assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(
        jnp.shape, nnx.state(layer, nnx.Param)
    )


def test_squared_relu() -> None:
    x, weight = torch.randn(3, 17), torch.rand(3, 1)
    ours = bt.SquaredReLU()
    replay(ours, lambda x, w: torch.relu(x) ** 2 * w, (x, weight))
    assert_same_bits(pickle.loads(pickle.dumps(ours))(x), bt.squared_relu(x))


SOFTMAXES = ("Softmax", "LogSoftmax")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((7,), 0), ((3, 33), -1), ((3, 33), 0), ((2, 5, 3), 1), ((2, 5, 3), -2)]
)
@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes(name: str, shape: Any, dim: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=torch.float64) * 3).to(dtype)
    ours, original = (getattr(m, name)(dim) for m in (bt, torch.nn))
    replay(ours, original, (x,), ulps=16)
    wide = np.exp(x.double().numpy())
    expected = wide / wide.sum(dim, keepdims=True)
    assert_close(
        ours(x), torch.as_tensor(np.log(expected) if name == "LogSoftmax" else expected), ulps=16
    )
    apart = torch.stack((x, x), -1)[..., 0].transpose(0, -1)
    assert_same_bits(getattr(bt, name)(-1)(apart), getattr(bt, name)(-1)(apart.contiguous()))


@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes_as_modules(name: str) -> None:
    ours, original = (getattr(m, name)(1) for m in (bt, torch.nn))
    assert isinstance(ours, type(original))
    assert repr(ours) == repr(original)
    ours.load_state_dict(original.state_dict())
    x = torch.randn(2, 5, 3)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), fx.symbolic_trace(ours)):
        assert_same_bits(other(x), ours(x))
    for dim, words in ((None, "NoneType"), (1.0, "float"), ("1", "str")):
        with pytest.raises(TypeError, match=f"{name}: dim has type {words}, expected an integer"):
            type(ours)(dim)
    with pytest.raises(TypeError, match="dim"):
        type(ours)()
    for x in (torch.ones(3), torch.tensor(1.0)):
        with pytest.raises(
            ValueError, match=rf"{name}: input has shape \[.*\], and no dimension 1"
        ):
            ours(x)
    with pytest.raises(TypeError, match=f"{name}: input has type list"):
        ours([1.0])
    assert ours(torch.ones(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_eps_of_a_norm_that_is_given_none(dtype: torch.dtype) -> None:
    x = (0.01 * torch.randn(4, 8)).to(dtype)
    own, original = bt.RMSNorm(8, dtype=dtype), torch.nn.RMSNorm(8, dtype=dtype)
    torch.testing.assert_close(own(x), original(x), rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_norms_are_traced() -> None:
    for norm in (bt.RMSNorm(5, eps=1e-3), bt.LayerNorm(5)):
        x = torch.randn(3, 5)
        assert_same_bits(fx.symbolic_trace(norm)(x), norm(x))


# torch has it from version 2.13 on.
ORIGINAL = getattr(torch.nn, "LinearCrossEntropyLoss", None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "options", [{}, {"bias": True, "ignore_index": 3, "label_smoothing": 0.1}], ids=str
)
def test_linear_cross_entropy(options: Any, reduction: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours = bt.LinearCrossEntropyLoss(9, 37, reduction=reduction, chunk=5, dtype=dtype, **options)
    hidden, labels = torch.randn(23, 9, dtype=dtype), torch.randint(0, 37, (23,))
    labels[::7] = options.get("ignore_index", -100)
    names = [name for name, _ in ours.named_parameters()]
    assert names == ["linear.weight", "linear.bias"][: 1 + bool(options)]

    def run(hidden: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(ours, given, (hidden, labels))

    def exact(hidden: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
        logits = torch.nn.functional.linear(hidden, weight, bias)
        loss = torch.nn.CrossEntropyLoss(
            ignore_index=options.get("ignore_index", -100),
            label_smoothing=options.get("label_smoothing", 0.0),
            reduction=reduction,
        )
        return loss(logits, labels)

    tensors = [hidden, *(p.detach() for p in ours.parameters())]
    # The original rounds logits to bfloat16 but not the loss, which is compared in float32.
    if dtype == torch.float32:
        replay(run, exact, tensors, ulps=64, dtypes=[torch.float32])
    assert ours(hidden, labels).dtype == torch.float32
    wide = exact(*(t.double() for t in tensors))
    torch.testing.assert_close(
        ours(hidden, labels).double(),
        wide,
        rtol=0,
        atol=0.5 if dtype == torch.bfloat16 and reduction == "sum" else 0.05,
    )
    if ORIGINAL is not None:
        original = ORIGINAL(9, 37, reduction=reduction, dtype=dtype, **options)
        original.load_state_dict(ours.state_dict())
        ours.load_state_dict(original.state_dict())
        tolerance = (
            {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.05}
        )
        torch.testing.assert_close(
            ours(hidden, labels), original(hidden, labels).float(), **tolerance
        )
    torch.testing.assert_close(
        pickle.loads(pickle.dumps(ours))(hidden, labels), ours(hidden, labels), rtol=0, atol=0
    )


def test_what_the_linear_loss_has_not() -> None:
    for given, words in (
        ({"out_features": (2,)}, r"out_features is \(2,\), expected \(\)"),
        ({"weight": torch.ones(4)}, "weight is given, expected None"),
        ({"options": object()}, "options is given, expected None"),
    ):
        with pytest.raises(ValueError, match=f"LinearCrossEntropyLoss: {words}"):
            bt.LinearCrossEntropyLoss(3, 4, **given)
    loss = bt.LinearCrossEntropyLoss(3, 4, chunk=2)
    assert "reduction='mean', ignore_index=None, label_smoothing=0.0, chunk=2" in repr(loss)
    with pytest.raises(ValueError, match=r"labels has shape \[2, 4\], expected \[2\]"):
        loss(torch.ones(2, 3), torch.rand(2, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_under_compile() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        *(torch.nn.Linear(6, 16), bt.GEGLU(limit=2.0), bt.GLU("gelu_tanh"), bt.SquaredReLU()),
        *(bt.Softmax(0), bt.LogSoftmax(-1)),
    )
    loss, x, labels = bt.LinearCrossEntropyLoss(4, 7), torch.randn(5, 6), torch.arange(5)
    run = lambda x: loss(model(x), labels)  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), run(x))
    inputs = [*model.parameters(), *loss.parameters()]
    for one, other in zip(
        torch.autograd.grad(compiled(x), inputs), torch.autograd.grad(run(x), inputs), strict=True
    ):
        torch.testing.assert_close(one, other)
