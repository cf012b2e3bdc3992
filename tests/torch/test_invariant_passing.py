"""Calls that `bridge.torch.invariant` leaves to torch, and dtypes that torch decides about."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import bridge.torch as bt
from bridge.torch._invariant.tensors import _answer
from tests.torch.invariant_forms import (
    DTYPES,
    numbers,
)


def outcome(call: Any) -> Any:
    """Returns the result of a call, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def cases_that_pass() -> dict[str, tuple[Any, str]]:
    x, labels = numbers(4, 6), torch.tensor([0, 5, 2, 1])
    whole = torch.arange(24).reshape(4, 6)

    class Own(torch.Tensor):
        pass

    return {
        "integers": (lambda: F.softmax(whole, -1, dtype=torch.int64), "dtype"),
        "integers to float": (lambda: F.softmax(whole, -1, dtype=torch.float32), "dtype"),
        "complex": (lambda: torch.mean(x + 1j, -1), "dtype"),
        "a complex dtype": (lambda: torch.mean(x, -1, dtype=torch.complex64), "dtype"),
        "meta": (lambda: F.gelu(x.to("meta")), "device"),
        "sparse": (lambda: torch.softmax(x.to_sparse(), -1), "sparse"),
        "nested": (lambda: torch.softmax(torch.nested.nested_tensor([x, x[:2]]), -1), "nested"),
        "no dimension": (lambda: torch.softmax(torch.tensor(2.0), 0), "dimension"),
        "a subclass": (lambda: F.gelu(x.as_subclass(Own)), "__torch_function__"),
        "no dim": (lambda: F.softmax(x), "dim is None"),
        "eps of 0": (lambda: F.layer_norm(x, (6,), eps=0.0), "eps"),
        "size_average": (lambda: F.cross_entropy(x, labels, size_average=True), "size_average"),
        "an out of another shape": (lambda: torch.mean(x, -1, out=torch.empty(0)), "out"),
        "an operator": (lambda: torch.ops.aten.softmax.int(x, -1), "called as an operator"),
        "a product": (lambda: x @ x.T, "no kernel"),
        "attention": (lambda: F.scaled_dot_product_attention(x, x, x), "no kernel"),
    }  # fmt: skip


@pytest.mark.parametrize("case", cases_that_pass())
def test_a_call_that_passes_by_is_torchs_own_and_named(case: str) -> None:
    call, reason = cases_that_pass()[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(call)
        with bt.invariant(report=True) as context:
            found = outcome(call)
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    else:
        assert found.dtype == expected.dtype
        assert found.layout == expected.layout
        if not (found.is_meta or found.is_nested):
            assert torch.equal(found.to_dense(), expected.to_dense())
    assert not context.caught
    assert any(reason in why for _, why in context.passed)
    assert reason in str(context)


WRONG: dict[str, Any] = {
    "a missing dim": lambda x: torch.softmax(x),  # type: ignore[call-overload]
    "an unknown argument": lambda x: torch.softmax(x, -1, keepdim=True),  # type: ignore[call-overload]
    "twice": lambda x: torch.softmax(x, -1, dim=-1),  # type: ignore[call-overload]
    "too many": lambda x: F.silu(x, False, 1),  # type: ignore[call-arg]
    "NumPy's name in Python": lambda x: F.softmax(x, axis=-1),  # type: ignore[call-arg]
    "a dim beyond": lambda x: x.softmax(2),
    "a dim twice": lambda x: x.mean((0, 0)),
    "a dim that is no number": lambda x: x.mean(1.5),
    "a dim that is a truth value": lambda x: F.softmax(x, True, dtype=torch.float64),
    "a shape of fractions": lambda x: F.rms_norm(x, (6.0,)),
    "a shape that does not fit": lambda x: F.layer_norm(x, (5,)),
    "a weight that does not fit": lambda x: F.rms_norm(x, (6,), torch.ones(5)),
    "a weight of another dtype": lambda x: F.layer_norm(x, (6,), torch.ones(6).double()),
    "an unknown approximation": lambda x: F.gelu(x, approximate="fast"),
    "a label out of range": lambda x: F.cross_entropy(x, torch.tensor([0, 6, 1, 2])),
    "labels of another shape": lambda x: F.cross_entropy(x, torch.tensor([0, 1])),
    "labels of 32 bits": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int32)),
    "an unknown reduction": lambda x: F.cross_entropy(x, torch.zeros(4).long(), reduction="max"),
    "smoothing beyond 1": lambda x: F.cross_entropy(x, torch.zeros(4).long(), label_smoothing=2.0),
    "an index for probabilities": lambda x: F.cross_entropy(x, x.softmax(-1), ignore_index=1),
    "in place of a leaf": lambda x: F.silu(x.clone().requires_grad_(), inplace=True),
    "in place of repeated memory": lambda x: F.silu(x[:, :1].expand(4, 6), inplace=True),
    "out of a gradient": lambda x: torch.mean(x.clone().requires_grad_(), -1, out=torch.empty(4)),
    "out of another dtype": lambda x: torch.softmax(x, -1, out=torch.empty(4, 6).half()),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_torchs_own(case: str) -> None:
    x = numbers(4, 6)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        WRONG[case](x)
    with bt.invariant(), pytest.raises(Exception) as found:  # noqa: PT011
        WRONG[case](x)
    assert found.type is expected.type
    assert str(found.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("of_weight", DTYPES, ids=str)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_mixed_dtypes_and_autocast(dtype: Any, of_weight: Any, autocast: Any) -> None:
    x, weight = numbers(4, 6, dtype=dtype), numbers(6, dtype=of_weight)
    target = numbers(4, 6, seed=1).softmax(-1).to(of_weight)
    labels = torch.tensor([0, 5, 2, 1])
    calls = {
        "softmax": lambda: x.softmax(-1),
        "log_softmax": lambda: x.log_softmax(-1),
        "mean": lambda: x.mean(-1),
        "gelu": lambda: F.gelu(x),
        "layer_norm": lambda: F.layer_norm(x, (6,), weight, weight),
        "rms_norm": lambda: F.rms_norm(x, (6,), weight, 1e-3),
        "cross_entropy": lambda: F.cross_entropy(x, labels, weight),
        "probabilities": lambda: F.cross_entropy(x, target),
    }
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        for name, call in calls.items():
            expected = outcome(call)
            if isinstance(expected, Exception):
                with bt.invariant():
                    found = outcome(call)
                assert (type(found), str(found)) == (type(expected), str(expected)), name
                continue
            with bt.invariant(report=True) as context:
                result = call()
            assert not context.passed, (name, context.passed)
            assert result.dtype == expected.dtype, name
            # Torch rounds the logarithms of probabilities to the dtype of x.
            eps = max(torch.finfo(result.dtype).eps, torch.finfo(x.dtype).eps)
            torch.testing.assert_close(result, expected, rtol=8 * eps, atol=8 * eps)


def test_a_question_that_failed_is_asked_again() -> None:
    """A mode of the user's can refuse the call by which the context asks torch for a dtype."""

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            if "layer_norm" in str(func):
                raise RuntimeError("refused")
            return func(*args, **(kwargs or {}))

    x, weight = numbers(4, 6, dtype=torch.float16), numbers(6)
    _answer.cache_clear()
    with bt.invariant(report=True) as context:
        with Refusing(), pytest.raises(RuntimeError, match="refused"):
            F.layer_norm(x, (6,), weight, weight)
        F.layer_norm(x, (6,), weight, weight)
    assert context.caught == {"layer_norm": 1}
