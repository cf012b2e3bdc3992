"""Callbacks of from_torch: devices, threads, errors, memory, and calls that could hang."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import traceback
import warnings
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import numpy as jnp

import bridge.torch
from bridge.jax import from_torch, torch_errors
from tests.jax.subprocess_run import run

pytestmark = pytest.mark.processes

FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


# Devices

ON_FOUR_DEVICES = """
import threading
import jax, numpy as np, torch
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from bridge.jax import from_torch

calls = []
def in_torch(x, w):
    calls.append(tuple(x.shape))
    return torch.tanh(x @ w)
def in_jax(x, w):
    return jnp.tanh(x @ w)
def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
def gradient(f):
    return jax.jit(jax.grad(lambda w, x: (f(x, w) ** 2).sum(), (0, 1)))

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 4)).astype(np.float32)
w = rng.standard_normal((4, 5)).astype(np.float32)
g = from_torch(in_torch)
expected, gradients = in_jax(x, w), gradient(in_jax)(w, x)
assert jax.device_count() == 4

def on(axis_type):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(axis_type,))
    put = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))
    return mesh, put(x, "d"), put(w)
"""


def on_four_devices(code: str) -> None:
    assert run(ON_FOUR_DEVICES + code + "\nprint('done')", **FOUR_DEVICES) == "done"


@pytest.mark.long
def test_automatic_sharding_calls_once_for_all_devices() -> None:
    on_four_devices("""
mesh, xs, ws = on(AxisType.Auto)
f = jax.jit(g)
jax.block_until_ready(f(xs, ws))
calls.clear()
near(f(xs, ws), expected)
assert calls == [(8, 4)], calls
jax.tree.map(near, gradient(g)(ws, xs), gradients)
near(g(xs, ws), expected)
near(jax.grad(lambda w: (g(xs, w) ** 2).sum())(ws), gradients[0])
with jax.enable_x64(True):  # of which the callback's thread knows nothing
    both = jax.jit(from_torch(lambda x: (x.double().sin(), x.bfloat16(), x.sum().long())))(xs)
assert [y.dtype.name for y in both] == ["float64", "bfloat16", "int64"]
near(both[0], np.sin(x))
""")


@pytest.mark.long
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_calls_on_each_device(check_vma: bool) -> None:
    on_four_devices(f"""
