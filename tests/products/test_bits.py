"""The word `bits`, the device and the dtypes tell which products tensor cores compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import export
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.jax as bj
import bridge.torch as bt
from bridge.ops import product as rules
from bridge.ops.product import ProductParams
from bridge.ops.product_splits import own_params
from bridge.torch._adapter import products as in_torch

CHECKS = [export.DisabledSafetyCheck.custom_call(f"bridge_{op}") for op in ("matmul", "program")]
SIXTEEN = ("float16", "bfloat16")


@pytest.mark.parametrize("bits", [None, "portable", "device"])
@pytest.mark.parametrize(
    ("dtypes", "result", "fits"),
    [
        (("float16", "float16"), "float16", True),
        (("bfloat16", "bfloat16"), "float32", True),
        (("bfloat16", "bfloat16", "float32"), "float32", True),
        (("float16", "bfloat16"), "float32", False),
        (("float32", "float32"), "float32", False),
        (("float32", "bfloat16"), "bfloat16", False),
        (("bfloat16", "bfloat16", "float64"), "bfloat16", False),
        (("bfloat16", "bfloat16"), "float64", False),
    ],
)
def test_rule(dtypes: tuple[str, ...], result: str, fits: bool, bits: str | None) -> None:
    params = ProductParams(result, bits=bits)
    assert rules.has_tensor_cores(params, dtypes, True) == (fits and bits != "portable")
    assert not rules.has_tensor_cores(ProductParams(result, False, False, True, bits), dtypes, True)
    if fits and bits == "device":
        with pytest.raises(ValueError, match="'device', expected 'portable' or None on a CPU"):
            rules.has_tensor_cores(params, dtypes, False)
    else:
        assert not rules.has_tensor_cores(params, dtypes, False)


def test_parts_of_a_split_sum_keep_the_word() -> None:
    for bits in (None, "portable", "device"):
        own = own_params(ProductParams("bfloat16", bits=bits), ("bfloat16", "bfloat16"))
        assert own == ProductParams("float32", bits=bits)


def lowered(f: Callable[..., Any], *shapes: Any, platforms: list[str]) -> list[bool]:
    """Returns, for each product of a program of JAX, whether it asks for tensor cores."""
    text = export.export(jax.jit(f), platforms=platforms, disabled_checks=CHECKS)(*shapes)
    return [found == "true" for found in re.findall(r"tensor_cores = (\w+)", text.mlir_module())]


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of the result and of all gradients."""

    def all_of(*operands: Any) -> Any:
        y, pull = jax.vjp(f, *operands)
        return y, pull(y)

    return all_of


@pytest.mark.parametrize("dtype", [*SIXTEEN, "float32"])
@pytest.mark.parametrize("bits", [None, "portable", "device"])
def test_programs_of_jax(bits: str | None, dtype: str) -> None:
    x, w, b = (jax.ShapeDtypeStruct(s, dtype) for s in ((2, 5, 24), (7, 24), (7,)))
    is_wanted = bits != "portable" and dtype in SIXTEEN
    if bits == "device" and not is_wanted:
        with pytest.raises(ValueError, match="linear: bits is 'device' with x of float32"):
            lowered(partial(bj.linear, bits=bits), x, w, platforms=["cuda"])
        return
    contracted = (((2,), (1,)), ((), ()))
    functions: list[Any] = [
        (partial(bj.linear, bits=bits), (x, w, b)),
        (lambda x, w: bj.matmul(x, w.T, bits=bits), (x, w)),
        (lambda x, w: bj.dot_general(x, w, contracted, bits=bits), (x, w)),
        (jax.vmap(partial(bj.linear, bits=bits), (0, None)), (x, w)),
    ]
    for f, operands in functions:
        found = lowered(gradients(f), *operands, platforms=["cuda"])
        assert found == [is_wanted] * 3
        if bits != "device":
            assert lowered(gradients(f), *operands, platforms=["cpu"]) == [False] * 3
    if bits == "device":
        with pytest.raises(ValueError, match="bits is 'device', expected 'portable' or None"):
            lowered(functions[0][0], x, w, platforms=["cpu"])


