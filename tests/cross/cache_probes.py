"""Calls that fill every cache of the package, under one value of a global setting after another.

`python -m tests.cross.cache_probes SETTING` runs them in forked processes: cold ones, which see one
value, and a warm one, which sees the first, the other and the first again. It prints the results of
all calls, and the caches of docs/caches.md that the warm process has left empty.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch
import torch._dynamo
from jax import numpy as jnp

import bridge
import bridge.jax as bj
import bridge.lang as bl
import bridge.torch as bt
from bridge.torch import from_jax

Tensor = torch.Tensor


def cast(x: bl.Full, bias: bl.Row, *, scale: float = 2.0) -> Any:
    return bl.exp(x * scale + bias) / bl.sum(bl.exp(x))


declared = bridge.op(cast)
SHAPE = (4, 6)
rng = np.random.default_rng(5)
X, BIAS, G = rng.normal(size=SHAPE), rng.normal(size=6), rng.normal(size=SHAPE)
LABELS = np.arange(4)


def tensors(dtype: torch.dtype = torch.float32, grad: bool = True) -> tuple[Tensor, Tensor]:
    x, bias = (torch.tensor(a, dtype=dtype, device="cpu") for a in (X, BIAS))
    return x.requires_grad_(grad), bias.requires_grad_(grad)


# Ops of torch


def images(x: Tensor) -> Tensor:
    larger = bt.interpolate(bt.max_pool(x[None], 2), scale_factor=2.0, mode="linear")
    own = larger.detach()  # forward mode runs the programs of taps
    _, tangent = torch.func.jvp(lambda x: bt.avg_pool(x, 3, 1, 1), (own,), (own,))
    return bt.avg_pool(larger, 3, 1, 1) + tangent


CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "bias_gelu": bt.bias_gelu,
    "softmax": lambda x, b: bt.scaled_masked_softmax(x, x.detach() > 0, 0.5),
    "causal_softmax": lambda x, b: bt.scaled_causal_softmax(x, 0.5),
    "dropout": lambda x, b: bt.bias_dropout_add(x, b, x, p=0.5, seed=3),
    "rms_norm": lambda x, b: bt.rms_norm(x, b, residual=x)[0],
    "layer_norm": bt.layer_norm,
    "cross_entropy": lambda x, b: bt.cross_entropy(x, torch.tensor(LABELS, device="cpu")),
    "linear": lambda x, b: bt.linear_cross_entropy(
        x, x * 2, torch.tensor([0, 1, 2, 3], device="cpu")
    ),
    "vision": lambda x, b: bt.batch_norm(images(x), None, None, training=True),
    "declared": declared,
    "all_gather": lambda x, b: bt.all_gather(x, check=False),
}


def in_torch(call: Callable[..., Any]) -> list[Any]:
    """Returns the value, gradients, and their gradients, as far as the grad mode allows."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        x, bias = tensors(dtype)
        y = call(x, bias)
        found.append(y)
        if y.requires_grad:
            g = torch.ones_like(y)
            first = torch.autograd.grad(y, x, g, create_graph=True)
            found += first
            if first[0].requires_grad:
                found += torch.autograd.grad(first[0].sum(), x)
    return found


def transformed() -> list[Any]:
    x, bias = tensors(grad=False)
    tangent = torch.tensor(G, dtype=torch.float32, device="cpu")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        moved = torch.autograd.forward_ad.unpack_dual(bt.bias_gelu(dual, bias))
        unmoved = torch.autograd.forward_ad.unpack_dual(declared(dual, bias))
    batched = torch.func.vmap(lambda x: bt.rms_norm(x))(x)
    return [*moved, *unmoved, batched, bt.rms_norm(x, out=torch.empty_like(x))]


@torch.compile(backend="eager")
def compiled(x: Tensor, bias: Tensor) -> Tensor:
    return bt.bias_gelu(declared(x, bias), bias)


# Ops of JAX

in_jit = jax.jit(lambda x, b: bj.rms_norm(bj.bias_gelu(x, b)) * 2)
gradient = jax.jit(jax.grad(lambda x, b: declared(x, b).sum(), (0, 1)))


def in_jax() -> list[Any]:
    x, bias = X.astype(np.float32), BIAS.astype(np.float32)
    wide = bj.rms_norm(jnp.asarray(X))
    weak = bj.bias_gelu(jnp.asarray(x), None)
    losses = bj.cross_entropy(x, LABELS)
    dropped = bj.bias_dropout_add(x, bias, p=0.5, seed=2**40 + 1)
    drawn = bj.bias_dropout_add(x, bias, p=0.5, seed=jax.random.key(3))
    nan = bj.scaled_softmax(np.where(x > 1, np.nan, x).astype(np.float32))
    inf = bj.squared_relu(np.where(x > 1, np.inf, x).astype(np.float32))
    return [in_jit(x, bias), *gradient(x, bias), wide, weak, losses, dropped, drawn, nan, inf]


