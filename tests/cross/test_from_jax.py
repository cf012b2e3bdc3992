"""JAX functions in torch: values, gradients and transforms against torch's own."""

from __future__ import annotations

import copy
import enum
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import lax
from jax import numpy as jnp

import bridge.jax
import bridge.torch
from bridge.torch import from_jax

Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def draw(rng: np.random.Generator) -> Callable[..., torch.Tensor]:
    def draw(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> torch.Tensor:
        values = rng.standard_normal(shape)
        if dtype.is_complex:
            values = values + 1j * rng.standard_normal(shape)
        return torch.tensor(values, dtype=dtype, requires_grad=grad)

    return draw


def affine(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def torch_affine(params: Any, x: Any) -> Any:
    return torch.tanh(x @ params["w"] + params["b"])


def affine_arguments(draw: Any, dtype: torch.dtype = torch.float64) -> Any:
    params = {"w": draw(4, 3, dtype=dtype, grad=True), "b": draw(3, dtype=dtype, grad=True)}
    return params, draw(5, 4, dtype=dtype)


# Calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_backward_is_that_of_torch(draw: Any, dtype: torch.dtype) -> None:
    params, x = affine_arguments(draw, dtype)
    cotangent = draw(5, 3, dtype=dtype)
    y, expected = from_jax(affine)(params, x), torch_affine(params, x)
    torch.testing.assert_close(y, expected)
    inputs = list(params.values())
    ours = torch.autograd.grad(y, inputs, cotangent)
    for got, want in zip(ours, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(got, want)


def test_a_training_loop(draw: Any) -> None:
    """The same steps in torch and through the border, with an optimizer that writes in place."""
    _, x = affine_arguments(draw)
    target = draw(5, 3)
    losses = []
    start = {"w": draw(4, 3), "b": draw(3)}
    for function in (from_jax(affine), torch_affine):
        params = {name: value.clone().requires_grad_() for name, value in start.items()}
        optimizer = torch.optim.Adam(params.values(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (function(params, x) - target).square().sum()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


def test_pytrees_in_and_out(draw: Any) -> None:
    def fn(pair: Any, *, extra: Any) -> Any:
        out = {"sum": pair.first + pair.second[0], 3: (pair.first * 2, None)}
        return Pair(out["sum"], [out[3], extra["a"] - 1])

    a, b, c = draw(3), draw(3), draw(2)
    result = from_jax(fn)(Pair(a, [b, None]), extra={"a": c})
    assert type(result) is Pair
    assert type(result.second) is list
    assert result.second[0][1] is None
    torch.testing.assert_close(result.first, a + b)
    torch.testing.assert_close(result.second[0][0], a * 2)
    torch.testing.assert_close(result.second[1], c - 1)


def test_numbers_are_traced_and_other_leaves_static(draw: Any) -> None:
    seen = []

    def fn(x: Any, scale: float, how: str, dtype: Any) -> Any:
        seen.append(how)
        assert not isinstance(scale, float)
        return (x * scale if how == "times" else x + scale).astype(dtype)

    f, x = from_jax(fn), draw(3)
    torch.testing.assert_close(f(x, 2.0, "times", jnp.float64), x * 2)
    torch.testing.assert_close(f(x, 3.0, "times", jnp.float64), x * 3)
    torch.testing.assert_close(f(x, 3.0, "plus", jnp.float64), x + 3)
    assert f(x, 2, "times", jnp.float32).dtype == torch.float32
    assert seen == ["times", "plus", "times"]
    assert f.cache_info().calls == 4


def test_enums_are_static(draw: Any) -> None:
    class Mode(enum.IntEnum):
        PLUS = 1
        MINUS = 2

    f, x = from_jax(lambda x, mode: x if mode is Mode.PLUS else -x), draw(3)
    assert torch.equal(f(x, Mode.PLUS), x)
    assert torch.equal(f(x, Mode.MINUS), -x)


def test_a_number_does_not_widen() -> None:
    x = torch.ones(3, dtype=torch.bfloat16)
    assert from_jax(lambda x, s: x * s)(x, 2.0).dtype == torch.bfloat16


def test_arrays_and_keys_pass(draw: Any) -> None:
    def fn(key: Any, x: Any, array: Any, other: Any) -> Any:
        new, sub = jax.random.split(key)
        return x + jax.random.normal(sub, x.shape) + array + other, new

    f, x = from_jax(fn), draw(3, grad=True)
    key, array, other = jax.random.key(3), jnp.arange(3.0), np.arange(3) * 10.0
    (y, new), (expected, expected_new) = (
        f(key, x, array, other),
        fn(key, jnp.asarray(x.detach()), array, other),
    )
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    assert jnp.all(jax.random.key_data(new) == jax.random.key_data(expected_new))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.ones(3, dtype=torch.float64))
    again, _ = f(new, x, array, other)
    assert not torch.equal(again, y)
    assert f.cache_info().traces == 1


def test_raw_keys_are_tensors(draw: Any) -> None:
    key = torch.tensor([0, 7], dtype=torch.uint32)
    y = from_jax(lambda k: jax.random.uniform(k, (4,)))(key)
    np.testing.assert_array_equal(y.numpy(), jax.random.uniform(jax.random.PRNGKey(7), (4,)))


@pytest.mark.parametrize(
    "statics", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "n"}]
)
def test_static_arguments(draw: Any, statics: Any) -> None:
    def fn(x: Any, n: int) -> Any:
        assert type(n) is int
        return x**n

    f, x = from_jax(fn, **statics), draw(3)
    for call in (lambda n: f(x, n), lambda n: f(x, n=n)):
        torch.testing.assert_close(call(2), x**2)
        torch.testing.assert_close(call(3), x**3)
    assert from_jax(lambda x, n: x if n is True else -x, **statics)(x, True).equal(x)


def test_static_values_of_equal_hash_are_told_apart(draw: Any) -> None:
    f = from_jax(lambda x, n: x * 2 if n is True else x * 3, static_argnames="n")
    x = draw(2)
    torch.testing.assert_close(f(x, n=True), x * 2)
    torch.testing.assert_close(f(x, n=1), x * 3)
    torch.testing.assert_close(f(x, True), x * 2)
    torch.testing.assert_close(f(x, 1), x * 3)


def test_residuals_are_kept_only_for_gradients(draw: Any) -> None:
    f, x = from_jax(lambda x: jnp.sin(x)), draw(3, grad=True)
    with torch.no_grad():
        f(x)
    f(x.detach())
    assert f.cache_info().programs == 1
    f(x)
    assert f.cache_info().programs == 2, "the forward pass under jax.vjp"


def test_constants_are_not_copied_by_each_call(draw: Any) -> None:
    constant = jnp.arange(1000.0)
    f, x = from_jax(lambda x: x * constant), draw(1000, grad=True)
    f(x)
    before = live_bytes()
    y = f(x)
    assert live_bytes() - before == y.nbytes
    y.sum().backward()
    assert torch.equal(x.grad, torch.arange(1000.0, dtype=torch.float64))


def test_empty_tensors(draw: Any) -> None:
    x = draw(0, 3, grad=True)
    from_jax(lambda x: jnp.sin(x).sum())(x).backward()
    assert x.grad.shape == (0, 3)


def test_subclasses_without_a_meaning_of_their_own(draw: Any) -> None:
    class Image(torch.Tensor):
        pass

    x = draw(3, grad=True)
    y = from_jax(jnp.sin)(x.as_subclass(Image))
    torch.testing.assert_close(torch.Tensor(y), torch.sin(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient.as_subclass(torch.Tensor), torch.cos(x))


def test_copies_and_pickles(draw: Any) -> None:
    arguments = affine_arguments(draw)
    f = from_jax(affine)
    for other in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert torch.equal(other(*arguments), f(*arguments))


def test_retraces_are_counted(draw: Any) -> None:
    f = from_jax(lambda x: x * 2)
    for size in (3, 3, 4, 3, 4):
        f(draw(size))
    assert f.cache_info() == (5, 2, 2)
    f(draw(3, dtype=torch.float32))
    assert f.cache_info().traces == 3
    f(draw(3, grad=True)).sum().backward()
    info = f.cache_info()
    assert info.traces == 3, "a derivative does not run the function again"
    assert info.programs > 3
    f.cache_clear()
    f(draw(3))
    assert f.cache_info()[1:] == (4, 1)


def test_traced_once_however_differentiated(draw: Any) -> None:
    f, x = from_jax(lambda x: jnp.sin(x).sum()), draw(3)
    f(x.clone().requires_grad_()).backward()
    torch.func.hessian(f)(x)
    torch.func.vmap(torch.func.grad(f))(draw(2, 3))
    assert f.cache_info().traces == 1


def test_settings_of_jax_are_followed(draw: Any) -> None:
    """Also by derivatives, which come from a trace that was made under them."""
    f = from_jax(lambda x: jnp.sin(x) * jnp.arange(3.0))
    for leaf in (torch.ones(3), torch.ones(3, requires_grad=True)):
        assert f(leaf).dtype == torch.float64
        with jax.enable_x64(False):
            assert f(leaf).dtype == torch.float32
    assert f.cache_info().traces == 2


def test_types_of_numbers_are_told_apart(draw: Any) -> None:
    f, x = from_jax(lambda x, s: (x * 1, s * 1)), draw(3, grad=True)
    assert f(x, 2.0)[1].dtype == torch.float64
    assert f(x, 2)[1].dtype == torch.int64
    assert f(x, True)[1].dtype == torch.int64
    assert f.cache_info().traces == 3


# What has no gradient


def test_integers_and_bools_have_no_gradient(draw: Any) -> None:
    def fn(x: Any, i: Any, m: Any) -> Any:
        return jnp.where(m, x[i], 0.0), i + 1, ~m

    x, i, m = draw(5, grad=True), torch.tensor([3, 0]), torch.tensor([True, False])
    y, j, n = from_jax(fn)(x, i, m)
    assert not j.requires_grad
    assert not n.requires_grad
    assert j.tolist() == [4, 1]
    y.sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 1, 0]
    with pytest.raises(RuntimeError, match="does not require grad"):
        j.sum().backward()


def test_only_integers_out(draw: Any) -> None:
    y = from_jax(lambda x: jnp.argmax(x))(draw(5, grad=True))
    assert not y.requires_grad


def test_no_outputs_and_no_inputs(draw: Any) -> None:
    assert from_jax(lambda x: None)(draw(3, grad=True)) is None
    assert from_jax(dict)() == {}
    assert from_jax(lambda: jnp.arange(3))().tolist() == [0, 1, 2]
    assert from_jax(lambda x: x * 2)(torch.empty(0, 3)).shape == (0, 3)


def test_unused_outputs_and_inputs(draw: Any) -> None:
    f = from_jax(lambda x, unused: (jnp.sin(x), jnp.exp(x), x))
    x, unused = draw(3, grad=True), draw(3, grad=True)
    first, second, third = f(x, unused)
    assert torch.autograd.grad(second.sum(), x, retain_graph=True)[0].equal(second)
    gradient, none = torch.autograd.grad(third.sum(), (x, unused), allow_unused=True)
    assert gradient.tolist() == [1, 1, 1]
    assert none is None or not none.any()
    first = f(x, unused)[0]
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.cos(x))


def test_none_gradients(draw: Any) -> None:
    """An output whose gradient another Function answers with None."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> None:
            return None

    x = draw(3, grad=True)
    a, b = from_jax(lambda x: (x * 3, x * 5))(x)
    (Stop.apply(a).sum() + b.sum()).backward()
    assert x.grad.tolist() == [5, 5, 5]
    y = draw(3, grad=True)
    Stop.apply(from_jax(jnp.sin)(y)).sum().backward()
    assert y.grad is None or not y.grad.any()


def test_gradients_for_some_inputs(draw: Any) -> None:
    a, b = draw(3, grad=True), draw(3, grad=True)
    y = from_jax(lambda a, b: a * b)(a, b)
    (da,) = torch.autograd.grad(y.sum(), a, retain_graph=True)
    torch.testing.assert_close(da, b.detach())
    y = from_jax(lambda a, b: a * b)(a.detach(), b)
    y.sum().backward()
    assert a.grad is None
    torch.testing.assert_close(b.grad, a.detach())


def test_no_gradient_where_torch_wants_none(draw: Any) -> None:
    f, x = from_jax(jnp.sin), draw(3, grad=True)
    with torch.no_grad():
        assert not f(x).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(f(x), torch.sin(x))
    assert f(x).requires_grad
    assert not f(x.detach()).requires_grad


# What torch promises of a graph


def test_inputs_written_in_place_are_noticed(draw: Any) -> None:
    f = from_jax(lambda x, y: jnp.sin(x) * y)
    for written in (0, 1):
        inputs = [draw(3, grad=True), draw(3)]
        scaled = [inputs[0] * 1, inputs[1]]
        y = f(*scaled)
        scaled[written].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_output_written_in_place_is_noticed(draw: Any) -> None:
    """tanh keeps its result; sin does not."""
    x = draw(3, grad=True)
    y = from_jax(jnp.tanh)(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = from_jax(jnp.sin)(x)
    y.mul_(2)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x.detach()))


def test_outputs_are_not_the_inputs(draw: Any) -> None:
    x, c = draw(3), jnp.arange(3.0)
    same, constant, twice = from_jax(lambda x: (x, c, x))(x)
    same.add_(1)
    constant.add_(1)
    assert same.data_ptr() != x.data_ptr() != twice.data_ptr()
    assert torch.equal(twice, x)
    assert c.tolist() == [0, 1, 2]


def test_a_graph_is_used_once_unless_retained(draw: Any) -> None:
    f, x = from_jax(lambda x: jnp.exp(jnp.sin(x))), draw(3, grad=True)
    y = f(x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def test_residuals_are_freed_by_backward(draw: Any) -> None:
    f, x = from_jax(lambda x: jnp.sin(jnp.exp(x))), draw(1000, grad=True)
    f(x).sum().backward()
    before = live_bytes()
    y = f(x)
    held = live_bytes() - before
    assert held == 3 * y.nbytes, "y, its exponential and its cosine"
    total = y.sum()
    total.backward(retain_graph=True)
    assert live_bytes() - before == held
    total.backward()
    assert live_bytes() - before == y.nbytes, "y is alive, what its backward pass kept is not"
    y = f(x)
    del y
    assert live_bytes() == before


def test_a_graph_keeps_no_cycle(draw: Any) -> None:
    x = draw(3, grad=True)
    gc.collect()
    gc.disable()
    try:
        y = from_jax(jnp.tanh)(x)
        node = weakref.ref(y)
        y.sum().backward()
        del y
        assert node() is None
    finally:
        gc.enable()


def test_memory_stays_flat(draw: Any) -> None:
    """Forward and backward passes, without the help of the garbage collector."""
    f, w, x = from_jax(affine), *affine_arguments(draw)
    own = from_jax(lambda x: jnp.sin(x))

    def steps(count: int) -> int:
        for _ in range(count):
            own(f(w, x)).sum().backward()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    gc.collect()
    gc.disable()
    try:
        steps(300)
        before = steps(300)
        assert steps(700) - before < 2**20
    finally:
        gc.enable()


def test_a_forked_process_is_refused() -> None:
    """Also where nothing crosses into JAX: its threads are not there."""
    script = """
import os, torch, jax.numpy as jnp
from bridge.torch import from_jax

calls = [from_jax(lambda: jnp.ones(3)), lambda f=from_jax(jnp.sin): f(torch.ones(3))]
for call in calls:
    call()
if pid := os.fork():
    raise SystemExit(os.waitpid(pid, 0)[1] != 0)
for call in (*calls, from_jax(lambda: jnp.ones(4))):
    try:
        call()
        os._exit(1)
    except RuntimeError as error:
        assert "forked after JAX had started" in str(error)
os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


def test_saved_tensor_hooks(draw: Any) -> None:
    x = draw(50, grad=True)
    f = from_jax(lambda x: jnp.sin(jnp.exp(x)))
    expected = torch.cos(torch.exp(x.detach())) * torch.exp(x.detach())
    with torch.autograd.graph.save_on_cpu():
        y = f(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
    y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)


def test_cotangents_of_strides_zero_and_lazy_bits(draw: Any) -> None:
    x = draw(3, 4, grad=True)
    from_jax(jnp.sin)(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))
    z = draw(3, dtype=torch.complex128, grad=True)
    from_jax(jnp.sin)(z.conj()).conj().imag.sum().backward()
    w = z.detach().clone().requires_grad_()
    torch.sin(w.conj()).conj().imag.sum().backward()
    torch.testing.assert_close(z.grad, w.grad)


