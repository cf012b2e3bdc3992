"""The functions of a program that may be 16-bit versions, and the resulting errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bridge
import bridge.torch as bt
from bridge import lang as bl
from bridge.catalogue import gates, log_probs
from bridge.lang import codes
from bridge.lang.program import COLUMNS
from bridge.ops.traced import traced

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@bridge.op
def products(x: bridge.Full, y: bridge.Full) -> Any:
    return -bl.where(x < y, bl.silu(x) * y, abs(bl.sigmoid(x) / bl.gelu(y, "none")))


@bridge.op
def added(x: bridge.Full) -> Any:
    return bl.silu(x) + 1.0


@bridge.op
def compared(x: bridge.Full) -> Any:
    return bl.where(bl.sigmoid(x) < 0.5, x, 0.0)


@bridge.op
def summed(x: bridge.Full) -> Any:
    return x * bl.sum(bl.silu(x))


@bridge.op
def one_a_row(x: bridge.Full, y: bridge.PerRow) -> Any:
    return x * y, bl.silu(y)


@bridge.op
def summed_over_rows(x: bridge.Full) -> Any:
    return bl.column_sum(bl.silu(x))


@bridge.op(keep=("gate",))
def kept(x: bridge.Full, y: bridge.Full) -> Any:
    gate = bl.silu(x)
    return gate * y


@bridge.op
def log_sums(x: bridge.Full) -> Any:
    return x - bl.logsumexp(x) * bl.logsumexp(x + x)


def traced_of(op: Any) -> Any:
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    return traced(declaration, present, *declaration.static.values())


def rough(code: str) -> list[str]:
    """Returns the functions of a program that are 16-bit versions."""
    program = codes.computed(codes.parse(code))
    types = {"float16", "bfloat16"}
    return [
        node.operation
        for node in program.nodes
        if node.operation != "rounded"
        and types & set(node.static if isinstance(node.static, tuple) else (node.static,))
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_alone(dtype: str) -> None:
    assert rough(traced_of(products).texts[dtype]) == ["silu", "sigmoid", "gelu"]


@pytest.mark.parametrize("op", [added, compared, summed, one_a_row, summed_over_rows])
def test_all_else_is_exact(op: Any) -> None:
    assert rough(traced_of(op).texts["bfloat16"]) == []


def test_what_is_kept_is_what_would_be_computed_again() -> None:
    assert set(traced_of(kept).texts) == {""}


def short_log_sums(code: str) -> list[bool]:
    """Returns for each log-sum of a program whether it is a 16-bit version."""
    nodes = codes.computed(codes.parse(code)).nodes
    return sorted(node.static is not None for node in nodes if "logsumexp" in node.operation)


def test_log_sums_of_what_is_kept_are_those_of_what_would_be_computed_again() -> None:
    """A saved operand and a recomputed sum with more bits are treated alike, to any order."""
    program = traced_of(log_sums).program
    operand, doubled = (
        number for number, node in enumerate(program.nodes) if node.operation in ("operand", "add")
    )

    def sums(keeps: list[int]) -> list[list[bool]]:
        text = codes.texts_of(codes.code_of(program, keeps))["bfloat16"]
        first = codes.vjp(text, [True], [True], bool(keeps))
        results, operands = codes.parse(first).program.results, codes.parse(first).tags
        wanted = [tag[0] != "kept" for tag in operands]
        again = codes.vjp(first, [True] * len(results), wanted, False)
        return [short_log_sums(code) for code in (first, again, codes.jvp(first, wanted, False))]

    expected = sums([])
    assert all(set(each) == {False, True} for each in expected)
    for keeps in ([operand], [doubled], [operand, doubled]):
        assert sums(keeps) == expected, keeps


def test_derivatives() -> None:
    found = traced_of(gates.glu)
    text = found.texts["bfloat16"]
    given, every = [True], [True] * len(found.program.operands)
    assert "silu_slope" in rough(codes.vjp(text, given, every, False))
    first = codes.vjp(text, given, every, False)
    own = codes.parse(first).program
    again = codes.vjp(first, [True] * len(own.results), [True] * len(own.operands), False)
    assert codes.parse(again).accuracy == "bfloat16"
    assert rough(codes.vjp(found.code, given, every, False)) == []


def test_one_column_may_need_more_than_all_others() -> None:
    """In softmax it is the label's column, whose term meets another one."""
    found = traced(log_probs.token_log_probs.declaration, (True, True), 1.0)
    text = codes.vjp(found.texts["bfloat16"], [True], [True, False], False)
    powers = [
        node.static
        for node in codes.computed(codes.parse(text)).nodes
        if node.operation == "exp_low" and node.axes & COLUMNS
    ]
    assert sorted(powers, key=str) == [None, "bfloat16"]
    with_all = traced(log_probs.log_softmax.declaration, (True,), 1.0).texts["bfloat16"]
    assert "exp_low" not in rough(codes.vjp(with_all, [True], [True], False))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_bits_do_not_depend_on_what_else_is_wanted(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y, c = (torch.randn(33, 70).to(dtype) for _ in range(3))
    bias = torch.randn(70).to(dtype)

    def gradients(*wanted: int) -> list[Any]:
        operands = [t.clone().requires_grad_(i in wanted) for i, t in enumerate((x, y, bias))]
        out = bt.glu(*operands)
        out.backward(c)
        return [operand.grad for operand in operands]

    whole = gradients(0, 1, 2)
    for wanted in ((0,), (1,), (2,), (0, 1)):
        for i, found in enumerate(gradients(*wanted)):
            assert i not in wanted or torch.equal(bits(found), bits(whole[i]))


def sigmoid(x: Any) -> Any:
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1.0) / (1 + power)


