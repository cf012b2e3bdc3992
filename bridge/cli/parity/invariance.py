"""Checks that a row has the same bits alone, in any batch, and on any threads and devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import torch

import bridge.jax
import bridge.torch
from bridge.cli.catalogue import ROW_OPS
from bridge.cli.entries import Entry, draw
from bridge.cli.parity import in_jax, in_torch
from bridge.cli.parity.measure import differing_bits
from bridge.cli.parity.places import NUMPY

Array = np.ndarray
Operands = Mapping[str, Any]
Results = dict[str, Any]

ROWS, COLUMNS = 97, 257  # the number of different rows; a batch repeats them
BATCHES = (2, 3, 8, 100, 1000, 4096)
THREADS = (1, 2, 3)


def cases(quick: bool) -> Iterator[tuple[str, str]]:
    """Yields names of ops and dtypes."""
    dtypes = itertools.cycle(("bfloat16", "float32"))
    for name in ROW_OPS:
        yield from ((name, dtype) for dtype in (next(dtypes), *([] if quick else [next(dtypes)])))


def in_json(name: str, dtype: str, device: str, quick: bool = False) -> list[dict[str, Any]]:
    """Returns a row of the report for each way to run the op, in JSON's types."""
    entry, random = ROW_OPS[name], np.random.default_rng(list(f"{name} {dtype}".encode()))
    given: dict[str, Array] = {}
    for operand, role in entry.roles.items():
        given[operand] = draw(role, (ROWS, COLUMNS), NUMPY[dtype], random)
    p = _tensors(given, device)
    shapes = [tuple(y.shape) for y in _several(entry.call(bridge.torch, p))]
    for i, shape in enumerate(shapes):
        of_result = dtype if entry.results[i] in ("full", "packed") else "float32"
        given[f"g{i}"] = np.asarray(random.standard_normal(shape), NUMPY[of_result])
    return [
        {
            "name": name,
            "dtype": dtype,
            "how": how,
            "elements": elements,
            "differing": differing,
            "passed": differing == 0,
        }
        for how, elements, differing in _compared(entry, given, device, quick)
    ]


def _compared(
    entry: Entry, given: Mapping[str, Array], device: str, quick: bool
) -> Iterator[tuple[str, int, int]]:
    """Yields each way to run rows, the number of their elements, and the number that differ."""

    def run_torch(p: Mapping[str, Array]) -> dict[str, Array]:
        found = _in_torch(entry, _tensors(p, device))
        return {name: in_torch.to_numpy(result) for name, result in found.items()}

    jitted = jax.jit(lambda p: _in_jax(entry, p))

    def run_jax(p: Mapping[str, Any]) -> dict[str, Array]:
        return {name: in_jax.to_numpy(result) for name, result in jitted(p).items()}

    whole = run_torch(given)

    def hold(run: Callable[..., dict[str, Array]], *places: Array) -> tuple[int, int]:
        elements = differing = 0
        for rows in places:
            for name, result in run(_batch(entry, given, rows)).items():
                elements += result.size
                differing += differing_bits(result, whole[name][rows])
        return elements, differing

    def batch(size: int) -> Array:
        return (np.arange(size) + 5 * size) % ROWS

    yield "alone", *hold(run_torch, *(np.array([row]) for row in range(0, ROWS, 8)))
    yield "batches, torch", *hold(run_torch, *map(batch, BATCHES))
    devices = jax.devices(device)
    if not quick or len(devices) == 1:  # JAX compiles for each size
        yield "batches, JAX", *hold(run_jax, *map(batch, BATCHES[1::2]))
    kept = torch.get_num_threads()
    elements = differing = 0
    for count in THREADS:
        torch.set_num_threads(count)
        try:
            found = hold(run_torch, batch(BATCHES[-1]))
        finally:
            torch.set_num_threads(kept)
        elements, differing = elements + found[0], differing + found[1]
    yield "threads", elements, differing
    if len(devices) > 1:
        count = max(n for n in (1, 2, 4) if n <= len(devices))
        mesh = jax.sharding.Mesh(np.array(devices[:count]), ("devices",))

        def run_sharded(p: Mapping[str, Array]) -> dict[str, Array]:
            return run_jax({name: _put(entry, name, array, mesh) for name, array in p.items()})

        yield "devices, JAX", *hold(run_sharded, batch(BATCHES[-1]))


def _batch(entry: Entry, given: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    return {n: array[rows] if entry.has_rows(n) else array for n, array in given.items()}


def _put(entry: Entry, operand: str, array: Array, mesh: Any) -> Any:
    axes = ("devices",) if entry.has_rows(operand) else ()
    spec = jax.sharding.PartitionSpec(*axes)
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, spec))


def _tensors(arrays: Mapping[str, Array], device: str) -> dict[str, Any]:
    return {name: in_torch.tensor(array).to(device) for name, array in arrays.items()}


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _in_torch(entry: Entry, p: Operands) -> Results:
    """Returns the results, and gradients of the operands that have rows."""
    leaves = {name: p[name].detach().requires_grad_() for name in entry.inputs}
    results = _several(entry.call(bridge.torch, {**p, **leaves}))
    cotangents = [p[f"g{i}"] for i in range(len(results))]
    names = [name for name in leaves if entry.has_rows(name)]
    gradients = torch.autograd.grad(results, [leaves[name] for name in names], cotangents)
    return _named(results, names, gradients)


def _in_jax(entry: Entry, p: Operands) -> Results:
    names = [name for name in entry.inputs if entry.has_rows(name)]

    def call(*moved: Any) -> Any:
        return _several(entry.call(bridge.jax, {**p, **dict(zip(names, moved, strict=True))}))

    results, pull = jax.vjp(call, *(p[name] for name in names))
    return _named(results, names, pull(tuple(p[f"g{i}"] for i in range(len(results)))))


def _named(results: Any, names: list[str], gradients: Any) -> Results:
    of_results = {f"result {i}": result for i, result in enumerate(results)}
    return of_results | {f"d{name}": d for name, d in zip(names, gradients, strict=True)}


NOTE = (
    f"{ROWS} rows: the value and the rows of the gradients, compared with the same rows alone, in "
    f"batches of {BATCHES[0]} to {BATCHES[-1]}, on {THREADS[0]} to {THREADS[-1]} threads, and in "
    "JAX, there also on several devices: how many elements have other bits."
)
_HOWS = ("alone", "batches, torch", "batches, JAX", "threads", "devices, JAX")
HEADER = ("op", "dtype", *_HOWS, "")
TEXTS = (0, 1, len(HEADER) - 1)  # columns of HEADER with text


def aggregate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record for an op and dtype."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        empty = {"name": row["name"], "dtype": row["dtype"], "how": {}, "passed": True}
        record = found.setdefault((row["name"], row["dtype"]), empty)
        record["how"][row["how"]] = row["differing"]
        record["passed"] &= row["passed"]
    return list(found.values())


def cells(record: dict[str, Any]) -> list[str]:
    """Returns the cells of a record's row in the table."""
    differing = [record["how"].get(how) for how in _HOWS]
    return [
        record["name"],
        record["dtype"],
        *("–" if count is None else str(count) for count in differing),
        "pass" if record["passed"] else "FAIL",
    ]
