"""The bounds of the ops that a model is made of hold, and see planted faults.

A fault must be seen in 16 bits as well as in float32: there the judge allows the one rounding that
the contract has, and hardly more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch
import bridge.torch.optim
from bridge.cli.catalogue import COMPARED
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact, rounded_to
from bridge.cli.parity import in_torch
from bridge.cli.parity.bounded_judge import BoundedJudge, judge_of
from bridge.cli.parity.grid import Case, places
from tests.cli.model_faults import FAULTS

DTYPES = ("float16", "bfloat16", "float32")
BOUNDED = [name for name, entry in COMPARED.items() if entry.compared.bounds is not None]


def case_of(form: str, dtype: str) -> Case:
    return Case(form, dtype, dtype, places(COMPARED[form].compared)[0])


def errors(case: Case, ops: Any) -> dict[str, Any]:
    """Returns the errors of value and gradients with the functions of `ops`."""
    given = case.operands()
    judge = judge_of(case, given)
    assert isinstance(judge, BoundedJudge)
    tensors = in_torch.tensors(case, given, "cpu")
    inputs = [tensors[name].requires_grad_() for name in case.inputs]
    value = case.call(ops, tensors)
    results = {"forward": value}
    if inputs:
        gradients = torch.autograd.grad(value, inputs, tensors["g"])
        results |= {f"d{name}": d for name, d in zip(case.inputs, gradients, strict=True)}
    found = {name: in_torch.to_numpy(x) for name, x in results.items()}
    return {name: judge.errors(name, found) for name in found}


class Faulty:
    """`bridge.torch` with another function in place of one of its own."""

    __name__ = "bridge.torch"

    def __init__(self, name: str, fault: Callable[..., Any]) -> None:
        self._name, self._fault = name, fault

    def __getattr__(self, name: str) -> Any:
        right = getattr(bridge.torch, name)
        return self._fault(right) if name == self._name else right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", BOUNDED)
def test_bounds_hold(form: str, dtype: str) -> None:
    for name, found in errors(case_of(form, dtype), bridge.torch).items():
        assert found.passed, (name, found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, dtype: str) -> None:
    form, name, plant, quantity = FAULTS[fault]
    found = errors(case_of(form, dtype), Faulty(name, plant))[quantity]
    assert not found.passed, found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bias_after_the_rounding_is_seen(dtype: str) -> None:
    def late(right: Any) -> Any:
        return lambda x, weight, bias: right(x, weight) + bias

    assert not errors(case_of("linear", dtype), Faulty("linear", late))["forward"].passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_that_are_not_rounded_are_seen(dtype: str) -> None:
    def wide(right: Any) -> Any:
        return lambda *qkv, **o: right(*(x.float() for x in qkv), **o).to(qkv[0].dtype)

    assert not errors(case_of("attention", dtype), Faulty("attention", wide))["forward"].passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["adamw", "sgd"])
def test_an_optimizer_with_another_number_is_seen(
    form: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"adamw": "AdamW", "sgd": "SGD"}[form]
    right = getattr(bridge.torch.optim, name)
    changed = {"adamw": {"betas": (0.9, 0.9995)}, "sgd": {"dampening": 0.2501}}[form]
    monkeypatch.setattr(bridge.torch.optim, name, lambda p, **o: right(p, **o | changed))
    assert not errors(case_of(form, dtype), bridge.torch)["forward"].passed


# ---- Orders of sums: the bounds allow any order, the tables of hashes allow one ----


def chain(a: Any, b: Any, start: int, end: int, restart: int = 0) -> Any:
    """Returns a leaf: a chain of fused multiply-adds, which may start again at a place."""
    total = np.full((a.shape[0], b.shape[1]), -0.0, np.float32)
    parts = []
    for p in range(start, end):
        if p == restart and p > start:
            parts.append(total)
            total = np.full_like(total, -0.0)
        # Products of 16-bit numbers are exact in float32, others in float64.
        total = (a[:, p, None] * b[None, p] + total.astype(np.float64)).astype(np.float32)
    for part in parts:
        total = part + total
    return total


def product(a: Any, b: Any, leaf: int = 256, restart: int = 0, is_tree: bool = True) -> Any:
    """Returns the sum in the order of docs/numerics.md, or in another one."""
    k = a.shape[1]
    leaves = [chain(a, b, i, min(i + leaf, k), restart) for i in range(0, k, leaf)]
    if not is_tree:
        total = leaves[0]
        for each in leaves[1:]:
            total = total + each
        return total
    while len(leaves) > 1:
        pairs = [x + y for x, y in zip(leaves[::2], leaves[1::2], strict=False)]
        leaves = pairs + leaves[len(pairs) * 2 :]
    return leaves[0]


ORDERS: dict[str, dict[str, Any]] = {
    "a boundary off by one": {"leaf": 257},
    "a shorter leaf": {"leaf": 255},
    "a chain restarted": {"restart": 700},
    "leaves in a chain": {"is_tree": False},
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_cancel_show_their_order(dtype: str) -> None:
    """In 16 bits too: the result is the rounding errors of float32, and its bits differ."""
    case = case_of("matmul of sums that cancel", dtype)
    given = case.operands()
    wide = {name: given[name].astype(np.float64) for name in ("x", "b")}
    tensors = in_torch.tensors(case, given, "cpu")
    ours = in_torch.to_numpy(bridge.torch.matmul(tensors["x"], tensors["b"])).astype(np.float64)

    def differing(**order: Any) -> float:
        other = rounded_to(product(wide["x"], wide["b"], **order).astype(np.float64), dtype)
        return float(np.mean(other != ours))

    # A sum in float64 of a product of 48 bits may round twice, once in many thousand terms.
    assert differing() <= (0.0 if dtype != "float32" else 0.05)
    for fault, order in ORDERS.items():
        assert differing(**order) > 0.25, fault  # sums of two leaves may agree


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_of_values_that_cancel_shows_its_order(dtype: str) -> None:
    """The keys of the second half in another order: equal sums, other bits."""
    case = case_of("attention of values that cancel", dtype)
    q, k, v = (in_torch.tensors(case, case.operands(), "cpu")[name] for name in ("x", "k", "v"))
    half = k.shape[-2] // 2
    order = torch.cat((torch.arange(half), half + torch.randperm(half)))
    ours = bridge.torch.attention(q, k, v)
    other = bridge.torch.attention(q, k[..., order, :], v[..., order, :])
    assert (ours != other).float().mean() > 0.5


# ---- Bounded arithmetic ----


def test_a_rounding_is_no_error_where_the_bound_decides_it() -> None:
    own = Arithmetic("float32")
    x = Bounded(np.array([1.0, 1.0 + 2.0**-9]), np.array([1e-4, 1e-4]), np.zeros(2))
    found = own.rounded(x, "float16")
    assert found.error[0] == 0.0
    assert found.error[1] == 0.0  # 1 + 2⁻⁹ is a number of float16
    tie = Bounded(np.array([1.0 + 2.0**-11]), np.array([1e-6]), np.zeros(1))
    assert own.rounded(tie, "float16").error[0] == 2.0**-10
    assert own.rounded(x, "float32") is x


def test_bounds_of_a_product_are_relative_to_its_terms() -> None:
    own = Arithmetic("float32")
    a = exact(np.array([[1.0, 1.0]]))
    b = exact(np.array([[1e6], [-1e6]]))
    found = own.product(a, b)
    assert found.values[0, 0] == 0.0
    assert 2e6 * 2.0**-24 < found.error[0, 0] < 5e6 * 2.0**-24
