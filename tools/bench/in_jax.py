"""The contenders in JAX: bridge and jax.jit of the plain composition."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bridge.jax
from bridge import _native
from tools.bench.cases import CHAIN, Case, Function, Make
from tools.bench.ops import OPS
from tools.bench.timing import Contender

Arrays = tuple[Any, ...]


class _Make(Make):
    def __init__(self, case: Case, device: Any) -> None:
        self.dtype, self.device = case.dtype, device
        self.random = np.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        # Draw a few numbers and repeat them: drawing all would take longer than the measurement.
        few = self.random.standard_normal(min(math.prod(shape), 1 << 20), np.float32)
        values = np.resize(few.astype(jnp.dtype(self.dtype)), shape)
        return jax.device_put(values, self.device)

    def wide(self, *shape: int) -> Any:
        numbers = self.normal(*shape)
        return numbers if self.dtype == "float64" else numbers.astype("float32")

    def below(self, count: int, *shape: int) -> Any:
        return jax.device_put(self.random.integers(0, count, shape, np.int32), self.device)

    def hidden(self, *shape: int) -> Any:
        padding = np.arange(shape[-1]) >= shape[-1] * 4 // 5
        return jax.device_put(np.ascontiguousarray(np.broadcast_to(padding, shape)), self.device)

    def upper(self, rows: int, columns: int) -> Any:
        upper = np.triu(np.ones((rows, columns), bool), columns - rows + 1)
        return jax.device_put(upper, self.device)

    def key(self) -> Any:
        return jax.device_put(jax.random.key(0), self.device)


class Contenders:
    """Builds the contenders of a case on a device."""

    def __init__(self, device: str) -> None:
        self.device = jax.devices(device)[0]
        self.queued = device == "cuda"
        self.notes: list[str] = []

    def of(self, case: Case) -> list[Contender]:
        """Returns bridge first, then jit; for a chain, each of them once and `CHAIN` times.

        Cases that are split over devices also have `shard_map`, with bridge's ops too.
        """
        inputs, rest, g = self._operands(case)
        functions = self._functions(case)
        if case.part == "sharded":
            return self._sharded(case, (inputs, rest, g))
        if case.what == "chain":
            functions["empty"] = _empty_call()
            return [
                self._contender(name if n == 1 else f"{name} ×{n}", _chain(f, inputs, rest, n))
                for name, f in functions.items()
                for n in (1, CHAIN)
            ]
        if case.memory == "old":
            return [self._donated(name, f, inputs, rest) for name, f in functions.items()]
        if case.what == "outside jit":
            operands = (*inputs, *rest)
            runs = {
                "bridge": _bound(functions["bridge"], *operands),
                "jit": _bound(jax.jit(functions["jit"]), *operands),
            }
        elif case.what == "backward" and OPS[case.op].starts_from_kept:
            runs = {name: _pull(f, inputs, rest, g) for name, f in functions.items()}
        else:
            make = _PASSES[case.what]
            runs = {
                name: _bound(jax.jit(make(f)), inputs, rest, g) for name, f in functions.items()
            }
        return [self._contender(name, run) for name, run in runs.items()]

    def memory(self, case: Case) -> dict[str, dict[str, int]]:
        """Returns peak bytes by contender: results and XLA's scratch memory, without operands."""
        operands = self._operands(case)
        found = {}
        for name, f in self._functions(case).items():
            compiled = jax.jit(_PASSES[case.what](f)).lower(*operands).compile()
            statistics: Any = compiled.memory_analysis()
            peak = statistics.temp_size_in_bytes + statistics.output_size_in_bytes
            found[name] = {"peak": peak}
        return found

    def _operands(self, case: Case) -> tuple[Arrays, Arrays, Any]:
        make = _Make(case, self.device)
        op = OPS[case.op]
        return *op.operands(case, make), op.cotangent(case, make)

    def _functions(self, case: Case) -> dict[str, Function]:
        op = OPS[case.op]
        return {"bridge": op.bridged(case, bridge.jax), "jit": op.in_jax(case)}

    def _contender(self, name: str, run: Callable[[], Any]) -> Contender:
        return Contender(name, run, jax.block_until_ready, queued=self.queued)

    def _donated(self, name: str, f: Function, inputs: Arrays, rest: Arrays) -> Contender:
        """Each run donates its x, and takes the memory of the result for the next x.

        The values are reset to x before each sample: repeated application would lead to values for
        which a processor or a kernel takes another time.
        """
        jitted = jax.jit(f, donate_argnums=0)
        x, others = inputs[0], (*inputs[1:], *rest)
        held = [jnp.array(x, copy=True)]

        def run() -> Any:
            held[0] = jitted(held[0], *others)
            return held[0]

        def restore() -> None:
            held[0] = jax.block_until_ready(_refill(held[0], x))

        return dataclasses.replace(self._contender(name, run), restore=restore)

    def _sharded(self, case: Case, operands: tuple[Arrays, Arrays, Any]) -> list[Contender]:
        """Returns both passes under jit, and the same by hand: a part per device, then the sums."""
        f = self._functions(case)["bridge"]
        found = jax.devices(self.device.platform)
        count = max(n for n in range(1, len(found) + 1) if case.shape[0] % n == 0)
        mesh = jax.make_mesh((count,), ("x",), (AxisType.Auto,), devices=found[:count])
        split, whole = PartitionSpec("x"), PartitionSpec()

        def spec(array: Any) -> PartitionSpec:
            return split if array.shape[:1] == case.shape[:1] else whole

        def by_hand(inputs: Arrays, rest: Arrays, g: Any) -> Any:
            y, gradients = _both(f)(inputs, rest, g)
            return y, tuple(jax.lax.psum(d, "x") if d.ndim == 1 else d for d in gradients)

        specs = jax.tree.map(spec, operands)
        placed = jax.device_put(operands, jax.tree.map(lambda s: NamedSharding(mesh, s), specs))
        mapped = jax.shard_map(
            by_hand, mesh=mesh, in_specs=specs, out_specs=(split, specs[0]), check_vma=False
        )
        return [
            self._contender(name, _bound(jax.jit(run), *placed))
            for name, run in (("bridge", _both(f)), ("shard_map", mapped))
        ]


