"""JAX functions in torch's graph: gradients, residuals, and detected changes in place."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import jax
import pytest
import torch
from jax import numpy as jnp
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from bridge.torch import from_jax
from tests.cross.affine import affine, affine_arguments

pytestmark = pytest.mark.usefixtures("wide")


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
    """Another Function returns None as the gradient of an output."""

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
    """exp saves its result for the backward pass; sin does not."""
    x = draw(3, grad=True)
    y = from_jax(jnp.exp)(x)
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
    """Forward and backward passes free their memory without the garbage collector."""
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


@pytest.mark.long
def test_a_forked_process_is_refused() -> None:
    """Calls without conversion into JAX are refused too: JAX's threads do not exist there."""
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


def saving(*ops: Any) -> Any:
    """Returns contexts of a selective checkpoint that saves the results of these ops."""

    def policy(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


def checkpoint_nested(function: Any, *arguments: Any) -> Any:
    inner = functools.partial(checkpoint, function, use_reentrant=False)
    return checkpoint(lambda *a: inner(*a[:-1], inner(*a)), *arguments, use_reentrant=False)


CHECKPOINTS = {
    "plain": (functools.partial(checkpoint, use_reentrant=False), 2),
    "reentrant": (functools.partial(checkpoint, use_reentrant=True), 2),
    "selective": (functools.partial(checkpoint, use_reentrant=False, context_fn=saving()), 2),
    "selective, saved": (
        functools.partial(
            checkpoint,
            use_reentrant=False,
            context_fn=saving(torch.ops.bridge.jax_program.default),
        ),
        1,
    ),
    "nested": (checkpoint_nested, 5),
}


@pytest.mark.parametrize("stops_early", [True, False])
@pytest.mark.parametrize(("run", "passes"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints(run: Any, passes: int, stops_early: bool, draw: Any) -> None:
    w, x = draw(4, 4, grad=True), draw(3, 4, grad=True)
    runs = []

    def fn(w: Any, x: Any) -> Any:
        jax.debug.callback(lambda: runs.append(1))
        return jnp.exp(jnp.sin(x @ w))

    f = from_jax(fn)
    block = lambda w, x: f(w, f(w, x * 2).cos()) + x  # noqa: E731
    again = functools.partial(block, w) if run is checkpoint_nested else lambda y: y
    again(block(w, x)).sum().backward()
    expected, w.grad, x.grad = (w.grad, x.grad), None, None
    jax.effects_barrier()
    runs.clear()
    with set_checkpoint_early_stop(stops_early):
        run(block, w, x).sum().backward()
    torch.testing.assert_close((w.grad, x.grad), expected)
    jax.effects_barrier()
    assert len(runs) == 2 * passes or not stops_early  # a nested one then runs once more


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
