"""bridge.check passes for ops of all roles, and finds planted faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from bridge.declared import DeclaredOp
from bridge.lang import operations
from tests.declared import ops
from tests.declared.ops import OTHERS, SEVEN
from tests.declared.test_pinned import softmax, softmax_vjp
from tests.frameworks import DTYPES, FRAMEWORKS, numpy_dtype
from tests.lang import declarations
from tests.lang.arrays import draw

PROMISES = 15


def example(rng: Any, op: Any, space: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    drawn = [draw(rng, operand, space) for operand in op._example.program.operands]
    return [a.astype(numpy_dtype(dtype)) if a.dtype == np.float64 else a for a in drawn]


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SEVEN, ids=lambda op: op.__name__)
def test_an_op_that_nobody_differentiated_by_hand(op: Any, dtype: str, rng: Any) -> None:
    report = bridge.check(op, *example(rng, op, (2, 3, 33), dtype), quiet=True)
    assert report.ok
    assert len(report.rows) == PROMISES
    for row in report.rows:
        assert row.compared
        assert not row.skipped


@pytest.mark.long
def test_a_rule_of_its_own(rng: Any) -> None:
    op = bridge.op(keep=("y",), vjp=softmax_vjp)(softmax)
    assert bridge.check(op, *example(rng, op, (4, 9)), quiet=True).ok


@bridge.op
def log_probability(x: bridge.Full, labels: bridge.PerRow[int]):
    return bl.sum(bl.where(bl.column() == labels, bl.log_softmax(x), -0.0)), bl.logsumexp(x)


def test_log_sums(rng: Any) -> None:
    """A constant in their derivatives is the largest number, which depends on the operand."""
    operands = rng.normal(size=(4, 9)).astype(np.float32), rng.integers(0, 9, 4)
    assert bridge.check(log_probability, *operands, quiet=True).ok


@bridge.op
def normed(x: bridge.Full):
    return x * bl.stop_gradient(bl.rsqrt(bl.mean(x * x) + 1e-6))


@bridge.op
def narrowed(x: bridge.Full):
    return bl.rounded(x, "bfloat16") * 2.0


@pytest.mark.parametrize("op", [normed, narrowed], ids=lambda op: op.__name__)
def test_derivatives_that_are_no_slopes(op: Any, rng: Any) -> None:
    assert bridge.check(op, rng.normal(size=(4, 16)).astype(np.float32), quiet=True).ok


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("space", [(3, 8), (7,)], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_ops_of_every_role(name: str, space: tuple[int, ...], rng: Any) -> None:
    op = OTHERS[name]
    report = bridge.check(op, *example(rng, op, space), quiet=True)
    skipped = {row.promise: row.skipped for row in report.rows if row.skipped}
    assert set(skipped) == ({"a row alone"} if name == "dropped" else set())


@pytest.mark.long
def test_examples_of_either_framework(rng: Any, capsys: Any) -> None:
    x, weight = example(rng, ops.rms_norm, (2, 5), "bfloat16")
    tensor, array = FRAMEWORKS[0].array(x), jnp.asarray(weight)
    report = bridge.check(ops.rms_norm, tensor, weight=array, eps=1e-3)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    assert printed.startswith("rms_norm(x: bfloat16 [2, 5], weight: bfloat16 [5])\n")
    assert printed.count("holds") == PROMISES


def scaled(factor_of: Callable[..., float]) -> Callable[..., Any]:
    """Returns rms_norm in one framework with x multiplied by a power of two, or nearly by one."""

    def broken(function: Any) -> Any:
        return lambda x, weight, **static: function(x * factor_of(x), weight, **static)

    return broken


def with_an_ulp(function: Any) -> Any:
    def broken(*operands: Any, **static: Any) -> Any:
        y = function(*operands, **static)
        return y * (1 + float(jnp.finfo(y.dtype).eps))

    return broken


def off_by_64_ulps(function: Any) -> Any:
    return lambda *operands, **static: function(*operands, **static) * (1 + 2.0**-17)


def writing(function: Any) -> Any:
    def broken(x: Any, weight: Any, **static: Any) -> Any:
        y = function(x, weight, **static)
        x.detach().numpy()[...] = 0.0
        return y

    return broken


def branching(function: Any) -> Any:
    def broken(x: Any, weight: Any, **static: Any) -> Any:
        return function(x if x.sum() > 1e9 else 1 * x, weight, **static)

    return broken


def raising_without_rows(function: Any) -> Any:
    def broken(x: Any, weight: Any, **static: Any) -> Any:
        if 0 in x.shape:
            raise ValueError("no rows")
        return function(x, weight, **static)

    return broken


def in_float32(function: Any) -> Any:
    def broken(x: Any, weight: Any, **static: Any) -> Any:
        y = function(x, weight, **static)
        is_tensor = isinstance(y, torch.Tensor)
        return y if y.dtype.itemsize > 2 else y.float() if is_tensor else y.astype(np.float32)

    return broken


def without_nan(function: Any) -> Any:
    def broken(x: Any, weight: Any, **static: Any) -> Any:
        y = function(x, weight, **static)
        where = torch.where if isinstance(y, torch.Tensor) else jnp.where
        return where(y == y, y, 0.0)

    return broken


class Wrong(torch.autograd.Function):
    """rms_norm with wrong tangents, and wrong results under vmap."""

    @staticmethod
    def forward(x: Any, weight: Any) -> Any:
        return ops.rms_norm.torch(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        return torch.func.vjp(ops.rms_norm.torch, *ctx.saved_tensors)[1](cotangent)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return 2 * torch.func.jvp(ops.rms_norm.torch, ctx.saved_tensors, tangents)[1]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, weight: Any) -> Any:
        first = Wrong.apply(*(a if d is None else a[0] for a, d in zip((x, weight), in_dims)))  # noqa: B905
        return first.expand(info.batch_size, *first.shape), 0


def with_derivatives(function: Any, order: int) -> Any:
    """Returns the function without derivatives beyond this order."""

    class Last(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Any) -> Any:
            ctx.save_for_backward(*operands)
            return function(*operands)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            count = len(ctx.saved_tensors)
            given = (*ctx.saved_tensors, *cotangents)

            def pulled(*given: Any) -> Any:
                return torch.func.vjp(function, *given[:count])[1](
                    given[count:] if len(cotangents) > 1 else given[count]
                )

            if order == 1:
                return pulled(*(a.detach() for a in given))
            return with_derivatives(pulled, order - 1).apply(*given)

    return Last


def applied(function: Any) -> Callable[..., Any]:
    return lambda _: lambda x, weight, eps: function.apply(x, weight)


BOTH = ("torch", "jax")
NEAR_1 = 1 + 2.0**-12
BROKEN = {
    "torch has the bits of JAX": (("jax",), with_an_ulp),
    "instruction sets and threads": (
        ("torch",),
        scaled(lambda x: NEAR_1 if torch.get_num_threads() == 3 else 1.0),
    ),
    "NumPy arrays": (("_numpy",), with_an_ulp),
    "a row alone": (BOTH, scaled(lambda x: 1.0 if x.shape[0] == 1 else NEAR_1)),
    "reverse mode": (
        ("reference",),
        lambda function: lambda x, weight, **static: function(x**1.001, weight, **static),
    ),
    "reverse is transposed forward, forward mode, vmap": (("torch",), applied(Wrong)),
    "second order": (("torch",), applied(with_derivatives(ops.rms_norm.torch, 1))),
    "third order": (("torch",), applied(with_derivatives(ops.rms_norm.torch, 2))),
    "compilers": (("torch",), branching),
    "layouts": (("torch",), scaled(lambda x: 1.0 if x.is_contiguous() else NEAR_1)),
    "dtypes": (BOTH, in_float32),
    "dtypes, sizes": (BOTH, off_by_64_ulps),
    "special values": (BOTH, without_nan),
    "torch has the bits of JAX, special values": (("torch",), writing),
    "sizes": (BOTH, raising_without_rows),
}


@pytest.mark.long
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str, rng: Any, capsys: Any) -> None:
    members, break_it = BROKEN[name]
    right = ops.rms_norm
    wrong = {m: property(lambda _, m=m: break_it(getattr(right, m))) for m in members}
    op = type("BrokenOp", (DeclaredOp,), wrong)(right.declaration.function)
    x, weight = (np.abs(a) for a in example(rng, op, (2, 9)))
    with pytest.raises(AssertionError) as raised:
        bridge.check(op, x, weight)
    lines = capsys.readouterr().out.splitlines()
    failed = {line[2:32].strip(): line[42:] for line in lines if line[33:39] == "fails "}
    assert set(name.split(", ")) <= set(failed)
    first, found = next(iter(failed.items()))
    assert str(raised.value) == f"{lines[0]}: {first}: {found}"
    if break_it is off_by_64_ulps:
        assert failed["dtypes"].startswith("float32: result 0: ")
    if break_it is writing:
        assert "operands before and after torch" in failed["special values"]


@pytest.mark.long
def test_a_wrong_rule_is_found(rng: Any, monkeypatch: Any) -> None:
    """All derivatives use the rule: forward and reverse mode agree, in both frameworks."""
    scalar = operations.BY_NODE["rsqrt", None]
    wrong = replace(scalar, rule=lambda f, y, x: [-0.4 * (y * y * y)])
    monkeypatch.setitem(operations.BY_NODE, ("rsqrt", None), wrong)
    # No other test has derivatives of a program with this number.
    with pytest.raises(AssertionError, match="reverse mode: torch along a direction"):
        bridge.check(ops.rms_norm, *example(rng, ops.rms_norm, (2, 9)), eps=0.123, quiet=True)


def test_what_is_no_declared_op_is_refused(rng: Any) -> None:
    with pytest.raises(TypeError, match=r"got function, expected a result of bridge\.op"):
        bridge.check(declarations.rms_norm, np.ones((2, 3)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"row_dot\(x: float64 \[0, 3\], .* has no elements"):
        bridge.check(ops.row_dot, np.ones((0, 3)), np.ones((0, 3)))
    with pytest.raises(ValueError, match=r"row_dot: y has shape \[3\], expected \[2, 3\]"):
        bridge.check(ops.row_dot, np.ones((2, 3)), np.ones(3))
    with pytest.raises(TypeError, match="row_dot: x has dtype int64"):
        bridge.check(ops.row_dot, np.ones((2, 3), int), np.ones((2, 3)))


@pytest.mark.long
@pytest.mark.parametrize("missing", ["torch", "jax"])
def test_one_framework_is_enough(missing: str) -> None:
    code = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError("No module", name={missing!r})
sys.meta_path.insert(0, Missing())
import numpy as np, bridge
from bridge import lang as bl

@bridge.op
def row_dot(x: bridge.Full, y: bridge.Full):
    return bl.sum(x * y)

report = bridge.check(row_dot, np.ones((2, 3), "float16"), np.ones((2, 3)), quiet=True)
print([row.skipped for row in report.rows if row.skipped])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    other = "jax" if missing == "torch" else "torch"
    assert result.stdout.strip() == f"['{other} alone is installed']"