def test_each_word_is_a_program_of_its_own() -> None:
    x = jnp.ones((2, 2), jnp.bfloat16)
    texts = {
        str(jax.make_jaxpr(lambda x, bits=bits: bj.matmul(x, x, bits=bits))(x))
        for bits in (None, "portable")
    }
    assert len(texts) == 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for each product of torch whether it would be of tensor cores on a GPU."""
    found: list[bool] = []
    rule = rules.has_tensor_cores

    def recorded(params: ProductParams, dtypes: Any, is_on_cuda: bool) -> bool:
        found.append(rule(params, dtypes, True))
        return False

    monkeypatch.setattr(rules, "has_tensor_cores", recorded)
    monkeypatch.setattr(in_torch._Primitives, "is_on_cpu", staticmethod(lambda x: False))
    # It leaves the products of a GPU to the general path.
    monkeypatch.setattr(in_torch._native, "quick_product", lambda *_: None)
    return found


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("bits", [None, "portable", "device"])
def test_calls_of_torch(bits: str | None, dtype: str, asked: list[bool]) -> None:
    own = getattr(torch, dtype)
    x, w, b = (torch.ones(s, dtype=own, requires_grad=True) for s in ((2, 5, 24), (7, 24), (7,)))
    layer = bt.Linear(24, 7, dtype=own, bits=bits)
    for f, operands in (
        (partial(bt.linear, bits=bits), (x, w, b)),
        (lambda x, w: bt.matmul(x, w.mT, bits=bits), (x, w)),
        (lambda x, w: torch.func.vmap(partial(bt.linear, bits=bits), (0, None))(x, w), (x, w)),
        (lambda x: layer(x), (x,)),
    ):
        asked.clear()
        f(*operands).sum().backward()
        assert asked == [bits != "portable"] * 3
        asked.clear()
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        compiled(*operands).sum().backward()
        assert asked == [bits != "portable"] * 3
    asked.clear()
    bt.linear(x, w, b.float(), bits=bits).sum().backward()  # cotangents of 32 bits
    assert asked == [bits != "portable", False, False]


@pytest.mark.parametrize("bits", [None, "device"])
def test_graphs_of_torch_hold_the_word(bits: str | None, asked: list[bool]) -> None:
    x = torch.ones(3, 3, dtype=torch.bfloat16)
    graph = make_fx(lambda x: bt.matmul(x, x, bits=bits))(x).graph
    (node,) = [n for n in graph.nodes if n.target is torch.ops.bridge.matmul.default]
    assert node.args[-1] == bits


def test_what_promises_portable_bits(asked: list[bool]) -> None:
    """Attention, and the loss of a linear layer that is asked for them."""
    q = torch.ones(1, 2, 6, 8, dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(5, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(1, 2, 6, dtype=torch.int64)
    bt.attention(q, q, q, causal=True).sum().backward()
    bt.linear_cross_entropy(q, w, labels, bits="portable").backward()
    assert len(asked) == 2 + 5 + 1 + 3
    assert not any(asked)
    a, v = (jax.ShapeDtypeStruct(t.shape, "bfloat16") for t in (q, w))
    of_attention = gradients(lambda q: bj.attention(q, q, q, causal=True))
    ids = jnp.zeros((1, 2, 6), jnp.int32)
    of_loss = gradients(lambda h, w: bj.linear_cross_entropy(h, w, ids, bits="portable"))
    for found in (
        lowered(of_attention, a, platforms=["cuda"]),
        lowered(of_loss, a, v, platforms=["cuda"]),
    ):
        assert len(found) >= 3
        assert not any(found)


def test_refusals() -> None:
    half, wide = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2)
    for made, other, module in (
        (half, wide, bt),
        (jnp.ones((2, 2), jnp.bfloat16), jnp.ones((2, 2)), bj),
    ):
        on_cpu = "bits is 'device', expected 'portable' or None on a CPU"
        with pytest.raises(ValueError, match=f"matmul: {on_cpu}"):
            module.matmul(made, made, bits="device")
        with pytest.raises(ValueError, match=f"linear: {on_cpu}"):
            module.linear(made, made, bits="device")
        with pytest.raises(ValueError, match="matmul: bits is 'device' with a of bfloat16, b of f"):
            module.matmul(made, other, bits="device")
        with pytest.raises(ValueError, match="linear: bits is 'fast', expected one of 'portable'"):
            module.linear(made, made, bits="fast")
    with pytest.raises(ValueError, match="dot_general: bits is 'fast'"):
        bj.dot_general(jnp.ones(2), jnp.ones(2), (((0,), (0,)), ((), ())), bits="fast")
    with pytest.raises(ValueError, match="Linear: bits is 'fast', expected one of 'portable'"):
        bt.Linear(2, 2, bits="fast")
