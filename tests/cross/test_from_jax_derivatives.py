"""JAX functions in torch: derivatives of any order, in every mode of torch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax
from jax import numpy as jnp
from torch.autograd.graph import saved_tensors_hooks

from bridge.torch import from_jax

pytestmark = pytest.mark.usefixtures("wide")


def entire(z: Any, w: Any) -> Any:
    return jnp.exp(z) * jnp.conj(w) + jnp.abs(w) ** 2, jnp.real(z * w) * w


def smooth(a: Any, b: Any) -> Any:
    return jnp.sin(a) @ b, jnp.sum(jnp.exp(a)) * b


CASES = {
    "real": (smooth, torch.float64, ((2, 2), (2,))),
    "complex": (entire, torch.complex128, ((2,), (2,))),
    "mixed": (lambda z, a: (z * a, jnp.abs(z) + a), None, ((2,), (2,))),
    "loops": (
        lambda a, b: lax.fori_loop(0, 3, lambda i, s: jnp.sin(s) * b, a),
        torch.float64,
        ((3,), (3,)),
    ),
}


def arguments_of(draw: Any, case: str) -> tuple[Any, list[torch.Tensor]]:
    fn, dtype, shapes = CASES[case]
    dtypes = [dtype] * 2 if dtype else [torch.complex128, torch.float64]
    inputs = [draw(*s, dtype=d, grad=True) for s, d in zip(shapes, dtypes, strict=True)]
    return from_jax(fn), inputs


@pytest.mark.parametrize("case", CASES)
def test_gradients_agree_with_finite_differences(draw: Any, case: str) -> None:
    f, inputs = arguments_of(draw, case)
    forward_too = case != "loops"
    assert torch.autograd.gradcheck(
        f, inputs, check_forward_ad=forward_too, check_undefined_grad=True
    )


@pytest.mark.parametrize("case", ["real", "complex", "mixed"])
def test_second_derivatives_agree_with_finite_differences(draw: Any, case: str) -> None:
    f, inputs = arguments_of(draw, case)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True)


def test_complex_gradients_are_conjugated_however_they_are_asked_for(draw: Any) -> None:
    """The ways are: residuals, a derivative that can be differentiated, torch.func, and batches."""

    def own(z: Any, w: Any) -> Any:
        return torch.exp(z) * w + z.real * w

    f = from_jax(lambda z, w: jnp.exp(z) * w + jnp.real(z) * w)
    z, w, g = (draw(3, dtype=torch.complex128) for _ in range(3))
    gs = draw(2, 3, dtype=torch.complex128)

    def leaves() -> list[torch.Tensor]:
        return [z.clone().requires_grad_(), w.clone().requires_grad_()]

    def gradients(f: Any, cotangent: Any, **how: Any) -> Any:
        inputs = leaves()
        return torch.autograd.grad(f(*inputs), inputs, cotangent, **how)

    for asked in (
        lambda f: gradients(f, g),
        lambda f: gradients(f, g, create_graph=True),
        lambda f: gradients(f, gs, is_grads_batched=True),
        lambda f: torch.func.vjp(f, z, w)[1](g),
        lambda f: torch.func.grad(lambda z: f(z, w).real.sum())(z),
        lambda f: torch.func.jvp(f, (z, w), (g, w)),
        lambda f: torch.func.vmap(lambda g: torch.func.vjp(f, z, w)[1](g))(gs),
    ):
        torch.testing.assert_close(asked(f), asked(own))


def test_batched_gradients(draw: Any) -> None:
    f, inputs = arguments_of(draw, "real")
    assert torch.autograd.gradcheck(
        f, inputs, check_batched_grad=True, check_forward_ad=True, check_batched_forward_grad=True
    )


def test_third_derivative(draw: Any) -> None:
    x = draw(3, grad=True)
    y = from_jax(lambda x: jnp.sum(jnp.sin(x)))(x)
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(y, -torch.cos(x))


# torch.func.linearize folds constants in a way that torch.fx warns about.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_the_transforms_of_torch_func(draw: Any) -> None:
    f, own = from_jax(lambda a, b: jnp.sin(a) * b), lambda a, b: torch.sin(a) * b
    a, b, t, u = (draw(3) for _ in range(4))
    xs = draw(4, 3)
    for transformed in (
        lambda f: torch.func.jvp(f, (a, b), (t, u)),
        lambda f: torch.func.vjp(f, a, b)[1](t),
        lambda f: torch.func.grad(lambda a: f(a, b).sum())(a),
        lambda f: torch.func.vmap(f, (0, None))(xs, b),
        lambda f: torch.func.vmap(f, (1, 0), out_dims=1)(xs.t(), xs),
        lambda f: torch.func.vmap(torch.func.vmap(f, (0, None)), (None, 0))(xs, xs),
        lambda f: torch.func.vmap(torch.func.grad(lambda a, b: f(a, b).sum()), (0, None))(xs, b),
        lambda f: torch.func.grad(lambda a: torch.func.vmap(f, (0, None))(xs, a).sum())(b),
        lambda f: torch.func.jacrev(f)(a, b),
        lambda f: torch.func.jacfwd(f)(a, b),
        lambda f: torch.func.hessian(lambda a: f(a, b).sum())(a),
        lambda f: torch.func.jacrev(torch.func.jacfwd(f))(a, b),
        lambda f: torch.func.jacfwd(torch.func.jacfwd(f))(a, b),
        lambda f: torch.func.jacrev(torch.func.jacrev(f))(a, b),
        lambda f: torch.func.jvp(lambda a: torch.func.vmap(f, (0, None))(xs, a), (b,), (t,)),
        lambda f: torch.func.linearize(lambda a: f(a, b), a)[1](t),
    ):
        torch.testing.assert_close(transformed(f), transformed(own))


def test_vmap_with_integers_and_keys(draw: Any) -> None:
    key = jax.random.key(0)

    def fn(x: Any, i: Any, key: Any) -> Any:
        return x[i] + jax.random.normal(key), i + 1

    f, xs, i = from_jax(fn), draw(4, 3), torch.tensor([0, 1, 2, 0])
    y, j = torch.func.vmap(lambda x, i: f(x, i, key))(xs, i)
    torch.testing.assert_close(y, xs[torch.arange(4), i] + float(jax.random.normal(key)))
    assert j.tolist() == [1, 2, 3, 1]


def test_forward_mode(draw: Any) -> None:
    from torch.autograd import forward_ad

    f, x, t = from_jax(lambda x: (jnp.sin(x), jnp.argmax(x))), draw(3, grad=True), draw(3)
    with forward_ad.dual_level():
        y, _ = f(forward_ad.make_dual(x, t))
        tangent = forward_ad.unpack_dual(y).tangent
        torch.testing.assert_close(tangent, torch.cos(x) * t)
        torch.testing.assert_close(
            torch.autograd.grad(tangent.sum(), x, retain_graph=True)[0], -torch.sin(x) * t
        )


def test_rules_of_custom_vjp_and_custom_jvp(draw: Any) -> None:
    @jax.custom_vjp
    def clip(x: Any) -> Any:
        return x

    clip.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    x = draw(5, grad=True)
    (from_jax(clip)(x) * 10).sum().backward()
    assert x.grad.tolist() == [1] * 5

    @jax.custom_jvp
    def double(x: Any) -> Any:
        return x

    double.defjvp(lambda p, t: (p[0], 2 * t[0]))
    y = draw(5, grad=True)
    from_jax(double)(y).sum().backward()
    assert y.grad.tolist() == [2] * 5


def test_inputs_that_lie_elsewhere_by_the_backward_pass(draw: Any) -> None:
    """FSDP frees parameters after the forward pass, and gathers them again unseen by autograd."""
    x, w = draw(4, 64, grad=True), draw(64, 64, grad=True)
    f = from_jax(lambda x, w: jnp.tanh(x @ w))
    expected = torch.autograd.grad(torch.tanh(x @ w).sum(), (x, w))
    preserved = torch.autograd._unsafe_preserve_version_counter
    y, storage, kept = f(x, w), w.untyped_storage(), w.detach().clone()
    size = storage.nbytes()
    with preserved(w):
        storage.resize_(0)
    others = [torch.full_like(kept, torch.nan) for _ in range(50)]  # one takes the old memory
    with torch.no_grad(), preserved(w):
        storage.resize_(size)
        w.copy_(kept)
    for found, want in zip(torch.autograd.grad(y.sum(), (x, w)), expected, strict=True):
        torch.testing.assert_close(found, want)
    assert all(other.isnan().all() for other in others)

    y = f(x, w)
    with preserved(w):
        storage.resize_(0)
    with pytest.raises(ValueError, match="from_jax: a tensor saved for backward: "):
        y.sum().backward()


def test_inputs_that_a_hook_has_copied_may_be_written() -> None:
    """A hook that leaves small tensors alone, as in offloading, keeps the residuals' token."""
    f, x = from_jax(lambda x: x**3), torch.full((64,), 3.0, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.clone() if t.numel() > 9 else t, lambda t: t):
        y = f(x)
    with torch.no_grad():
        x.mul_(10)
    y.sum().backward()
    assert x.grad.tolist() == [27] * 64


def test_gradients_after_a_search_for_nan_has_raised(draw: Any) -> None:
    """The search runs the forward pass again on values; they are residuals of no other call."""
    f = from_jax(lambda x: jnp.log(x) * jnp.cos(x))
    x = draw(5).abs().requires_grad_()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        f(-x)
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    (expected,) = torch.autograd.grad((x.log() * x.cos()).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_numpy_arrays_written_before_the_backward_pass() -> None:
    f = from_jax(lambda x, w: x * x * w)
    x, w = torch.ones(3, dtype=torch.float64, requires_grad=True), np.full(3, 2.0)
    y, z = f(x, w), f(x, w)
    _, pull = torch.func.vjp(lambda x: f(x, w), x.detach())
    w[:] = 100
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [4] * 3
    assert torch.autograd.grad(z.sum(), x, create_graph=True)[0].tolist() == [4] * 3
    assert pull(torch.ones_like(x))[0].tolist() == [4] * 3
