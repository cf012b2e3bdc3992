"""Cross-entropy under the names of Megatron-LM, apex and Liger-Kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bridge.torch import apex, liger, megatron


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (torch.randn(6, 4, 37) * 3).to(dtype).requires_grad_()
    return logits, torch.randint(0, 37, (6, 4))


def reference(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    """Of each row, in float64."""
    rows = logits.double().flatten(0, -2)
    found = torch.nn.functional.cross_entropy(rows, labels.flatten(), reduction="none", **options)
    return found.view(labels.shape)


def close(found: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Values, and gradients towards the logits for random cotangents."""
    unit = {torch.float32: 1e-6, torch.bfloat16: 8e-3}
    torch.testing.assert_close(
        found.double(), expected, rtol=unit[found.dtype], atol=10 * unit[found.dtype]
    )
    g = torch.randn_like(expected)
    (a,) = torch.autograd.grad(found, logits, g.to(found.dtype), retain_graph=True)
    (b,) = torch.autograd.grad(expected, logits, g.to(found.dtype).double(), retain_graph=True)
    assert a.dtype == logits.dtype
    torch.testing.assert_close(a, b, rtol=2 * unit[a.dtype], atol=4 * unit[a.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_megatron(dtype: torch.dtype) -> None:
    logits, labels = drawn(dtype)
    for found in (
        megatron.fused_vocab_parallel_cross_entropy(logits, labels, None),
        megatron._VocabParallelCrossEntropy.apply(logits, labels, None),
    ):
        assert found.dtype == torch.float32
        close(found, reference(logits, labels), logits)
    smoothed = megatron.vocab_parallel_cross_entropy(logits, labels, 0.1)
    close(smoothed, reference(logits, labels, label_smoothing=0.1 * 37 / 36), logits)
    assert issubclass(megatron._VocabParallelCrossEntropy, torch.autograd.Function)


@pytest.mark.parametrize("half_to_float", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_apex(dtype: torch.dtype, half_to_float: bool) -> None:
    logits, labels = drawn(dtype)
    function = apex.SoftmaxCrossEntropyLoss
    assert issubclass(function, torch.autograd.Function)
    found = function.apply(logits, labels, 0.1, 5, half_to_float)
    assert found.dtype == (torch.float32 if half_to_float else dtype)
    close(found, reference(logits, labels, label_smoothing=0.1, ignore_index=5), logits)
    assert torch.equal(function.apply(logits, labels), function.apply(logits, labels, 0.0, 0))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_liger(reduction: str) -> None:
    logits, labels = drawn()
    rows, labels = logits.flatten(0, 1), labels.flatten()
    capped = 8.0 * torch.tanh(rows.double() / 8.0)
    z = 1e-3 * torch.logsumexp(capped, -1).square()
    z = torch.where(labels == 3, 0.0, z)
    plain = reference(capped, labels, ignore_index=3, label_smoothing=0.1)
    reduced = {
        "none": lambda x: x,
        "sum": torch.sum,
        "mean": lambda x: x.sum() / (labels != 3).sum(),
    }[reduction]
    options: Any = {
        "ignore_index": 3,
        "lse_square_scale": 1e-3,
        "label_smoothing": 0.1,
        "reduction": reduction,
        "softcap": 8.0,
    }
    loss = liger.LigerCrossEntropyLoss(**options)
    close(loss(rows, labels), reduced(plain + z), logits)
    both = liger.liger_cross_entropy(rows, labels, return_z_loss=True, **options)
    close(both[0], reduced(plain + z), logits)
    close(both[1], reduced(z), logits)
    hidden = torch.randn(24, 9, requires_grad=True)
    weight, bias = torch.randn(37, 9), torch.randn(37)
    linear = liger.LigerFusedLinearCrossEntropyLoss(**options)
    found = linear(weight, hidden, labels, bias)
    expected = loss(hidden @ weight.T + bias, labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        liger.liger_fused_linear_cross_entropy(hidden, weight, labels, bias, **options), found
    )
    g = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(found, hidden, g), torch.autograd.grad(expected, hidden, g), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("name", "value"), [("weight", torch.ones(3)), ("return_token_accuracy", True)]
)
def test_what_there_is_no_equivalent_of(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"LigerCrossEntropyLoss: {name} is given, expected None"):
        liger.LigerCrossEntropyLoss(**{name: value})