@functools.partial(jax.jit, donate_argnums=0)
def _refill(memory: Any, values: Any) -> Any:
    """Returns the values, written into existing memory."""
    return memory.at[...].set(values)


def _bound(jitted: Any, *operands: Any) -> Callable[[], Any]:
    return lambda: jitted(*operands)


def _forward(f: Function) -> Function:
    return lambda inputs, rest, g: f(*inputs, *rest)


def _backward(f: Function) -> Function:
    # The forward value is not returned: XLA drops the parts that the backward pass does not need.
    return lambda inputs, rest, g: jax.vjp(lambda *i: f(*i, *rest), *inputs)[1](g)


def _both(f: Function) -> Function:
    def both(inputs: Arrays, rest: Arrays, g: Any) -> Any:
        y, pull = jax.vjp(lambda *i: f(*i, *rest), *inputs)
        return y, pull(g)

    return both


_PASSES = {"forward": _forward, "backward": _backward, "forward+backward": _both}


def _pull(f: Function, inputs: Arrays, rest: Arrays, g: Any) -> Callable[[], Any]:
    """Returns the backward pass alone, from the residuals of the forward pass."""
    forward = jax.jit(lambda inputs, rest: jax.vjp(lambda *i: f(*i, *rest), *inputs)[1])
    pull = forward(inputs, rest)
    return _bound(jax.jit(lambda pull, g: pull(g)), pull, g)


@functools.cache
def _empty_call() -> Function:
    """Returns a call like an op's, with as many attributes, to a handler that does nothing."""
    for platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target("bridge_empty", _native.empty_handler(), platform=platform)

    def call(x: Any, *others: Any) -> Any:
        return jax.ffi.ffi_call("bridge_empty", jax.ShapeDtypeStruct(x.shape, x.dtype))(
            x,
            *others,
            attributes=np.zeros(3),
            count=np.int32(1 + len(others)),
            slots=np.arange(1 + len(others), dtype=np.int32),
            outputs=np.int32(1),
        )

    return call


def _chain(f: Function, inputs: Arrays, rest: Arrays, count: int) -> Callable[[], Any]:
    @jax.jit
    def chain(inputs: Arrays, rest: Arrays) -> Any:
        x, *others = inputs
        for _ in range(count):
            x = f(x, *others, *rest)
        return x

    return lambda: chain(inputs, rest)
