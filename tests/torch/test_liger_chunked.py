"""Drop-ins for Liger-Kernel's chunked losses, against their formulas in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from bridge.torch import liger

PAIRS, TOKENS, FEATURES, COLUMNS = 3, 7, 5, 11
BETA = 0.3


def drawn(rows: int = 2 * PAIRS) -> dict[str, Tensor]:
    torch.manual_seed(7)
    x, ref = torch.randn(2, rows, TOKENS, FEATURES)
    weight, ref_weight = torch.randn(2, COLUMNS, FEATURES)
    bias, ref_bias = torch.randn(2, COLUMNS)
    target = torch.randint(0, COLUMNS, (rows, TOKENS))
    target[1, 3:] = -100
    found = {"x": x, "weight": weight, "bias": bias}
    found |= {"ref": ref, "ref_weight": ref_weight, "ref_bias": ref_bias}
    return {**{k: v.double() for k, v in found.items()}, "target": target}


def log_probs(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """Returns log-probabilities of tokens, 0 for ignored ones."""
    every = (x @ weight.T + bias).log_softmax(-1)
    found = every.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    return torch.where(target == -100, 0.0, found)


def of_sequences(given: dict[str, Tensor], average: bool, prefix: str = "") -> Tensor:
    x = given["ref" if prefix else "x"]
    layer = given[f"{prefix}weight"], given[f"{prefix}bias"]
    total = log_probs(x, *layer, given["target"]).sum(-1)
    return total / (given["target"] != -100).sum(-1) if average else total


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:PAIRS], x[PAIRS:]


def nll(given: dict[str, Tensor]) -> Tensor:
    logits = given["x"][:PAIRS] @ given["weight"].T + given["bias"]
    return cross_entropy(logits.flatten(0, 1), given["target"][:PAIRS].flatten())


def formula(kind: str, given: dict[str, Tensor]) -> Tensor:
    if kind == "dpo":
        c, r = halves(of_sequences(given, False) - of_sequences(given, False, "ref_").detach())
        return -logsigmoid(BETA * (c - r)).mean()
    if kind == "orpo":
        c, r = halves(of_sequences(given, True))
        odds = [(x.exp() / (1 - x.exp())).log() for x in (c, r)]
        return nll(given) - BETA * logsigmoid(odds[0] - odds[1]).mean()
    if kind == "simpo":
        c, r = halves(of_sequences(given, True))
        return 0.5 * nll(given) - logsigmoid(BETA * (c - r) - 0.4).mean()
    c, r = halves(of_sequences(given, False))
    z = BETA * (c - r)
    return nll(given) - (0.9 * logsigmoid(z) + 0.1 * logsigmoid(-z)).mean()


def module(kind: str) -> Any:
    how: dict[str, Any] = {"beta": BETA, "compiled": False}
    return {
        "dpo": lambda: liger.LigerFusedLinearDPOLoss(**how),
        "orpo": lambda: liger.LigerFusedLinearORPOLoss(**how),
        "simpo": lambda: liger.LigerFusedLinearSimPOLoss(alpha=0.5, gamma=0.4, **how),
        "cpo": lambda: liger.LigerFusedLinearCPOLoss(label_smoothing=0.1, **how),
    }[kind]()


def call(kind: str, given: dict[str, Tensor]) -> Any:
    operands = [given["weight"], given["x"], given["target"], given["bias"]]
    if kind == "dpo":
        operands += [given["ref"], given["ref_weight"], given["ref_bias"]]
    return module(kind)(*operands)


def near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    unit = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}[dtype]
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=50 * unit * max(largest, 0.1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["dpo", "orpo", "simpo", "cpo"])
def test_values_and_gradients_of_preferences(kind: str, dtype: torch.dtype) -> None:
    """The norms of the gradients, too, are those of the formula."""
    exact = drawn()
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in exact.items()}
    wanted = ("x", "weight", "bias")
    made = []
    for each, run in ((exact, formula), (given, lambda k, g: call(k, g)[0])):
        for name in wanted:
            each[name].requires_grad_()
        loss = run(kind, each)
        made.append([loss.detach(), *torch.autograd.grad(2.5 * loss, [each[k] for k in wanted])])
    for found, expected in zip(made[1], made[0], strict=True):
        near(found, expected, dtype)


def test_statistics_of_preferences() -> None:
    given = drawn()
    _, shown = call("dpo", given)
    found, ref = of_sequences(given, False), of_sequences(given, False, "ref_")
    logits = given["x"] @ given["weight"].T + given["bias"]
    expected = [*halves(found), *[half.mean() for half in halves(logits)]]
    expected += [torch.zeros(()).double(), *halves(BETA * (found - ref))]
    for x, y in zip(shown, expected, strict=True):
        assert not x.requires_grad
        torch.testing.assert_close(x, y)


DPO = {
    "hinge": lambda c, r: torch.relu(1 - BETA * (c - r)),
    "exo_pair": lambda c, r: sum(
        torch.sigmoid(s * BETA * (c - r)) * (logsigmoid(s * BETA * (c - r)) - torch.tensor(p).log())
        for s, p in ((1, 0.8), (-1, 0.2))
    ),
    "nca_pair": lambda c, r: (
        -logsigmoid(BETA * c) - 0.5 * logsigmoid(-BETA * c) - 0.5 * logsigmoid(-BETA * r)
    ),
    "robust": lambda c, r: (
        (-0.8 * logsigmoid(BETA * (c - r)) + 0.2 * logsigmoid(-BETA * (c - r))) / 0.6
    ),
    "bco_pair": lambda c, r: -logsigmoid(BETA * c) - logsigmoid(-BETA * r),
    "sppo_hard": lambda c, r: (c - 0.5 / BETA) ** 2 + (r + 0.5 / BETA) ** 2,
    "apo_zero": lambda c, r: 1 - torch.sigmoid(BETA * c) + torch.sigmoid(BETA * r),
    "apo_down": lambda c, r: torch.sigmoid(BETA * c) + 1 - torch.sigmoid(BETA * (c - r)),
}


@pytest.mark.parametrize("kind", DPO)
def test_other_losses_of_dpo(kind: str) -> None:
    given = drawn()
    loss = liger.LigerFusedLinearDPOLoss(beta=BETA, loss_type=kind, label_smoothing=0.2)
    found, _ = loss(
        *[given[k] for k in ("weight", "x", "target", "bias", "ref", "ref_weight", "ref_bias")]
    )
    c, r = halves(of_sequences(given, False) - of_sequences(given, False, "ref_"))
    torch.testing.assert_close(found, DPO[kind](c, r).mean(), rtol=1e-6, atol=1e-6)


def test_unpaired_answers() -> None:
    given, labels = drawn(), torch.tensor([True, False, True, False, True, True])
    kl = torch.tensor([0.2]).double()
    given["x"].requires_grad_()
    loss, shown = liger.LigerFusedLinearKTOLoss(beta=BETA, use_ref_model=True)(
        given["x"],
        given["weight"],
        given["target"],
        given["bias"],
        labels,
        given["ref"],
        given["ref_weight"],
        given["ref_bias"],
        kl,
    )
    d = of_sequences(given, False) - of_sequences(given, False, "ref_").detach()
    expected = (1 - torch.sigmoid(BETA * (d - kl) * torch.where(labels, 1, -1))).mean()
    torch.testing.assert_close(loss, expected)
    for x, y in zip(*(torch.autograd.grad(z, given["x"]) for z in (loss, expected)), strict=True):
        torch.testing.assert_close(x, y)
    logits = given["x"] @ given["weight"].T + given["bias"]
    found = of_sequences(given, False)
    sums = [x[side].sum() for x in (found, logits, BETA * d) for side in (labels, ~labels)]
    for x, y in zip(shown, sums, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_distillation_from_a_teacher_with_more_columns(beta: float) -> None:
    torch.manual_seed(3)
    student, teacher = torch.randn(9, 5).double(), torch.randn(9, 4).double()
    weight, wide = torch.randn(11, 5).double(), torch.randn(13, 4).double()
    labels = torch.randint(0, 11, (9,))
    labels[2] = -100
    for x in (student, weight):
        x.requires_grad_()
    loss = liger.LigerFusedLinearJSDLoss(
        0.3, 0.7, beta, temperature=2.0, return_soft_hard_loss=True
    )
    found = loss(student, weight, teacher, wide, labels)
    logits = torch.nn.functional.pad(student @ weight.T, (0, 2))
    s, t = ((x / 2).log_softmax(-1) for x in (logits, teacher @ wide.T))
    m = (beta * t.exp() + (1 - beta) * s.exp()).log()
    if beta in (0.0, 1.0):
        p, q = (t, s) if beta == 0 else (s, t)
        rows = (p.exp() * (p - q)).sum(-1)
    else:
        rows = (beta * t.exp() * (t - m) + (1 - beta) * s.exp() * (s - m)).sum(-1)
    soft = rows[labels != -100].mean()
    hard = cross_entropy(student @ weight.T, labels)
    for x, y in zip(found, (0.3 * hard + 0.7 * soft, soft, hard), strict=True):
        torch.testing.assert_close(x, y)
    ours, theirs = (
        torch.autograd.grad(x, (student, weight)) for x in (found[0], 0.3 * hard + 0.7 * soft)
    )
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y)


POLICIES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")


def policy(kind: str, given: dict[str, Tensor], a: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Returns the loss by the formulas of the papers."""
    t = (given["x"] @ given["weight"].T + given["bias"]).div(0.9).log_softmax(-1)
    t = t.gather(-1, given["target"].clamp(min=0)[..., None])[..., 0]
    ref = (given["ref"] @ given["ref_weight"].T + given["ref_bias"]).div(0.9).log_softmax(-1)
    ref = ref.gather(-1, given["target"].clamp(min=0)[..., None])[..., 0]
    r, a = (t - old).exp(), a[:, None]
    if kind == "cispo":
        losses = -r.clamp(max=1.5).detach() * a * t
    elif kind == "sapo":
        tau = torch.where(a > 0, 1.0, 1.05)
        losses = -4 / tau * torch.sigmoid(tau * (r - 1)) * a
    else:
        losses = -torch.minimum(r * a, r.clamp(0.8, 2.5) * a)
    losses = (losses + 0.04 * ((ref - t).exp() - (ref - t) - 1)) * mask
    n = mask.sum(-1)
    return {
        "grpo": lambda: (losses.sum(-1) / n).mean(),
        "sapo": lambda: (losses.sum(-1) / n).mean(),
        "dr_grpo": lambda: losses.sum() / (len(mask) * 9),
        "luspo": lambda: (losses * n[:, None]).mean(),
    }.get(kind, lambda: losses.sum() / n.sum())()


