"""policy_loss: each kind against its formula in float64, masks, reductions and compilers."""

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
KINDS = ("ppo", "grpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo")
every = pytest.mark.parametrize("kind", KINDS)
CLIP, KL = (0.15, 0.28), 0.3
OF_KIND = {
    "ppo": "token_mean",
    "grpo": "sequence_mean",
    "dapo": "token_mean",
    "dr_grpo": "length_mean",
    "gspo": "sequence_mean",
    "cispo": "token_mean",
    "sapo": "sequence_mean",
}


def token_losses(t: Any, old: Any, a: Any, mask: Any, ref: Any, kind: str, level: str) -> Any:
    """Returns the losses of tokens, in float64 torch and in loops where the op has masks."""
    rows = []
    for i in range(len(t)):
        a_row = a[i].expand(t.shape[1]) if a[i].ndim == 0 else a[i]
        kept = [j for j in range(t.shape[1]) if mask[i, j]]
        of_sequence = sum((t[i, j] - old[i, j]) / len(kept) for j in kept)
        row = []
        for j in range(t.shape[1]):
            if j not in kept:
                row.append(torch.zeros((), dtype=torch.float64))
                continue
            is_whole = kind == "gspo" or level == "sequence"
            r = torch.exp(of_sequence if is_whole else t[i, j] - old[i, j])
            c = r.clamp(1 - CLIP[0], 1 + CLIP[1])
            if kind == "cispo":
                loss = -c.detach() * a_row[j] * t[i, j]
            elif kind == "sapo":
                tau = 1.0 if a_row[j] > 0 else 1.05
                loss = -4 / tau * torch.sigmoid(tau * (r - 1)) * a_row[j]
            else:
                loss = -torch.minimum(r * a_row[j], c * a_row[j])
            away = ref[i, j] - t[i, j]
            row.append(loss + KL * (away.exp() - away - 1))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def reduced(losses: Any, mask: Any, reduction: str) -> Any:
    counts = torch.tensor(mask).sum(-1)
    return {
        "none": lambda: losses,
        "sum": lambda: losses.sum(),
        "token_mean": lambda: losses.sum() / counts.sum().clamp(min=1),
        "sequence_mean": lambda: (losses.sum(-1) / counts.clamp(min=1)).mean(),
        "length_mean": lambda: losses.sum() / losses.numel(),
    }[reduction]()


def operands(rng: Any, dtype: str, shape: Any = (5, 9), per_token: bool = False) -> list[Any]:
    size = [shape, shape, shape if per_token else shape[:-1], shape]
    found = [rng.normal(size=each) for each in size]
    found[1], found[3] = found[0] + 0.3 * found[1], found[0] + 0.3 * found[3]
    return [each.astype(numpy_dtype(dtype)) for each in found]


def some(rng: Any, shape: Any = (5, 9)) -> Any:
    mask = rng.random(shape) < 0.6
    mask[1] = False  # a sequence without a token
    return mask