# Functions used in the other framework

product = from_jax(lambda x, w: jnp.sin(x @ w) * (1 / 3))
scaled = from_jax(lambda x, n: x * n + jax.random.normal(jax.random.key(3), x.shape))
wide_in_torch = bj.from_torch(lambda x: x.argmax(-1) + 2**40)
wide_in_jit = jax.jit(wide_in_torch)
ones = bj.from_torch(lambda x: x / 2 + torch.ones(4))
layer = torch.nn.Linear(6, 2, dtype=torch.float32)
with torch.no_grad():
    layer.weight.copy_(torch.tensor(X[:2], dtype=torch.float32))
    layer.bias.zero_()
module = bj.from_torch(layer, vmap_method="vmap")
module_in_jit = jax.jit(jax.grad(lambda p, x: module(p, x).sum()))
drawing = bj.from_torch(lambda x: torch.rand_like(x), seeded=True)


def from_jax_functions() -> list[Any]:
    x, w = (torch.tensor(a, dtype=torch.float32, device="cpu") for a in (X, G.T))
    x.requires_grad_()
    y = product(x, w)
    found = [y, scaled(x, 3), torch.func.vmap(product, (0, None))(x.detach(), w)]
    if y.requires_grad:
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        found += [first, *torch.autograd.grad(first.sum(), x)]
    return found


def module_of_jax() -> list[Any]:
    params = {name: jnp.asarray(t.detach().numpy()) for name, t in layer.named_parameters()}
    x = X.astype(np.float32)
    return [
        module(params, x),
        *module_in_jit(params, x).values(),
        jax.vmap(module, (None, 0))(params, x),
        drawing(x, seed=3),
    ]


PROBES: dict[str, Callable[[], Any]] = {
    **{f"torch {name}": functools.partial(in_torch, call) for name, call in CALLS.items()},
    "transforms": transformed,
    "compiled": lambda: compiled(*tensors(grad=False)),
    "jax": in_jax,
    "numpy": lambda: declared(X.astype(np.float32), BIAS.astype(np.float32)),
    "from_jax": from_jax_functions,
    "wide": lambda: wide_in_torch(X.astype(np.float32)),
    "wide in jit": lambda: wide_in_jit(X.astype(np.float32)),
    "ones": lambda: ones(LABELS.astype(np.int32)),
    "module": module_of_jax,
    "to_jax": lambda: bridge.to_jax(torch.tensor(X, device="cpu")),
    "to_torch": lambda: bridge.to_torch(jnp.asarray(X)),
    "checked": lambda: [type(r).__name__ for r in [bt.all_gather(tensors(grad=False)[0])]],
}


# Settings: the first value is the default of a process.


@contextlib.contextmanager
def set_back(get: Callable[[], Any], set_to: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    set_to(value)
    try:
        yield
    finally:
        set_to(before)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def option(name: str) -> Callable[[Any], Any]:
    return lambda value: set_back(
        lambda: getattr(jax.config, name), lambda value: jax.config.update(name, value), value
    )


def on_device(index: int) -> Any:
    return jax.default_device(jax.devices("cpu")[index])


SETTINGS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "jax_enable_x64": (jax.enable_x64, False, True),
    "jax_default_matmul_precision": (jax.default_matmul_precision, "default", "highest"),
    "jax_numpy_dtype_promotion": (option("jax_numpy_dtype_promotion"), "standard", "strict"),
    "jax_numpy_rank_promotion": (option("jax_numpy_rank_promotion"), "allow", "raise"),
    # After JAX's own context managers, a later jax.config.update has no effect on the thread.
    "jax_debug_nans": (jax.debug_nans, False, True),
    "jax_debug_infs": (jax.debug_infs, False, True),
    "jax_disable_jit": (jax.disable_jit, False, True),
    "jax_default_device": (on_device, 0, 1),
    "jax_default_prng_impl": (option("jax_default_prng_impl"), "threefry2x32", "rbg"),
    "jax_threefry_partitionable": (option("jax_threefry_partitionable"), True, False),
    "torch.set_default_dtype": (
        lambda value: set_back(torch.get_default_dtype, torch.set_default_dtype, value),
        torch.float32,
        torch.float64,
    ),
    "torch.device": (torch.device, "cpu", "meta"),
    "torch.autocast": (
        lambda enabled: torch.autocast("cpu", torch.bfloat16, enabled=enabled),
        False,
        True,
    ),
    "torch.set_grad_enabled": (torch.set_grad_enabled, True, False),
    "torch.inference_mode": (torch.inference_mode, False, True),
    "torch.autograd.set_detect_anomaly": (torch.autograd.set_detect_anomaly, False, True),
    "torch.set_num_threads": (
        lambda value: set_back(torch.get_num_threads, torch.set_num_threads, value),
        1,
        2,
    ),
    "torch.use_deterministic_algorithms": (
        lambda value: set_back(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, value
        ),
        False,
        True,
    ),
    "torch.set_float32_matmul_precision": (
        lambda value: set_back(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value
        ),
        "highest",
        "medium",
    ),
    "torch.profiler": (
        lambda on: torch.autograd.profiler.profile(enabled=on),
        False,
        True,
    ),
    "BRIDGE_CHECK_COLLECTIVES": (
        functools.partial(environment, "BRIDGE_CHECK_COLLECTIVES"),
        "1",
        "0",
    ),
    "BRIDGE_COMPILE": (functools.partial(environment, "BRIDGE_COMPILE"), "0", "background"),
}