mesh, xs, ws = on(AxisType.Auto)
h = jax.shard_map(g, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"), check_vma={check_vma})
f = jax.jit(h)
jax.block_until_ready(f(xs, ws))
calls.clear()
near(f(xs, ws), expected)
assert calls == [(2, 4)] * 4, calls
jax.tree.map(near, gradient(h)(ws, xs), gradients)
near(h(xs, ws), expected)
""")


@pytest.mark.long
def test_explicit_sharding() -> None:
    on_four_devices("""
mesh, xs, ws = on(AxisType.Explicit)
with jax.set_mesh(mesh):
    near(jax.jit(lambda x, w: g(x, w) + 1)(xs, ws), expected + 1)
    near(gradient(g)(ws, xs)[0], gradients[0])
    columns = jax.device_put(x, NamedSharding(mesh, P(None, "d")))
    rows = jax.device_put(np.eye(x.shape[1], dtype=x.dtype), NamedSharding(mesh, P("d")))
    parts = P(None, None, unreduced={"d"})
    near(jax.jit(lambda x, y, w: g(jnp.einsum("ij,jk->ik", x, y, out_sharding=parts), w))(
        columns, rows, ws), expected)
""")


@pytest.mark.long
def test_partly_manual_mesh_is_refused() -> None:
    on_four_devices("""
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
f = jax.shard_map(g, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"})
try:
    jax.jit(f)(x, w)
except NotImplementedError as error:
    assert "shard_map over all axes" in str(error)
else:
    raise AssertionError
mesh = jax.make_mesh((4, 1), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
f = jax.shard_map(g, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"})
near(jax.jit(f)(x, w), expected)  # an axis of one device splits nothing
""")


# Nothing hangs


@pytest.mark.long
def test_eager_results_are_where_the_arguments_are() -> None:
    """Results are on the device of committed arguments, as in jnp; also for derivatives and jit."""
    on_four_devices("""
for device in jax.devices()[::3]:
    there = jax.device_put(x, device)
    results = [g(there, w), jax.grad(lambda x: g(x, w).sum())(there), jax.vmap(
        from_torch(in_torch, vmap_method="vmap"), (0, None))(there[None], w), jax.jit(g)(there, w)]
    assert [result.device for result in results] == [device] * 4, (device, results)
    near(results[0], expected)
    other = jax.device_put(w, jax.devices()[1])
    try:
        g(there, other)
    except ValueError as error:
        assert ", ".join(sorted(map(str, (device, other.device)))) in str(error), error
    else:
        raise AssertionError("nothing was raised")
""")


@pytest.mark.long
def test_eager_results_are_where_jit_puts_them() -> None:
    """If no argument is committed, they are on the default device, and uncommitted."""
    on_four_devices("""
second, last = jax.devices()[1], jax.devices()[3]
one = from_torch(lambda: torch.ones(3))
def place(array):
    return array.device, array.committed
with jax.default_device(second):
    here = jnp.asarray(x)
kinds = [(g, (here, w)), (g, (here, jax.device_put(w, last))), (one, ()), (
    jax.grad(lambda x, w: g(x, w).sum()), (here, w)), (jax.vmap(
        from_torch(in_torch, vmap_method="sequential"), (0, None)), (here[None], w))]
for default in (None, second, last):
    with jax.default_device(default):
        for f, arguments in kinds:
            eager, compiled = f(*arguments), jax.jit(f)(*arguments)
            assert place(eager) == place(compiled), (default, place(eager), place(compiled))
            np.testing.assert_array_equal(eager, compiled)
free = g(here, w)
donate = jax.jit(lambda x: x + 1, donate_argnums=0)
near(donate(free), expected + 1)
assert free.is_deleted()
""")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_many_calls_at_once_from_threads_and_devices() -> None:
    """The calls have large operands, results that others wait for, and more threads than cores."""
    on_four_devices("""
import faulthandler
faulthandler.dump_traceback_later(200, exit=True)
mesh, xs, ws = on(AxisType.Auto)
big = rng.standard_normal((512, 512)).astype(np.float32)
g = from_torch(lambda x, w: torch.tanh(x @ w))
along = jax.shard_map(lambda x, w: jax.lax.psum(g(x, w), "d"), mesh=mesh,
                      in_specs=(P("d"), P()), out_specs=P())
programs = [
    (jax.jit(g), big, big),
    (jax.jit(lambda x, w: jax.lax.scan(lambda x, _: (g(x, w), None), x, length=5)[0]), big, big),
    (jax.jit(jax.grad(lambda x, w: g(x, w).sum())), big, big),
    (g, big, big),
]
expected = [np.asarray(f(a, b)) for f, a, b in programs]
wrong = []
def work(k):
    f, a, b = programs[k % len(programs)]
    for device in jax.devices("cpu") * 3:
        found = f(jax.device_put(a, device), jax.device_put(b, device))
        if not np.allclose(found, expected[k % len(programs)], atol=1e-4):
            wrong.append(k)
def work_together():
    # Programs with collectives come from one thread: their order must be the same everywhere.
    f = jax.jit(along)
    for _ in range(12):
        near(f(xs, ws), in_jax(x, w).reshape(4, 2, 5).sum(0))
threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(12)]
threads.append(threading.Thread(target=work_together, daemon=True))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(150)
assert not any(thread.is_alive() for thread in threads)
assert not wrong, wrong
""")


@pytest.mark.timeout(120)
def test_jax_inside_a_callback_is_refused() -> None:
    """torch in JAX in torch in JAX: the inner JAX call would deadlock with the outer threads."""
    inner = bridge.torch.from_jax(lambda x: jnp.sin(x))
    again = from_torch(torch.cos)
    kept = jnp.ones(3)

    def through(call: Any) -> Any:
        return from_torch(lambda x: (call(x.detach()), x)[1], result_shape=lambda x: x)

    for name, call in (
        ("from_jax", inner),
        ("from_torch", lambda x: again(kept)),
    ):
        with pytest.raises(RuntimeError, match="can deadlock") as caught, torch_errors():
            jax.jit(through(call))(jnp.ones(3)).block_until_ready()
        assert name in str(caught.value)


@pytest.mark.timeout(120)
def test_jax_inside_an_eager_call_works() -> None:
    inner = bridge.torch.from_jax(lambda x: jnp.sin(x) * x)
    g = from_torch(lambda x: inner(x) * 2)
    x = jnp.linspace(0.0, 1.0, 4)
    np.testing.assert_allclose(g(x), jnp.sin(x) * x * 2, rtol=1e-6)
    found = jax.grad(lambda x: g(x).sum())(x)
    np.testing.assert_allclose(found, 2 * (jnp.cos(x) * x + jnp.sin(x)), rtol=1e-5)


@pytest.mark.timeout(120)
def test_torch_inside_jax_inside_torch_works() -> None:
    g = from_torch(lambda x: torch.sin(x) * x)
    f = bridge.torch.from_jax(lambda x: g(x) * 2)
    x = torch.linspace(0, 1, 4, requires_grad=True)
    f(x).sum().backward()
    assert x.grad is not None
    y = x.detach()
    torch.testing.assert_close(x.grad, 2 * (torch.cos(y) * y + torch.sin(y)))


def _in_child(queue: Any, call: Any) -> None:
    try:
        call()
    except BaseException as error:
        queue.put(f"{type(error).__name__}: {error}")
    else:
        queue.put("no error")


@pytest.mark.timeout(120)
def test_a_forked_process_is_refused() -> None:
    x = jnp.ones(3)
    g = from_torch(lambda x: x + 1)
    g(x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn too
        child = context.Process(target=_in_child, args=(queue, lambda: g(x)))
        child.start()
    message = queue.get(timeout=60)
    child.join(60)
    assert message.startswith("RuntimeError: this process was forked after JAX had started")


# Errors


class Mine(Exception):
    pass


def raises_mine(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch._subclasses.FakeTensor):
        raise Mine("what went wrong")
    return x


def raises_stop(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, torch._subclasses.FakeTensor):
        raise StopIteration
    return x


def test_an_eager_error_is_itself() -> None:
    with pytest.raises(Mine) as caught:
        from_torch(raises_mine)(jnp.ones(3))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "raises_mine"


def test_an_error_inside_jit_has_the_traceback_in_its_text() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="what went wrong") as caught:
        jax.jit(from_torch(raises_mine))(jnp.ones(3)).block_until_ready()
    assert 'raise Mine("what went wrong")' in str(caught.value)


@pytest.mark.parametrize("function", [raises_mine, raises_stop], ids=lambda f: f.__name__)
def test_torch_errors_raises_the_original(function: Any) -> None:
    f = jax.jit(from_torch(function))
    for _ in range(2):
        with pytest.raises((Mine, StopIteration)) as caught, torch_errors():
            f(jnp.ones(3)).block_until_ready()
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == function.__name__
        assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    with pytest.raises(ZeroDivisionError), torch_errors():
        _ = 1 / 0


def test_a_result_of_another_shape_is_an_error() -> None:
    g = from_torch(lambda x: x[x > 0], result_shape=lambda x: x)
    near = jax.jit(g)(jnp.ones(3))
    np.testing.assert_array_equal(near, np.ones(3))
    with pytest.raises(ValueError, match=r"float32\[0\].*float32\[3\]"), torch_errors():
        jax.jit(g)(-jnp.ones(3)).block_until_ready()


def test_an_error_on_one_of_several_devices_is_logged() -> None:
    on_four_devices("""
import logging
from bridge.jax import torch_errors
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logging.getLogger("bridge").addHandler(Keep())
def one(x):
    if x[0] == 3:
        raise KeyError("mine")
    return x
mesh, _, _ = on(AxisType.Auto)
g = from_torch(one, result_shape=lambda x: x)
f = jax.jit(jax.shard_map(g, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
try:
    with torch_errors():
        jax.block_until_ready(f(jnp.arange(4.0)))
except KeyError as error:
    assert error.args == ("mine",)
else:
    raise AssertionError
assert len(records) == 1 and records[0].endswith("KeyError: 'mine'\\n"), records
""")


INTERRUPTED = """
import os, signal
import jax, jax.numpy as jnp, torch
from bridge.jax import from_torch, torch_errors

# Python leaves SIGINT alone where it was ignored at the start, as a shell has it in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Then the callback runs where Ctrl-C arrives, on the main thread.
jax.config.update("jax_cpu_enable_async_dispatch", False)

pressed = []
def pressed_during(x):
    y = x.sin()
    if not isinstance(x, torch._subclasses.FakeTensor) and (not WHEN_BACKWARD or x.requires_grad):
        pressed.append(True)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100_000):
            pass
        pressed.append(False)  # is not reached
    return y

g = from_torch(pressed_during)
f = jax.jit(jax.grad(lambda x: g(x).sum()) if WHEN_BACKWARD else g)
for _ in range(2):
    try:
        with torch_errors():
            f(jnp.ones(3)).block_until_ready()
    except KeyboardInterrupt as error:
        assert isinstance(error.__cause__, jax.errors.JaxRuntimeError)
    else:
        raise AssertionError
assert pressed == [True, True]
assert (jax.jit(from_torch(torch.square))(jnp.ones(3)) == 1).all()  # and all goes on
print("done")
"""


@pytest.mark.long
@pytest.mark.parametrize("backward", [False, True])
def test_ctrl_c_in_a_callback(backward: bool) -> None:
    assert run(f"WHEN_BACKWARD = {backward}\n{INTERRUPTED}") == "done"


# Memory and state


def test_a_function_that_keeps_its_arguments_gets_copies() -> None:
    kept: list[torch.Tensor] = []
    f = jax.jit(from_torch(lambda x: (kept.append(x), x + 1)[1]))
    for k in range(20):
        f(jnp.full(1000, float(k))).block_until_ready()
    kept = [x for x in kept if not isinstance(x, torch._subclasses.FakeTensor)]
    assert [float(x.sum()) for x in kept] == [1000.0 * k for k in range(20)]


def test_a_function_that_begins_to_keep_its_arguments_is_refused() -> None:
    kept: list[torch.Tensor] = []

    def sometimes(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch._subclasses.FakeTensor) and keep.item():
            kept.append(x[1:])
        return x + 1

    f = jax.jit(from_torch(sometimes))
    f(jnp.ones(3), False).block_until_ready()
    with pytest.raises(RuntimeError, match="has kept an argument"), torch_errors():
        f(jnp.ones(3), True).block_until_ready()


def test_a_gradient_that_keeps_its_arguments_gets_copies() -> None:
    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.result = x.sin()  # a reference cycle that is common and harmless
            ctx.x = x
            return ctx.result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.x.cos()

    f = jax.jit(jax.value_and_grad(lambda x: from_torch(Keeping.apply)(x).sum()))
    for k in range(3):
        x = jnp.full(3, float(k))
        value, gradient = f(x)
        np.testing.assert_allclose(value, jnp.sin(x).sum(), rtol=1e-6)
        np.testing.assert_allclose(gradient, jnp.cos(x), rtol=1e-6)


def test_cycles_do_not_count_as_kept() -> None:
    def cyclic(x: torch.Tensor) -> torch.Tensor:
        cell: list[Any] = [x]
        cell.append(cell)
        return x + 1

    f = jax.jit(from_torch(cyclic))
    gc.disable()
    try:
        for _ in range(3):
            f(jnp.ones(3)).block_until_ready()
    finally:
        gc.enable()


def test_subnormal_numbers_survive_callbacks() -> None:
    """XLA's threads would flush them to zero."""
    x = np.float32([1e-40, -1e-45])
    f = jax.jit(from_torch(lambda bits: bits.view(torch.float32) * 1.0))
    assert np.asarray(f(x.view(np.int32))).tobytes() == x.tobytes()


def test_the_callers_modes_have_no_effect() -> None:
    g = from_torch(lambda x, w: x @ w)
    x = jnp.ones((3, 3)) / 3
    expected = np.asarray(g(x, x))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert np.asarray(g(x, x)).tobytes() == expected.tobytes()
        assert np.asarray(jax.jit(g)(x, x)).tobytes() == expected.tobytes()
        jax.jit(jax.grad(lambda x: g(x, x).sum()))(x)


def test_seeded_calls_at_once_draw_their_own_numbers() -> None:
    g = from_torch(lambda x: torch.rand_like(x), seeded=True)
    f = jax.jit(lambda x, seed: g(x, seed=seed))
    x = jnp.ones(1000)
    expected = [np.asarray(g(x, seed=k)) for k in range(4)]
    wrong = []

    def work(k: int) -> None:
        for _ in range(20):
            if not np.array_equal(f(x, k), expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_jitted_call_traces_once() -> None:
    traces = []
    g = from_torch(lambda x: x + 1)

    @jax.jit
    def f(x: Any) -> Any:
        traces.append(1)
        return g(x)

    for _ in range(3):
        f(jnp.ones(3))
    assert len(traces) == 1
    # The same call twice in one program is the same jaxpr: JAX's caches see it.
    jaxprs = {str(jax.make_jaxpr(g)(jnp.ones(3))) for _ in range(2)}
    assert len(jaxprs) == 1