def test_layouts(draw: Any) -> None:
    f = from_jax(lambda a, b: a @ b)
    a, b = draw(6, 4), draw(8, 5)
    for left, right in ((a, b[::2]), (a.t().contiguous().t(), b[4:]), (a, b.t()[:, :4].t())):
        left, right = left.clone().requires_grad_(), right.detach().requires_grad_()
        y = f(left, right)
        torch.testing.assert_close(y, left @ right)
        torch.autograd.grad(y.square().sum(), (left, right))


# Orders and modes


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
    """By residuals, by a derivative that can be differentiated, by torch.func, in batches."""

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


# torch.func.linearize folds constants in a way that torch.fx warns of.
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


# With what there is around


def test_ops_of_bridge_inside(draw: Any) -> None:
    f = from_jax(lambda x, b: bridge.jax.bias_gelu(x, b))
    x, b = draw(5, 4, grad=True), draw(4, grad=True)
    y, expected = f(x, b), bridge.torch.bias_gelu(x, b)
    assert torch.equal(y, expected)
    g = draw(5, 4)
    ours = torch.autograd.grad(y, (x, b), g)
    theirs = torch.autograd.grad(expected, (x, b), g)
    assert all(map(torch.equal, ours, theirs))
    torch.testing.assert_close(
        torch.func.vmap(f, (0, None))(x, b),
        torch.func.vmap(bridge.torch.bias_gelu, (0, None))(x, b),
    )


def test_methods_and_nested_calls(draw: Any) -> None:
    class Model:
        scale = 3.0

        @from_jax
        def apply(self, x: Any) -> Any:
            return x * self.scale

        __hash__ = object.__hash__

    x = draw(3)
    torch.testing.assert_close(Model().apply(x), x * 3)
    assert Model.apply.__name__ == "apply"


def test_threads(draw: Any) -> None:
    f = from_jax(lambda x: jnp.sin(x) * jnp.exp(x))
    errors: list[Any] = []

    def work(seed: int) -> None:
        try:
            with jax.enable_x64(True):
                generator = torch.Generator().manual_seed(seed)
                for step in range(20):
                    x = torch.randn(3 + step % 3, dtype=torch.float64, generator=generator)
                    x.requires_grad_()
                    f(x).sum().backward()
                    expected = (torch.cos(x) + torch.sin(x)) * torch.exp(x)
                    torch.testing.assert_close(x.grad, expected.detach())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert f.cache_info().traces == 3
