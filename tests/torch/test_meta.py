"""Tensors on the meta device: shapes and dtypes, and nothing computed, drawn or written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

import bridge.torch as bt
from bridge.torch import megatron, slapo
from tests.torch.cases import CASES

MASK = torch.ones(1, 5) > 0
softmax = megatron.FusedScaleMaskSoftmax(False, False, "causal", True, None, True, 0.5, (2, 0))

# Functions of x [4, 5] and bias [5].
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mixed dtypes": lambda x, b: bt.bias_gelu(x.float(), b.bfloat16()),
    "mask": lambda x, b: bt.scaled_masked_softmax(x, MASK.to(x.device)),
    "in place": lambda x, b: bt.bias_gelu_(x * 2.0, b),
    "out": lambda x, b: bt.scaled_softmax(x.detach(), out=torch.empty_like(x)) + x,
    "drawn seed": lambda x, b: bt.bias_dropout_add(x, b, x, p=0.5),
    "seed and offset": lambda x, b: bt.bias_dropout_add(x, b, p=0.5, seed=2, offset=3),
    "int32 seed": lambda x, b: bt.bias_dropout_add(
        x, b, p=0.5, seed=torch.ones((), dtype=torch.int32, device=x.device)
    ),
    "generator": lambda x, b: bt.bias_dropout_add(x, b, p=0.5, seed=torch.Generator()),
    "viewless": lambda x, b: bt.make_viewless_tensor(x[1:], True, True),
    "all_gather": lambda x, b: bt.all_gather(x),
    "modules": lambda x, b: nn.Sequential(
        bt.BiasGELU(5, device=x.device, dtype=x.dtype), bt.BiasDropoutAdd(0.5)
    )(x),
    "megatron's bias-GELU": lambda x, b: megatron.bias_gelu_impl(x, b),
    "megatron's backward": lambda x, b: megatron.bias_gelu_back(x, b, x),
    "megatron's dropout": lambda x, b: megatron.bias_dropout_add_fused_train((x, b), x, 0.5),
    "megatron's softmax": lambda x, b: softmax(
        x[None, None], MASK.to(x.device), torch.zeros(1, device=x.device)
    ),
    "slapo's dropout": lambda x, b: slapo.bias_dropout(x, b[None]),
    "linear cross-entropy": lambda x, b: bt.linear_cross_entropy(
        x, x.new_ones(3, 5), torch.zeros(4, dtype=torch.long, device=x.device), reduction="none"
    ),
    "portable linear cross-entropy": lambda x, b: bt.linear_cross_entropy(
        x, x.new_ones(3, 5), torch.zeros(4, dtype=torch.long, device=x.device), bits="portable"
    ),
    "vmap": lambda x, b: torch.func.vmap(bt.scaled_softmax)(x),
    "tangent": lambda x, b: torch.func.jvp(bt.scaled_softmax, (x,), (x,))[1],
}


def on_meta(t: Tensor) -> Tensor:
    return t.detach().to("meta").requires_grad_(t.requires_grad)


def kind(t: Tensor) -> Any:
    return t.shape, t.dtype, t.stride(), t.requires_grad


def assert_same_kinds(function: Callable[..., Tensor], inputs: Any) -> None:
    """Calls it twice, as a new and as a known kind of call. With second derivatives."""
    y = function(*inputs)
    elsewhere = [on_meta(t) for t in inputs]
    for _ in range(2):
        found = function(*elsewhere)
        assert found.is_meta
        assert kind(found) == kind(y)
        options: Any = {"create_graph": True, "allow_unused": True}
        gradients = grad(y.sum(), inputs, **options)
        for one, other in zip(grad(found.sum(), elsewhere, **options), gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.is_meta
                assert one.shape == other.shape
                assert one.dtype == other.dtype


@pytest.mark.parametrize("name", CASES)
def test_ops(draw: Any, name: str) -> None:
    inputs = CASES[name].inputs(draw, grad=True)
    if name.startswith("softmax mask"):  # its mask is on the CPU
        with pytest.raises(ValueError, match="mask is on cpu, expected meta, where x is"):
            CASES[name].function(*map(on_meta, inputs))
    else:
        assert_same_kinds(CASES[name].function, inputs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_drop_ins(draw: Any, name: str) -> None:
    assert_same_kinds(FUNCTIONS[name], (draw(4, 5, grad=True), draw(5, grad=True)))


def test_nothing_is_drawn() -> None:
    x = torch.empty(4, 5, device="meta")
    generator = torch.Generator()
    states = torch.get_rng_state(), generator.get_state()
    bt.bias_dropout_add(x, p=0.5)
    bt.bias_dropout_add(x, p=0.5, seed=generator)
    for before, after in zip(states, (torch.get_rng_state(), generator.get_state()), strict=True):
        assert torch.equal(before, after)


def test_a_model_made_on_meta_runs(draw: Any) -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 8, bias=False), bt.BiasGELU(8), bt.BiasDropoutAdd(0.25), nn.Linear(8, 3)
        )

    with torch.device("meta"):
        late = model()
        inside = late(torch.empty(4, 5))
    y = late(torch.empty(4, 5, device="meta"))
    assert y.is_meta
    assert inside.is_meta
    assert y.shape == inside.shape == (4, 3)
    y.sum().backward()
    assert all(parameter.grad.is_meta for parameter in late.parameters())
