"""preference_loss: each kind against its formula in float64, reductions, edges and compilers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
KINDS = ("dpo", "ipo", "simpo", "orpo", "kto", "cpo")
every = pytest.mark.parametrize("kind", KINDS)
BETA = 0.7
LOGISTIC: dict[str, Any] = {"label_smoothing": 0.2, "margin": 0.4}
OPTIONS: dict[str, dict[str, Any]] = {
    "dpo": {**LOGISTIC, "nll_weight": 0.3},
    "ipo": {},
    "simpo": LOGISTIC,
    "orpo": {"nll_weight": 0.5},
    "kto": {"weights": (1.5, 0.5)},
    "cpo": LOGISTIC,
}
# The operands of a kind besides chosen and rejected.
WITH = {
    "dpo": ("ref_chosen", "ref_rejected", "nll"),
    "ipo": ("ref_chosen", "ref_rejected"),
    "simpo": (),
    "orpo": ("nll",),
    "kto": ("ref_chosen", "ref_rejected", "baseline"),
    "cpo": (),
}


def operands(rng: Any, kind: str, dtype: str, shape: Any = (13,)) -> list[Any]:
    found = [-0.1 - rng.gamma(1.0, 1.0, shape) for _ in range(2 + len(WITH[kind]))]
    return [x.astype(numpy_dtype(dtype)) for x in found]


def call(m: Any, kind: str, *given: Any, **options: Any) -> Any:
    chosen, rejected, *rest = given
    named = dict(zip(WITH[kind], rest, strict=True))
    return m.preference_loss(
        chosen, rejected, kind=kind, beta=BETA, **named, **{**OPTIONS[kind], **options}
    )


def exact(kind: str, chosen: Any, rejected: Any, *rest: Any) -> Any:
    """Returns the losses of pairs in float64 torch, written as in the papers."""
    named = dict(zip(WITH[kind], rest, strict=True))
    c, r = chosen - named.get("ref_chosen", 0), rejected - named.get("ref_rejected", 0)
    log_sigmoid, how = torch.nn.functional.logsigmoid, OPTIONS[kind]
    if kind == "kto":
        z, (good, bad) = named["baseline"].detach(), how["weights"]
        of_chosen = good * (1 - torch.sigmoid(BETA * (c - z)))
        return of_chosen + bad * (1 - torch.sigmoid(BETA * (z - r)))
    if kind == "ipo":
        return (c - r - 1 / (2 * BETA)) ** 2
    if kind == "orpo":
        p, q = chosen.exp(), rejected.exp()
        return 0.5 * named["nll"] - BETA * log_sigmoid((p / (1 - p)).log() - (q / (1 - q)).log())
    z = BETA * (c - r) - 0.4
    loss = -0.8 * log_sigmoid(z) - 0.2 * log_sigmoid(-z)
    return loss + (0.3 * named["nll"] if kind == "dpo" else -chosen if kind == "cpo" else 0)


@each
@every
@pytest.mark.sampled(16)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(13,), (3, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, kind: str, reduction: str, shape: Any, dtype: str, rng: Any
) -> None:
    given = operands(rng, kind, dtype, shape)
    smooth = [torch.tensor(x.astype(float), requires_grad=True) for x in given]
    losses = exact(kind, *smooth)
    expected = {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
    wide = dtype if reduction == "none" or dtype == "float64" else "float32"
    g = rng.standard_normal(expected.shape).astype(numpy_dtype(wide))
    cotangent = torch.tensor(np.asarray(g, float))
    gradients = torch.autograd.grad(expected, smooth, cotangent, allow_unused=True)
    value, *found = own.vjp(partial(call, own.ops, kind, reduction=reduction), given, g)
    assert value.dtype == numpy_dtype(wide)
    unit = 60 * EPSILON["float64" if dtype == "float64" else "float32"]
    near = partial(np.testing.assert_allclose, atol=unit)
    near(np.asarray(value, float), expected.detach().numpy(), rtol=2 * EPSILON[wide] + unit)
    for dx, right, x in zip(found, gradients, given, strict=True):
        assert dx.dtype == x.dtype
        right = np.zeros(x.shape) if right is None else right.numpy()
        near(np.asarray(dx, float), right, rtol=2 * EPSILON[dtype] + unit)


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_frameworks_have_the_same_bits(kind: str, dtype: str, rng: Any) -> None:
    given = operands(rng, kind, dtype, (2051,))
    for reduction in ("mean", "none"):
        is_wide = reduction == "mean" and dtype != "float64"
        g = np.ones(() if reduction == "mean" else (2051,))
        g = g.astype(np.float32 if is_wide else numpy_dtype(dtype))
        found = [
            own.vjp(partial(call, own.ops, kind, reduction=reduction), given, g)
            for own in FRAMEWORKS
        ]
        for in_torch, in_jax in zip(*found, strict=True):
            np.testing.assert_array_equal(bits(in_torch), bits(in_jax))


@every
def test_derivatives_of_second_order_and_forward_mode(kind: str, rng: Any) -> None:
    given = [torch.tensor(x, requires_grad=True) for x in operands(rng, kind, "float64", (4,))]
    constant = "baseline" in WITH[kind]
    if constant:  # finite differences would move it
        given[-1] = given[-1].detach()
    for reduction in ("mean", "none"):
        run = partial(call, bridge.torch, kind, reduction=reduction)
        assert torch.autograd.gradcheck(run, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(run, given)


@every
def test_transforms_and_compilers(kind: str, rng: Any) -> None:
    given = operands(rng, kind, "float32", (3, 65))
    tensors, arrays = [torch.tensor(x) for x in given], [jnp.asarray(x) for x in given]
    for reduction in ("mean", "none"):
        run, in_jax = (
            partial(call, m, kind, reduction=reduction) for m in (bridge.torch, bridge.jax)
        )
        torch.compiler.reset()
        compiled = torch.compile(lambda *x: run(*x), fullgraph=True, backend="aot_eager")  # noqa: B023
        whole = run(*tensors).numpy()
        for found in (compiled(*tensors), jax.jit(in_jax)(*arrays)):
            np.testing.assert_array_equal(bits(np.asarray(found)), bits(whole))
        apart = np.stack([run(*(x[i] for x in tensors)).numpy() for i in range(3)])
        scanned = jax.lax.scan(lambda _, x: (None, in_jax(*x)), None, tuple(arrays))[1]  # noqa: B023
        for found in (torch.func.vmap(run)(*tensors), jax.vmap(in_jax)(*arrays), scanned):
            np.testing.assert_array_equal(bits(np.asarray(found)), bits(apart))
        if reduction == "none":
            np.testing.assert_array_equal(bits(whole), bits(apart))


@each
def test_defaults_are_the_papers(own: Any, rng: Any) -> None:
    c, r, ref_c, ref_r = [np.float32(-0.1 - rng.random(5)) for _ in range(4)]
    run = partial(own.call, own.ops.preference_loss)
    z = 0.1 * ((c - ref_c) - (r - ref_r))
    np.testing.assert_allclose(run(c, r, ref_c, ref_r), np.log1p(np.exp(-z)).mean(), rtol=1e-6)
    for kind in ("orpo", "cpo"):
        own_loss = partial(own.ops.preference_loss, kind=kind, reduction="none")
        without = own.call(partial(own_loss, nll_weight=0.0), c, r)
        np.testing.assert_allclose(own.call(own_loss, c, r), without - c, rtol=1e-5)


@each
def test_unpaired_answers(own: Any, rng: Any) -> None:
    """Answers of both kinds in one array have the losses of each kind alone."""
    log_probs, ref = (np.float32(rng.standard_normal(8)) for _ in range(2))
    desirable, kl = rng.random(8) < 0.5, np.float32(0.3)

    def run(x: Any, ref: Any) -> Any:
        return own.ops.preference_loss(
            x,
            None,
            ref,
            kind="kto",
            desirable=own.array(desirable),
            baseline=own.array(kl),
            weights=(1.5, 0.5),
            reduction="none",
        )

    d = (log_probs - ref).astype(float) - kl
    signed = 0.1 * np.where(desirable, d, -d)
    expected = np.where(desirable, 1.5, 0.5) / (1 + np.exp(signed))
    value, dx, dref = own.vjp(run, (log_probs, ref), np.ones(8, np.float32))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    weight = np.where(desirable, 1.5, 0.5)
    slope = -0.1 * np.where(desirable, 1, -1) * expected * (1 - expected / weight)
    np.testing.assert_allclose(dx, slope, rtol=1e-5)
    np.testing.assert_array_equal(dref, -dx)


@each
@every
def test_numbers_far_away(own: Any, kind: str) -> None:
    """Nothing overflows before the result does, and odds near 1 and 0 keep their digits."""
    for low, high in ((-300.0, -1e-6), (-1e-6, -300.0), (-1e-7, -1e-7)):
        given = [np.float32([x]) for x in (low, high, *[-1.0] * len(WITH[kind]))]
        smooth = [torch.tensor(x.astype(float), requires_grad=True) for x in given]
        expected = exact(kind, *smooth)
        right = torch.autograd.grad(expected.sum(), smooth[:2])
        value, *found = own.vjp(
            partial(call, own.ops, kind, reduction="none"), given, np.ones(1, np.float32)
        )
        np.testing.assert_allclose(value, expected.detach(), rtol=3e-5, atol=1e-30)
        for dx, dy in zip(found[:2], right, strict=True):
            np.testing.assert_allclose(dx, dy, rtol=3e-4, atol=1e-30)


@each
def test_no_pairs(own: Any) -> None:
    none = np.zeros(0, np.float32)
    for kind in KINDS:
        assert own.call(partial(own.ops.preference_loss, kind=kind), none, none) == 0


def _loss(m: Any, a: Any, **how: Any) -> Any:
    return m.preference_loss(a(2), a(2), **how)


REFUSED: dict[str, Refusal] = {
    "kind": (lambda m, a: _loss(m, a, kind="rlhf"), ValueError, "kind is 'rlhf', expected one of"),
    "beta": (lambda m, a: _loss(m, a, beta=0), ValueError, "beta is 0.0, expected a number from"),
    "smoothing": (
        lambda m, a: _loss(m, a, label_smoothing=1.5),
        ValueError,
        "label_smoothing is 1.5, expected a number from 0 to 1",
    ),
    "smoothing of ipo": (
        lambda m, a: _loss(m, a, kind="ipo", label_smoothing=0.1),
        ValueError,
        "label_smoothing is 0.1, expected 0.0 for kind 'ipo'",
    ),
    "margin": (
        lambda m, a: _loss(m, a, kind="kto", margin=1),
        ValueError,
        "margin is 1.0, expected 0.0 for kind 'kto'",
    ),
    "infinite margin": (
        lambda m, a: _loss(m, a, margin=float("inf")),
        ValueError,
        "margin is inf, expected a finite number",
    ),
    "weights": (lambda m, a: _loss(m, a, weights=2), ValueError, "weights is 2, expected two num"),
    "weights of dpo": (
        lambda m, a: _loss(m, a, weights=(1, 2)),
        ValueError,
        r"weights is \(1.0, 2.0\), expected \(1.0, 1.0\) for kind 'dpo'",
    ),
    "reduction": (lambda m, a: _loss(m, a, reduction="max"), ValueError, "reduction is 'max'"),
    "nll": (
        lambda m, a: _loss(m, a, nll=a(2)),
        ValueError,
        "nll is given, expected None for an nll_weight of 0",
    ),
    "nll of kto": (
        lambda m, a: _loss(m, a, kind="kto", nll_weight=1),
        ValueError,
        "nll_weight is 1.0, expected 0.0 for kind 'kto'",
    ),
    "reference": (
        lambda m, a: _loss(m, a, kind="cpo", ref_chosen=a(2), ref_rejected=a(2)),
        ValueError,
        "ref_chosen is given, expected None for kind 'cpo'",
    ),
    "one reference": (
        lambda m, a: _loss(m, a, ref_chosen=a(2)),
        ValueError,
        "ref_rejected is None, expected both references or none",
    ),
    "baseline": (
        lambda m, a: _loss(m, a, baseline=a()),
        ValueError,
        "baseline is given, expected None for kind 'dpo'",
    ),
    "shape of the baseline": (
        lambda m, a: _loss(m, a, kind="kto", baseline=a(1)),
        ValueError,
        r"baseline has shape \[1\], expected \[\] or \[2\]",
    ),
    "desirable": (
        lambda m, a: _loss(m, a, kind="kto", desirable=a(2, dtype="bool")),
        ValueError,
        "desirable is given, expected None for kind 'kto' with rejected",
    ),
    "floating desirable": (
        lambda m, a: m.preference_loss(a(2), None, kind="kto", desirable=a(2)),
        TypeError,
        "desirable has dtype float32",
    ),
    "no rejected": (
        lambda m, a: m.preference_loss(a(2), None),
        ValueError,
        "rejected is None, expected an array",
    ),
    "rejected": (
        lambda m, a: m.preference_loss(a(2), a(3)),
        ValueError,
        r"rejected has shape \[3\], expected \[2\]",
    ),
    "0-dimensional": (
        lambda m, a: m.preference_loss(a(), a()),
        ValueError,
        "chosen is 0-dimensional",
    ),
    "integers": (
        lambda m, a: m.preference_loss(a(2, dtype="int32"), a(2)),
        TypeError,
        "chosen has dtype int32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "preference_loss: ")