@each
@every
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("reduction", [None, "none", "sum", "token_mean", "length_mean"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_values_and_gradients(
    own: Any, kind: str, level: str, reduction: str | None, dtype: str, rng: Any
) -> None:
    given, mask = operands(rng, dtype, per_token=level == "token"), some(rng)

    def run(t: Any, old: Any, a: Any, ref: Any) -> Any:
        how = {"kind": kind, "level": level, "reduction": reduction, "clip": CLIP, "kl": KL}
        return own.ops.policy_loss(t, old, a, own.array(mask), ref_log_probs=ref, **how)

    exact = [torch.tensor(x.astype(float), requires_grad=True) for x in given]
    t, old, a, ref = exact
    losses = token_losses(t, old, a, mask, ref, kind, level)
    expected = reduced(losses, mask, reduction or OF_KIND[kind])
    g = rng.normal(size=expected.shape)
    wide = "float32" if dtype == "bfloat16" and reduction != "none" else dtype
    g = g.astype(numpy_dtype(wide))
    gradients = torch.autograd.grad(
        expected, exact, torch.tensor(g.astype(float)), allow_unused=True
    )
    value, *found = own.vjp(run, given, g)
    assert value.dtype == numpy_dtype(wide)
    unit = 60 * EPSILON["float64" if dtype == "float64" else "float32"]
    near = partial(np.testing.assert_allclose, rtol=2 * EPSILON[wide] + unit, atol=unit)
    near(np.asarray(value, float), expected.detach().numpy())
    for dx, right, x in zip(found, gradients, given, strict=True):
        assert dx.dtype == x.dtype
        right = np.zeros(x.shape) if right is None else right.numpy()
        np.testing.assert_allclose(
            np.asarray(dx, float), right, rtol=2 * EPSILON[dtype] + unit, atol=unit
        )


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_frameworks_have_the_same_bits(kind: str, dtype: str, rng: Any) -> None:
    given, mask = operands(rng, dtype, (37, 301)), some(rng, (37, 301))
    for reduction in (None, "none"):
        found = []
        for own in FRAMEWORKS:

            def run(*a: Any, own: Any = own, reduction: Any = reduction) -> Any:
                rest = {"kind": kind, "kl": KL, "reduction": reduction}
                return own.ops.policy_loss(*a[:3], own.array(mask), ref_log_probs=a[3], **rest)

            g = np.ones(mask.shape if reduction else (), numpy_dtype(dtype))
            if not reduction and dtype in ("float16", "bfloat16"):
                g = g.astype(np.float32)
            found.append(own.vjp(run, given, g))
        for in_torch, in_jax in zip(*found, strict=True):
            np.testing.assert_array_equal(bits(in_torch), bits(in_jax))


@each
@every
def test_numbers_of_hidden_tokens_do_not_matter(own: Any, kind: str, rng: Any) -> None:
    given, mask = operands(rng, "float32", per_token=True), some(rng)
    poisoned = [
        np.where(mask, x, np.float32(y))
        for x, y in zip(given, [np.nan, np.inf, np.nan, -np.inf], strict=True)
    ]

    def run(*a: Any) -> Any:
        return own.ops.policy_loss(*a[:3], own.array(mask), kind=kind, ref_log_probs=a[3], kl=KL)

    found = [own.vjp(run, x, np.float32(1)) for x in (given, poisoned)]
    for clean, other in zip(*found, strict=True):
        np.testing.assert_array_equal(clean, other)
    for dx in found[0][1:]:
        assert np.all(dx[~mask] == 0)


@every
def test_derivatives_of_second_order_and_forward_mode(kind: str, rng: Any) -> None:
    given = [torch.tensor(x, requires_grad=True) for x in operands(rng, "float64", (3, 4))]
    mask = torch.tensor(some(rng, (3, 4)))

    def run(t: Any, old: Any, a: Any, ref: Any) -> Any:
        return bridge.torch.policy_loss(t, old, a, mask, kind=kind, ref_log_probs=ref, kl=KL)

    if kind == "cispo":
        # Finite differences see the ratio, a constant for the gradient, but where it is clipped.
        given[1] = (given[0].detach() - 1.0).requires_grad_()
    assert torch.autograd.gradcheck(run, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, given)


def test_second_order_of_cispo_between_the_clips(rng: Any) -> None:
    """The derivatives of its gradient are those of the formula with a constant ratio."""
    given, mask = operands(rng, "float64", (3, 4)), some(rng, (3, 4))
    along = [torch.tensor(rng.normal(size=x.shape)) for x in given[::2]]
    found = []
    for own in (True, False):
        smooth = [torch.tensor(x, requires_grad=True) for x in given]
        t, old, a, ref = smooth
        if own:
            how: dict[str, Any] = {"clip": CLIP, "kl": KL, "reduction": "sum"}
            loss = bridge.torch.policy_loss(
                t, old, a, torch.tensor(mask), kind="cispo", ref_log_probs=ref, **how
            )
        else:
            loss = token_losses(t, old, a, mask, ref, "cispo", "token").sum()
        first = torch.autograd.grad(loss, (t, a), create_graph=True)
        dot = sum((x * y).sum() for x, y in zip(first, along, strict=True))
        found.append(torch.autograd.grad(dot, (t, a, ref)))  # type: ignore[arg-type]
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@every
def test_transforms_and_compilers(kind: str, rng: Any) -> None:
    given = operands(rng, "float32", (2, 3, 65))[:3]
    tensors, arrays = [torch.tensor(x) for x in given], [jnp.asarray(x) for x in given]
    run, in_jax = (partial(m.policy_loss, kind=kind) for m in (bridge.torch, bridge.jax))
    compiled = torch.compile(lambda *x: run(*x), fullgraph=True, backend="aot_eager")
    whole = run(*tensors).numpy()
    for found in (compiled(*tensors), jax.jit(in_jax)(*arrays)):
        np.testing.assert_array_equal(bits(np.asarray(found)), bits(whole))
    apart = np.stack([run(*(x[i] for x in tensors)).numpy() for i in range(2)])
    for found in (torch.func.vmap(run)(*tensors), jax.vmap(in_jax)(*arrays)):
        np.testing.assert_array_equal(bits(np.asarray(found)), bits(apart))


@each
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_sapo_of_an_infinite_ratio_is_flat(own: Any, level: str, advantage: float) -> None:
    """The sigmoid is 1 there, so its gradient towards the logarithms is 0, and no NaN."""
    x, old = np.full((1, 2), 100, np.float32), np.zeros((1, 2), np.float32)
    a = np.float32([advantage])

    def run(*arrays: Any) -> Any:
        return own.ops.policy_loss(*arrays, kind="sapo", level=level)

    value, dx, dold, da = own.vjp(run, (x, old, a), np.float32(1))
    expected = -4.0 * (advantage if advantage > 0 else advantage / 1.05)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert not np.any(dx)
    assert not np.any(dold)
    assert np.isfinite(da).all()


@each
def test_no_token_gives_zero(own: Any) -> None:
    x, nothing = np.ones((2, 3), np.float32), np.zeros((2, 3), bool)
    for kind in KINDS:
        run = partial(own.ops.policy_loss, kind=kind)
        assert own.call(run, x, x, x[:, 0], nothing) == 0
        assert own.call(run, x[:0], x[:0], x[:0, 0]) == 0


@each
def test_ratios_that_overflow(own: Any) -> None:
    far = np.float32([[0.0]])
    run = partial(own.ops.policy_loss, reduction="none")
    for a, expected in ((1.0, -1.2), (-1.0, np.inf), (0.0, np.nan)):
        found = own.call(run, far, far - 200, np.float32([a]))
        np.testing.assert_allclose(found, [[expected]], rtol=1e-6)


def _loss(m: Any, a: Any, **how: Any) -> Any:
    return m.policy_loss(a(2, 3), a(2, 3), a(2), **how)


REFUSED: dict[str, Refusal] = {
    "kind": (lambda m, a: _loss(m, a, kind="a2c"), ValueError, "kind is 'a2c', expected one of"),
    "level": (lambda m, a: _loss(m, a, level="word"), ValueError, "level is 'word', expected one"),
    "mean": (lambda m, a: _loss(m, a, reduction="mean"), ValueError, "reduction is 'mean', exp"),
    "clip": (lambda m, a: _loss(m, a, clip=0.2), ValueError, "clip is 0.2, expected two numbers"),
    "low": (lambda m, a: _loss(m, a, clip=(-1, 1)), ValueError, "clip is -1.0, expected a number"),
    "temperatures": (
        lambda m, a: _loss(m, a, temperatures=(1, 0)),
        ValueError,
        "temperatures is 0.0, expected a number from",
    ),
    "kl": (lambda m, a: _loss(m, a, kl=-1), ValueError, "kl is -1.0, expected a number from 0"),
    "no reference": (
        lambda m, a: _loss(m, a, kl=0.1),
        ValueError,
        "kl is 0.1 and ref_log_probs is None, expected a ref_log_probs",
    ),
    "reference": (
        lambda m, a: _loss(m, a, ref_log_probs=a(2, 4)),
        ValueError,
        r"ref_log_probs has shape \[2, 4\], expected \[2, 3\]",
    ),
    "advantages": (
        lambda m, a: m.policy_loss(a(2, 3), a(2, 3), a(3)),
        ValueError,
        r"advantages has shape \[3\], expected \[2\] or \[2, 3\]",
    ),
    "mask": (
        lambda m, a: _loss(m, a, mask=a(1, 3, dtype="bool")),
        ValueError,
        r"mask has shape \[1, 3\], expected \[2, 3\]",
    ),
    "floating mask": (lambda m, a: _loss(m, a, mask=a(2, 3)), TypeError, "mask has dtype float32"),
    "0-dimensional": (
        lambda m, a: m.policy_loss(a(), a(), a()),
        ValueError,
        "log_probs is 0-dimensional",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "policy_loss: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_advantages_are_as_accurate_as_those_of_torch(dtype: Any) -> None:
    """A gradient has few numbers, whose errors are random: those of many draws are compared."""
    torch.manual_seed(0)

    def plain(log_probs: Any, old: Any, advantages: Any) -> Any:
        ratio, advantages = torch.exp(log_probs - old), advantages[..., None]
        return -torch.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)

    def fused(*operands: Any) -> Any:
        return bridge.torch.policy_loss(*operands, reduction="none")

    errors: list[list[float]] = [[], []]
    for _ in range(24):
        log_probs, old, g = (torch.randn(20, 257, dtype=dtype) for _ in range(3))
        advantages = torch.randn(20, dtype=dtype)

        def gradient(function: Any, dtype: Any) -> Any:
            given = [t.to(dtype) for t in (log_probs, old, advantages)]  # noqa: B023
            given[-1].requires_grad_()
            y = function(*given)
            return torch.autograd.grad(y, given[-1], g.to(y.dtype))[0].double()  # noqa: B023

        right = gradient(plain, torch.float64)
        for found, function in zip(errors, (fused, plain), strict=True):
            found.append(float((gradient(function, dtype) - right).square().mean()))
    assert np.mean(errors[0]) <= 1.5**2 * np.mean(errors[1])
