"""Ops with so many operands that derivatives have several parts, and ops that are too large."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.declared import DeclaredOp
from bridge.lang.limits import MOST_OPERANDS, MOST_RESULTS
from bridge.ops import PROGRAM
from bridge.ops.usual_programs import usual_requests
from bridge.torch._adapter.dispatcher import dispatch
from tests.declared.test_transforms import same


def op_of(count: int, compute: Callable[..., Any], integers: int = 0) -> DeclaredOp:
    """Returns an op with `count` operands, the last of which may be integers."""

    def many(*x: Any) -> Any:
        return compute(*x)

    kind = inspect.Parameter.POSITIONAL_ONLY
    roles = [bridge.Full] * (count - integers) + [bl.Integer] * integers
    parameters = [inspect.Parameter(f"x{i}", kind, annotation=role) for i, role in enumerate(roles)]
    many.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return bridge.op(many)


def gated(*x: Any, sigmoid: Any = bl.sigmoid) -> Any:
    """An op whose derivative towards an operand needs three operands."""
    pairs = zip(x, (*x[1:], x[0]), strict=True)
    return functools.reduce(operator.add, (sigmoid(a) * b for a, b in pairs))


def squared_sum(*x: Any) -> Any:
    """An op whose derivative towards an operand needs all operands."""
    total = functools.reduce(operator.add, (v * v for v in x))
    return total * total


def several(*x: Any) -> Any:
    return tuple(squared_sum(*x) * (0.25 * i) for i in range(1, 11))


def arrays(rng: np.random.Generator, count: int) -> list[np.ndarray]:
    return [rng.normal(size=(2, 8)).astype(np.float32) for _ in range(count)]


def tensors(values: Sequence[Any], dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return tuple(torch.tensor(value, dtype=dtype) for value in values)


def jax_arrays(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jnp.asarray(value) for value in values)


def close(found: Sequence[Any], exact: Sequence[Any]) -> None:
    for own, expected in zip(found, exact, strict=True):
        atol = 4e-6 * float(expected.abs().max())
        torch.testing.assert_close(own.double(), expected, rtol=0.0, atol=atol)


@pytest.mark.parametrize("count", [15, 29, 56])
def test_forward_mode_of_many_operands(count: int, rng: np.random.Generator) -> None:
    op, values, moved = op_of(count, gated), arrays(rng, count), arrays(rng, count)
    found = torch.func.jvp(op, tensors(values), tensors(moved))
    same(found, jax.jvp(op, jax_arrays(values), jax_arrays(moved)))
    exact = [tensors(each, torch.float64) for each in (values, moved)]
    close(found, torch.func.jvp(functools.partial(gated, sigmoid=torch.sigmoid), *exact))


# With more than 31 operands there are more gradients than a call can return.
@pytest.mark.parametrize("count", [29, 40, 56])
def test_gradients_of_many_operands(count: int, rng: np.random.Generator) -> None:
    op, values, places = op_of(count, gated), arrays(rng, count), tuple(range(count))
    moved = [x.requires_grad_() for x in tensors(values)]
    found = torch.autograd.grad(op(*moved).sum(), moved)
    same(found, jax.grad(lambda *x: op(*x).sum(), places)(*jax_arrays(values)))
    same(found, torch.func.grad(lambda *x: op(*x).sum(), places)(*tensors(values)))
    for i in range(0, count, 9):  # each also has its bits when computed alone
        same(torch.autograd.grad(op(*moved).sum(), moved[i]), found[i : i + 1])
    exact = [x.requires_grad_() for x in tensors(values, torch.float64)]
    close(found, torch.autograd.grad(gated(*exact, sigmoid=torch.sigmoid).sum(), exact))


def test_gradients_of_many_operands_and_results(rng: np.random.Generator) -> None:
    """Derivatives of one operand need all operands and, in parts, the cotangents of all results."""
    count, wanted = 50, (0, 49)
    op, values = op_of(count, several), arrays(rng, count)

    def total(*x: Any, function: Any = op) -> Any:
        return sum(result.sum() for result in function(*x))

    found = torch.func.grad(total, wanted)(*tensors(values))
    same(found, jax.grad(total, wanted)(*jax_arrays(values)))
    whole = functools.partial(total, function=several)
    close(found, torch.func.grad(whole, wanted)(*tensors(values, torch.float64)))


def test_second_derivatives_of_many_operands(rng: np.random.Generator) -> None:
    count, wanted = 30, tuple(range(30))
    op, values, directions = op_of(count, squared_sum), arrays(rng, count), arrays(rng, count)

    def slope(grad: Any, function: Any, given: Any, *x: Any) -> Any:
        slopes = grad(lambda *v: function(*v).sum(), wanted)(*x)
        return sum((g * t).sum() for g, t in zip(slopes, given, strict=True))

    of_torch = functools.partial(slope, torch.func.grad, op, tensors(directions))
    found = torch.func.grad(of_torch, wanted)(*tensors(values))
    exact_directions = tensors(directions, torch.float64)
    exact = functools.partial(slope, torch.func.grad, squared_sum, exact_directions)
    close(found, torch.func.grad(exact, wanted)(*tensors(values, torch.float64)))
    of_jax = functools.partial(slope, jax.grad, op, jax_arrays(directions))
    for own, other in zip(found, jax.grad(of_jax, wanted)(*jax_arrays(values)), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5)


def test_a_derivative_that_is_too_large_is_refused_where_it_is_asked_for() -> None:
    op = op_of(MOST_OPERANDS, squared_sum)
    x = [torch.ones(2, 8, requires_grad=True) for _ in range(MOST_OPERANDS)]
    y = op(*x)
    words = "of many: the program has 57 operands, tangents and cotangents among them, expected at"
    with pytest.raises(bl.ProgramTooLarge, match=f"vjp {words} most 56"):
        y.sum().backward()
    ones = jnp.ones((2, 8))
    with pytest.raises(bl.ProgramTooLarge, match=f"jvp {words} most 56"):
        jax.grad(lambda x: op(x, *[ones] * (MOST_OPERANDS - 1)).sum())(ones)


def test_more_operands_or_results_than_a_call_has_are_refused_when_declared() -> None:
    where = r"many, declared on line \d+ of .*test_limits.py: the program has"
    with pytest.raises(bl.DeclarationError, match=f"{where} 57 operands, expected at most 56"):
        op_of(MOST_OPERANDS + 1, gated)
    with pytest.raises(bl.DeclarationError, match=f"{where} 32 results, expected at most 31"):
        op_of(1, lambda x: (x,) * (MOST_RESULTS + 1))

    def kept(x: bridge.Full) -> Any:
        y = bl.exp(x)
        return (y,) * MOST_RESULTS

    with pytest.raises(bl.DeclarationError, match="kept: the program has 32 results and kept"):
        bridge.op(keep=("y",))(kept)


def test_a_part_of_an_array_has_an_operand_more(rng: np.random.Generator) -> None:
    """If random words are drawn, it is the number of the part's first element."""

    def dropped(*x: Any) -> Any:
        return bl.where(bl.dropout_keep(0.5, *x[-2:]), functools.reduce(operator.add, x[:-2]), 0.0)

    op, values = op_of(MOST_OPERANDS, dropped, 2), arrays(rng, MOST_OPERANDS - 2)
    whole = op(*tensors(values), 3, 0)
    mesh = jax.make_mesh((2,), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    same(jax.jit(lambda *x: op(*x, 3, 0))(*jax.device_put(jax_arrays(values), rows)), whole)
    integers = [torch.tensor(number) for number in (3, 0, 8)]
    params = op.entry("torch").prepare(*tensors(values), *integers[:2])
    second = [x[1:] for x in tensors(values)]
    same(dispatch(PROGRAM, (*second, *integers), params)[0], whole[1:])


@pytest.mark.parametrize("count", [15, 29, MOST_OPERANDS])
@pytest.mark.parametrize("compute", [gated, squared_sum])
def test_what_is_compiled_ahead_is_what_calls_come_to(count: int, compute: Any) -> None:
    found = op_of(count, compute)._example
    assert found is not None
    requests = list(usual_requests(found, "float32"))
    assert requests
    for request in requests:
        assert request.words()
        assert len(request.dtypes) == len(request.program.operands) + len(request.program.results)


@pytest.mark.parametrize("length", [260, 500, 1100])
def test_a_chain_of_reductions_runs_or_is_refused_in_words(length: int) -> None:
    def chained(x: bridge.Full) -> Any:
        for _ in range(length):
            x = x - bl.mean(x)
        return x

    op, x = bridge.op(chained), torch.ones(2, 8)
    if length == 260:
        assert op(x).abs().max() == 0.0
        return
    words = r"chained: the program has [0-9,]+ (instructions|phases)"
    with pytest.raises(bl.ProgramTooLarge, match=words):
        op(x)
