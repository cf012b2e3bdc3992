"""`bridge.torch.invariant` around models and code of other people, which stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import bridge.torch as bt
from bridge._private.torch import FakeTensor

FAMILIES = {
    "Llama": {"mean": 5, "silu": 2, "softmax": 2, "cross_entropy": 1},
    "GPT2": {"layer_norm": 5, "softmax": 2, "cross_entropy": 1},
    "Bert": {"layer_norm": 6, "gelu": 3, "softmax": 2, "cross_entropy": 1},
}


class ExactProducts(TorchFunctionMode):
    """Rounds products once, so that their bits do not depend on the batch."""

    products = (F.linear, torch.matmul, torch.Tensor.matmul, torch.addmm, torch.bmm)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self.products:
            return func(*args, **(kwargs or {}))
        assert not kwargs
        return func(*[each.double() if isinstance(each, Tensor) else each for each in args]).float()


def model_of(family: str) -> Any:
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 96, "attn_implementation": "eager", "pad_token_id": 0}
    sizes = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    if family == "Llama":
        config = transformers.LlamaConfig(
            **common, **sizes, intermediate_size=50, num_key_value_heads=2
        )
        return transformers.LlamaForCausalLM(config).eval()
    if family == "GPT2":
        config = transformers.GPT2Config(**common, n_embd=36, n_layer=2, n_head=4)
        return transformers.GPT2LMHeadModel(config).eval()
    config = transformers.BertConfig(**common, **sizes, intermediate_size=50)
    return transformers.BertForMaskedLM(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_sequence_do_not_depend_on_the_batch(family: str) -> None:
    model = model_of(family)
    tokens = torch.randint(1, 96, (6, 11))
    with ExactProducts():
        plain = model(tokens).logits
    with bt.invariant(report=True) as context, ExactProducts():
        found = model(tokens, labels=tokens)
        for part in (slice(0, 1), slice(2, 5)):
            assert torch.equal(model(tokens[part]).logits, found.logits[part])
    torch.testing.assert_close(found.logits, plain, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found.logits, plain)
    calls = {name: 3 * count for name, count in FAMILIES[family].items()} | {"cross_entropy": 1}
    assert context.caught == calls
    assert not {name for name, _ in context.passed} & set(calls)


def test_gradients_of_a_model_compiled_and_not() -> None:
    model = model_of("Llama")
    tokens = torch.randint(1, 96, (2, 11))
    torch._dynamo.reset()
    results = []
    for call in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        with bt.invariant(), ExactProducts():
            loss = call(tokens, labels=tokens).loss
            loss.backward()
        results.append((loss, [each.grad.clone() for each in model.parameters()]))
    (eager, gradients), (compiled, of_compiled) = results
    assert torch.equal(eager, compiled)
    for one, other in zip(gradients, of_compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()


def test_attention_and_encoders_of_torch() -> None:
    x = torch.randn(4, 5, 16)
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu"), 2
    ).eval()
    weights = attention(x, x, x)[1]
    with torch.no_grad():  # torch's fast path, in C++
        encoded = encoder(x)
        with bt.invariant(report=True) as context:
            torch.testing.assert_close(attention(x, x, x)[1], weights)
            torch.testing.assert_close(encoder(x), encoded, rtol=1e-4, atol=1e-5)
    assert context.caught == {"softmax": 1, "mean": 1, "layer_norm": 4, "gelu": 2}
    reasons = {name for name, _ in context.passed}
    assert reasons == {"linear", "bmm", "scaled_dot_product_attention"}


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("how", ["Tensor", "autograd.backward", "grad"])
def test_layers_that_the_backward_pass_computes_once_more(use_reentrant: bool, how: str) -> None:
    if use_reentrant and how == "grad":
        pytest.skip("torch refuses it")

    def block(x: Tensor) -> Tensor:
        return F.softmax(F.gelu(x) * F.silu(x), -1) * F.layer_norm(x, (16,))

    x = torch.randn(8, 16, requires_grad=True)
    with bt.invariant(report=True) as context:
        (expected,) = torch.autograd.grad(block(x).sin().sum(), x)
        y = checkpoint(block, x, use_reentrant=use_reentrant).sin().sum()
        if how == "grad":
            (found,) = torch.autograd.grad(y, x)
        else:
            y.backward() if how == "Tensor" else torch.autograd.backward(y)
            found = x.grad
    assert torch.equal(found, expected)
    assert context.caught == dict.fromkeys(("softmax", "gelu", "silu", "layer_norm"), 3)


def test_functions_in_the_backward_pass_of_a_user() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            y = torch.softmax(ctx.saved_tensors[0], -1)
            return y * (g - (g * y).mean(-1, keepdim=True) * g.shape[-1])

    x = torch.randn(8, 16, requires_grad=True)
    with bt.invariant(report=True) as context:
        Own.apply(x).sin().sum().backward()
    assert context.caught == {"softmax": 2, "mean": 1}


def test_tracers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(8, 33)

    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    by_bridge = bt.scaled_softmax(x)
    with bt.invariant():
        graph, exported = make_fx(function)(x), torch.export.export(nn.Softmax(-1), (x,))
        symbolic = torch.fx.symbolic_trace(nn.Softmax(-1))
        with FakeTensorMode():
            assert isinstance(function(torch.zeros(2, 3)), FakeTensor)
    # A graph of aten keeps the ops of its context; a graph of functions does not.
    assert torch.equal(graph(x), by_bridge)
    assert torch.equal(exported.module()(x), by_bridge)
    assert not torch.equal(symbolic(x), by_bridge)
    with bt.invariant():
        assert torch.equal(symbolic(x), by_bridge)