# The comparison


def described(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if isinstance(value, Tensor):
        kind = [str(value.dtype), list(value.shape), str(value.device), value.requires_grad]
        if value.is_meta:
            return kind
        value = value.detach().clone().reshape(-1).view(torch.uint8).numpy()
        return [*kind, _digest(value)]
    if isinstance(value, jax.Array):
        place = [str(value.device), value.committed, value.weak_type]
        return [str(value.dtype), list(value.shape), *place, _digest(np.asarray(value))]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), _digest(value)]
    return value


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def outcome(probe: Callable[[], Any]) -> Any:
    try:
        return described(probe())
    except Exception as error:  # an exception is an outcome like any other
        return [type(error).__name__, str(error).partition("\n")[0][:200]]


def outcomes(setting: str, value: Any) -> dict[str, Any]:
    enter = SETTINGS[setting][0]
    with enter(value):
        return {name: outcome(probe) for name, probe in PROBES.items()}


# Filled caches


def objects_of_bridge() -> list[Any]:
    """Returns all objects that a cache may belong to."""
    kinds = types.FunctionType, functools._lru_cache_wrapper
    return [
        each
        for each in gc.get_objects()
        if type(each) in kinds or str(type(each).__module__).startswith("bridge")
    ]


def is_filled(name: str, objects: list[Any]) -> bool:
    """True if a cache, named as in docs/caches.md, has an entry in any of the objects."""
    path, _, inner = name.partition(":")
    module = sys.modules[f"bridge.{path.replace('/', '.')}".removesuffix(".__init__")]
    owner, _, last = inner.rpartition(".")
    found = vars(module)
    if not owner:
        return _has_entries(found[last])
    kind = found.get(owner)
    if isinstance(kind, type):
        of_kind = [each for each in objects if kind in type(each).__mro__]
        is_property = isinstance(vars(kind).get(last), functools.cached_property)
        return any(
            last in vars(each) if is_property else _has_entries(getattr(each, last, None))
            for each in of_kind
        )
    local = f"{owner}.<locals>."
    return any(_has_entries(value) for value in _of_closures(objects, module.__name__, local, last))


def _of_closures(objects: list[Any], module: str, local: str, name: str) -> Iterator[Any]:
    """Yields the values of a function's local name in the closures that it has made."""
    for each in objects:
        if type(each) is functools._lru_cache_wrapper:
            wrapped = each.__wrapped__
            if (wrapped.__module__, wrapped.__qualname__) == (module, local + name):
                yield each
        elif type(each) is types.FunctionType and each.__module__ == module:
            names = each.__code__.co_freevars
            if each.__qualname__.startswith(local) and name in names and each.__closure__:
                with contextlib.suppress(ValueError):  # an empty cell
                    yield each.__closure__[names.index(name)].cell_contents


def _has_entries(value: Any) -> bool:
    if isinstance(value, functools._lru_cache_wrapper):
        return value.cache_info().currsize > 0
    if isinstance(value, types.SimpleNamespace):
        return bool(vars(value))
    return bool(value)


def run(setting: str, values: list[Any], caches: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"outcomes": [outcomes(setting, value) for value in values]}
    objects = objects_of_bridge() if caches else []
    found["empty"] = [name for name in caches if not is_filled(name, objects)]
    return found


def in_child(work: Callable[[], Any]) -> Any:
    """Returns the result in a child process that has imported everything and called nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(work(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "a process ended with an error"
    return json.loads(text)


def main(setting: str, caches: list[str]) -> None:
    _, first, other = SETTINGS[setting]
    cold = [in_child(lambda v=v: run(setting, [v], [])) for v in (first, other)]  # type: ignore[misc]
    warm = in_child(lambda: run(setting, [first, other, first], caches))
    expected = [each["outcomes"][0] for each in cold]
    report = {
        "expected": [*expected, expected[0]],
        "found": warm["outcomes"],
        "empty": warm["empty"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    main(sys.argv[1], json.loads(sys.argv[2]))