SLOPES: dict[str, Callable[[Any], Any]] = {
    "silu": lambda x: sigmoid(x) + sigmoid(x) * (x * sigmoid(-x)),
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
}


# The digits of a type, and log2 of its least normal number.
UNITS = {"float16": (11, -14), "bfloat16": (8, -126)}


def in_units(name: str, found: torch.Tensor, exact: Any, free: Any = 0.0) -> Any:
    """Returns the errors in units of the type, beyond a free allowance."""
    digits, lowest = UNITS[name]
    exponent = np.maximum(np.frexp(exact)[1] - 1, lowest)
    return (np.abs(found.double().numpy() - exact) - free) / 2.0 ** (exponent - digits + 1)


@pytest.mark.parametrize("name", DTYPES)
def test_gradients_of_log_sums(name: str, rng: np.random.Generator) -> None:
    """Errors are within 0.52 units; in the label's column, 2^-23 of the factor more."""
    rows, columns = 256, 200
    x = rng.normal(scale=3.0, size=(rows, columns))
    labels = rng.integers(0, columns, rows)
    x[np.arange(rows), labels] = x.max(-1) + np.linspace(-4, 12, rows)
    x[::5, 1::3] -= 40
    logits = torch.tensor(x).to(DTYPES[name]).requires_grad_()
    losses = torch.tensor(rng.normal(size=rows)).to(DTYPES[name])
    x = logits.detach().double().numpy()
    power = np.exp(x - x.max(-1, keepdims=True))
    others = (power.sum(-1) - power[np.arange(rows), labels])[:, None] / power.sum(-1)[:, None]
    softmax = power / power.sum(-1, keepdims=True)
    is_label = np.arange(columns) == labels[:, None]
    factor = losses.double().numpy()[:, None]
    (own,) = torch.autograd.grad(
        bt.cross_entropy(logits, torch.tensor(labels), reduction="none"), logits, losses
    )
    exact = factor * np.where(is_label, -others, softmax)
    assert in_units(name, own, exact, 2.0**-23 * is_label * np.abs(factor)).max() <= 0.52
    (own,) = torch.autograd.grad(bt.logsumexp(logits), logits, losses)
    assert in_units(name, own, factor * softmax).max() <= 0.52


@pytest.mark.parametrize("activation", SLOPES)
@pytest.mark.parametrize("name", DTYPES)
def test_gradients_of_every_16_bit_number(name: str, activation: str) -> None:
    """Errors are within 0.52 units, plus 2^-25 where the derivative crosses zero, for each gate."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(DTYPES[name])
    gate = numbers[numbers.isfinite()].requires_grad_()
    up = torch.full_like(gate, 1.375)
    bt.glu(gate, up, activation=activation).backward(torch.full_like(gate, -1.25))
    x = gate.detach().double().numpy()
    exact = -1.25 * 1.375 * SLOPES[activation](x)
    assert gate.grad is not None
    assert in_units(name, gate.grad, exact, 2.0**-25 * (np.abs(x) < 2)).max() <= 0.52
