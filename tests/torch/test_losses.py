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
    """Returns the loss of each row, in float64."""
    rows = logits.double().flatten(0, -2)
    found = torch.nn.functional.cross_entropy(rows, labels.flatten(), reduction="none", **options)
    return found.view(labels.shape)


def close(found: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Compares values, and gradients towards the logits for random cotangents."""
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
    more = liger.LigerCrossEntropyLoss(return_z_loss=True, **options)(rows, labels)
    close(more.loss, reduced(plain + z), logits)
    close(more.z_loss, reduced(z), logits)
    assert more.token_accuracy is more.predicted_tokens is None
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_what_liger_predicts(reduction: str, dtype: torch.dtype) -> None:
    logits, labels = drawn(dtype)
    rows, labels = logits.detach().flatten(0, 1), labels.flatten()
    largest = torch.as_tensor(rows.double().numpy().argmax(-1))
    labels[::2] = largest[::2]
    labels[::5] = -100
    options = {"reduction": reduction, "return_token_accuracy": True}
    found = liger.liger_cross_entropy(rows, labels, return_predicted_tokens=True, **options)
    is_kept = labels != -100
    assert torch.equal(found.predicted_tokens, torch.where(is_kept, largest, -1))
    hits = (largest == labels).float()
    expected = hits if reduction == "none" else hits[is_kept].mean()
    torch.testing.assert_close(found.token_accuracy, expected)
    assert found.z_loss is None
    alone = liger.LigerCrossEntropyLoss(**options)(rows, labels)
    assert torch.equal(alone.token_accuracy, found.token_accuracy)
    assert alone.predicted_tokens is None
    nothing = liger.liger_cross_entropy(rows[:0], labels[:0], **options)
    assert nothing.token_accuracy.count_nonzero() == 0


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_what_liger_predicts_for_labels_of_any_dtype(dtype: str) -> None:
    """The label 156 of uint8, which has the bits of -100, is not ignored."""
    logits = torch.randn(3, 200)
    labels = torch.tensor([0, 156 if dtype != "int8" else 56, 7])
    options = {"lse_square_scale": 0.1, "return_z_loss": True, "return_predicted_tokens": True}
    run = liger.LigerCrossEntropyLoss(return_token_accuracy=True, **options)
    found, expected = run(logits, labels.to(getattr(torch, dtype))), run(logits, labels)
    for name in ("loss", "z_loss", "token_accuracy", "predicted_tokens"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_functions_of_liger(reduction: str, dtype: torch.dtype) -> None:
    """Functions are called by position, by `apply`, and by `forward` and `backward`."""
    logits, labels = drawn(dtype)
    rows, labels = logits.flatten(0, 1).detach().requires_grad_(), labels.flatten()
    hidden = torch.randn(24, 9).to(dtype).requires_grad_()
    weight, bias = (torch.randn(*s).to(dtype).requires_grad_() for s in ((37, 9), (37,)))
    options = (5, 1e-3, 0.1, reduction, 8.0)
    named = dict(
        zip(
            ("ignore_index", "lse_square_scale", "label_smoothing", "reduction", "softcap"),
            options,
            strict=True,
        )
    )
    calls: list[Any] = [
        (
            liger.LigerCrossEntropyFunction,
            (rows, labels, None, *options, True, True, True),
            (rows,),
            liger.liger_cross_entropy(rows, labels, **named),
        ),
        (
            liger.LigerFusedLinearCrossEntropyFunction,
            (hidden, weight, labels, bias, None, *options, False, None, False, False, False),
            (hidden, weight, bias),
            liger.LigerFusedLinearCrossEntropyLoss(**named)(weight, hidden, labels, bias),
        ),
    ]
    for function, arguments, inputs, expected in calls:
        assert issubclass(function, torch.autograd.Function)

        class Caller(torch.autograd.Function):
            forward = staticmethod(function.forward)
            backward = staticmethod(function.backward)

        g = torch.randn_like(expected)
        gradients = torch.autograd.grad(expected, inputs, g)
        unit = torch.finfo(dtype).eps
        for apply in (function.apply, Caller.apply):
            loss, *others = apply(*arguments)
            assert torch.equal(loss, expected)
            assert [x is None for x in others] == [function is not calls[0][0]] * 3
            for one, other in zip(torch.autograd.grad(loss, inputs, g), gradients, strict=True):
                assert one.dtype == dtype
                torch.testing.assert_close(one, other, rtol=4 * unit, atol=4 * unit)


@pytest.mark.parametrize("formula", ["pytorch", "megatron"])
@pytest.mark.parametrize("mode", ["global", "partition"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_of_split_rows_of_liger(formula: str, mode: str, dtype: torch.dtype) -> None:
    """The group has one rank; `tests/distributed` has several."""
    logits, labels = drawn(dtype)
    smoothing = 0.1 * 37 / 36 if formula == "megatron" else 0.1
    module = liger.LigerVocabParallelCrossEntropy(5, 0.1, "none", formula, mode)
    found = module(logits, labels)
    assert found.dtype == torch.float32
    close(found, reference(logits, labels, label_smoothing=smoothing, ignore_index=5), logits)
    apply = liger.LigerVocabParallelCEFunction.apply
    assert torch.equal(apply(logits, labels, None, 5, 0.1, formula, mode), found)
    assert f"label_smoothing_formula={formula!r}" in repr(module)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduction": "mean"}, "reduction is 'mean', expected 'none'"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0, expected a number from 0 on"),
        ({"label_smoothing_formula": "nemo"}, "formula is 'nemo', expected 'pytorch' or"),
        ({"label_smoothing_mode": "local"}, "mode is 'local', expected 'global' or 'partition'"),
    ],
)
def test_options_of_split_rows_of_liger(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        liger.LigerVocabParallelCrossEntropy(**options)


class TwoRanks:
    """A group of two ranks, for checks before its use."""

    def size(self) -> int:
        return 2


def test_smoothing_that_is_negative_or_more_than_all() -> None:
    for columns in (4, 1):
        logits, labels = torch.zeros(2, columns), torch.zeros(2, dtype=torch.int64)
        for smoothing in (0.9, -0.5):
            words = f"label_smoothing is {smoothing}, expected 0 to {columns - 1} / {columns}"
            with pytest.raises(ValueError, match=words):
                megatron.vocab_parallel_cross_entropy(logits, labels, smoothing)


def test_the_z_loss_of_capped_logits_of_16_bits() -> None:
    logits, labels = drawn(torch.bfloat16)
    rows, flat = logits.detach().flatten(0, -2), labels.flatten()
    found = liger.liger_cross_entropy(
        rows, flat, lse_square_scale=0.1, softcap=5.0, return_z_loss=True
    )
    capped = 5 * torch.tanh(rows.double() / 5)
    expected = 0.1 * capped.logsumexp(-1).square().mean()
    torch.testing.assert_close(found.z_loss.double(), expected, rtol=1e-6, atol=0)


def test_smoothing_of_a_part_alone() -> None:
    loss = liger.LigerVocabParallelCrossEntropy(
        label_smoothing=0.1, label_smoothing_mode="partition"
    )
    with pytest.raises(ValueError, match="label_smoothing_mode is 'partition', expected 'global'"):
        loss(torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), TwoRanks())


@pytest.mark.parametrize("name", ["ce_weight", "return_z_loss", "use_token_scaling"])
def test_what_the_linear_loss_refuses(name: str) -> None:
    with pytest.raises(ValueError, match=f"LigerFusedLinearCrossEntropyLoss: {name} is given"):
        liger.LigerFusedLinearCrossEntropyLoss(**{name: True})
    hidden, labels = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=f"LigerFusedLinearCrossEntropyFunction: {name} is given"):
        liger.liger_fused_linear_cross_entropy(hidden, torch.ones(4, 3), labels, **{name: True})


def test_what_there_is_no_equivalent_of() -> None:
    weight, labels = torch.ones(3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="LigerCrossEntropyLoss: weight is given, expected None"):
        liger.LigerCrossEntropyLoss(weight)
    with pytest.raises(ValueError, match="LigerCrossEntropyFunction: weight is given"):
        liger.LigerCrossEntropyFunction.apply(torch.ones(2, 3), labels, weight)
    with pytest.raises(ValueError, match="reduction is 'max', expected"):
        liger.LigerCrossEntropyLoss(reduction="max")
    loss = liger.LigerCrossEntropyLoss(return_token_accuracy=True)
    assert (loss.weight, loss.return_token_accuracy, loss.return_z_loss) == (None, True, False)


@pytest.mark.parametrize("name", ["size_average", "reduce"])
def test_liger_refuses_what_torch_has_deprecated(name: str) -> None:
    logits, labels = drawn()
    with pytest.raises(ValueError, match=f"{name} is given, expected None"):
        liger.liger_cross_entropy(logits[0], labels[0], **{name: False})