@pytest.mark.parametrize("kind", POLICIES)
def test_policy_gradients(kind: str) -> None:
    given = drawn()
    given["target"] = given["target"].clamp(min=0)
    mask = torch.ones(2 * PAIRS, TOKENS)
    mask[1, 3:] = 0
    a = torch.randn(2 * PAIRS).double()
    old = -2.5 + 0.3 * torch.randn(2 * PAIRS, TOKENS).double()
    given["x"].requires_grad_()
    given["weight"].requires_grad_()
    loss = liger.LigerFusedLinearGRPOLoss(
        loss_type=kind,
        max_completion_length=9,
        epsilon_high=1.5,
        temperature=0.9,
        compiled=False,
    )
    found, _ = loss(
        given["x"],
        given["weight"],
        given["target"],
        mask,
        a,
        given["bias"],
        old_per_token_logps=old,
        ref_input=given["ref"],
        ref_weight=given["ref_weight"],
        ref_bias=given["ref_bias"],
    )
    expected = policy(kind, given, a, old, mask.double())
    torch.testing.assert_close(found, expected)
    smooth = given["x"], given["weight"]
    ours, theirs = (torch.autograd.grad(z, smooth) for z in (found, expected))
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y)


def test_constructors_refuse_bad_options() -> None:
    with pytest.raises(ValueError, match="Unsupported loss_type"):
        liger.LigerFusedLinearDPOLoss(loss_type="ipo")
    with pytest.raises(ValueError, match="label_smoothing must lie"):
        liger.LigerFusedLinearDPOLoss(loss_type="robust", label_smoothing=0.5)
    with pytest.raises(ValueError, match="sapo_temperature_pos must be positive"):
        liger.LigerFusedLinearGRPOLoss(sapo_temperature_pos=0.0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        liger.LigerFusedLinearORPOLoss(gamma=0.5)


def test_luspo_by_sequence_counts_padding_as_the_original() -> None:
    """The loss of a sequence times its length; the divergence is a mean over all places."""
    given = drawn()
    target = given["target"].clamp(min=0)
    mask = torch.ones(2 * PAIRS, TOKENS)
    mask[1, 3:] = 0
    a = torch.randn(2 * PAIRS).double()
    old = -2.5 + 0.3 * torch.randn(2 * PAIRS, TOKENS).double()
    options = {"loss_type": "luspo", "importance_sampling_level": "sequence", "compiled": False}
    loss = liger.LigerFusedLinearGRPOLoss(epsilon_high=1.5, beta=0.04, **options)
    own = given["x"], given["weight"], target, mask, a, given["bias"]
    reference = {f"ref_{n}": given[k] for n, k in REFERENCE.items()}
    found, _ = loss(*own, old_per_token_logps=old, **reference)
    t = (given["x"] @ given["weight"].T + given["bias"]).log_softmax(-1)
    ref = (given["ref"] @ given["ref_weight"].T + given["ref_bias"]).log_softmax(-1)
    t, ref = (each.gather(-1, target[..., None])[..., 0] for each in (t, ref))
    n = mask.sum(-1, keepdim=True)
    r = (((t - old) * mask).sum(-1, keepdim=True) / n).exp()
    losses = -torch.minimum(r * a[:, None], r.clamp(0.8, 2.5) * a[:, None])
    losses = losses + 0.04 * ((ref - t).exp() - (ref - t) - 1)
    torch.testing.assert_close(found, (losses * n).mean())


REFERENCE = {"input": "ref", "weight": "ref_weight", "bias": "ref_bias"}
