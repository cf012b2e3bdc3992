"""Checks of the ops over several JAX processes, in one of them."""

from __future__ import annotations

import os
import signal
import time
import traceback
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge.jax as bj
from tests.declared.ops import log_softmax
from tests.distributed.jax_processes import mesh, on_ranks, own, spread
from tests.distributed.processes import Place
from tests.jax.collectives import collectives_of

RULES = ("sum", "local", "mean")


def _part(array: np.ndarray, dim: int, tiled: bool, place: Place) -> np.ndarray:
    if tiled:
        return np.split(array, place.world_size, dim)[place.rank]
    return np.take(array, place.rank, dim)


def gather(place: Place, dtype: str, check_vma: bool) -> None:
    """Values and the gradient are right by every rule, for dims 0 to 2, tiled and stacked."""
    rng = np.random.default_rng(0)
    x = np.asarray(jnp.asarray(rng.normal(size=(place.world_size, 2, 3, 2)), dtype))
    tolerance = {"float32": 1e-6, "bfloat16": 3e-2, "float64": 1e-14}[dtype]
    for dim, tiled in ((0, True), (1, True), (2, True), (0, False), (1, False), (2, False)):
        whole = np.concatenate(x, dim) if tiled else np.stack(x, dim)
        g = np.asarray(jnp.asarray(rng.normal(size=(place.world_size, *whole.shape)), dtype))

        def everything(x: Any, g: Any, dim: int = dim, tiled: bool = tiled) -> Any:
            results = []
            for rule in RULES:
                gather = partial(bj.all_gather, axis_name="ranks", axis=dim, tiled=tiled, grad=rule)
                y, pull = jax.vjp(gather, x)
                results.append((y, pull(g)[0], jax.jvp(gather, (x,), (2 * x,))[1]))
            return results

        total = g.astype(np.float64).sum(0)
        expected = {
            "sum": _part(total, dim, tiled, place),
            "local": _part(g[place.rank], dim, tiled, place),
            "mean": _part(total / place.world_size, dim, tiled, place),
        }
        results = on_ranks(everything, x, g, check_vma=check_vma)
        for rule, (y, dx, tangent) in zip(RULES, results, strict=True):
            np.testing.assert_array_equal(y, whole)
            np.testing.assert_array_equal(tangent, 2 * whole)
            assert dx.dtype == dtype
            np.testing.assert_allclose(
                dx.astype(np.float64), expected[rule].astype(np.float64), tolerance, tolerance
            )


def gather_dtypes(place: Place, dtypes: list[str]) -> None:
    """Every transport sends 8-bit floats as bytes, booleans, integers and complex numbers."""
    rng = np.random.default_rng(1)
    for name in dtypes:
        x = np.asarray(2.0 ** rng.integers(-2, 3, (place.world_size, 3, 2))).astype(jnp.dtype(name))
        for rule in RULES:
            y = on_ranks(partial(bj.all_gather, axis_name="ranks", grad=rule), x)
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y.view(np.uint8), np.concatenate(x).view(np.uint8))


def _gradients(function: Any, g: Any, *arguments: Any) -> Any:
    y, pull = jax.vjp(function, *arguments)
    return y, pull(g)


def ops(place: Place) -> None:
    """Every op on arrays that are split over ranks has the bits of one process."""
    rng = np.random.default_rng(2)
    shape = (16 * place.world_size, 4 * place.world_size)
    x, g, residual = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    bias = rng.normal(size=shape[-1]).astype(np.float32)
    labels = rng.integers(0, shape[-1], shape[0])

    def cross_entropy(x: Any) -> Any:
        return bj.cross_entropy(x, labels, reduction="none")

    along_rows = (log_softmax, bj.rms_norm, cross_entropy)
    cases = [
        (bj.bias_gelu, (x, bias), (0, 1)),
        (
            lambda x, r, b: bj.bias_dropout_add(x, b, r, p=0.4, seed=2**40 + 1, offset=7),
            (x, residual, bias),
            (0, 1),
        ),
        (partial(bj.scaled_softmax, scale=0.5), (x,), (0,)),
        (partial(bj.scaled_causal_softmax, scale=0.5), (x,), (0,)),
        (bj.swiglu, (x, residual), (0, 1)),
        (log_softmax, (x,), (0, 1)),
        (bj.rms_norm, (x, bias), (0, 1)),
        (cross_entropy, (x,), (0, 1)),
    ]
    for function, arguments, dims in cases:
        run = jax.jit(partial(_gradients, function))
        arguments = (g[:, 0] if function is cross_entropy else g, *arguments)
        expected = run(*arguments)
        for dim in dims:
            vector = 0 if dim == 1 else None
            operands = [spread(a, dim if a.ndim > 1 else vector) for a in arguments]
            compiled = run.lower(*operands).compile()
            sent = collectives_of(compiled.as_text())
            of_columns = {"all-gather"} if function in along_rows else set()
            assert set(sent) <= (of_columns if dim else {"all-reduce"}), sent
            ours = compiled(*operands)
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
                part = np.asarray(b)[a.addressable_shards[0].index]
                np.testing.assert_array_equal(own(a).view(np.uint32), part.view(np.uint32))


def errors(place: Place) -> None:
    """Errors are raised during tracing: on every rank, before anything is sent."""
    x = np.ones((place.world_size, 2))
    for arguments, error, words in (
        ({"axis": 1}, ValueError, "axis is 1"),
        ({"axis_name": "rank"}, ValueError, "'rank' is not bound"),
        ({"grad": "max"}, ValueError, "grad is 'max'"),
    ):
        with pytest.raises(error, match=words):
            on_ranks(partial(bj.all_gather, **{"axis_name": "ranks", **arguments}), x)


def _gather_once(place: Place) -> None:
    y = on_ranks(partial(bj.all_gather, axis_name="ranks"), np.ones((place.world_size, 2)))
    assert y.shape == (2 * place.world_size,)


def late(place: Place, seconds: float) -> None:
    if place.rank == 1:
        time.sleep(seconds)
    _gather_once(place)


def killed(place: Place) -> str:
    """The last rank dies between two gathers; returns the error on the others."""
    _gather_once(place)
    if place.rank == place.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _told(place)


def _told(place: Place) -> str:
    """Returns the errors of the following gathers."""
    try:
        for _ in range(50):  # the first ones may still be under way
            _gather_once(place)
            time.sleep(0.1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error, though a rank is missing")


def one_raises(place: Place) -> str:
    """A rank raises, and its process ends, as the process of a program does."""
    _gather_once(place)
    if place.rank == place.world_size - 1:
        try:
            raise KeyError("this rank's own mistake")
        except KeyError:
            traceback.print_exc()
            os._exit(1)
    return _told(place)


def too_late(place: Place, seconds: float) -> str:
    """A rank is alive but late."""
    _gather_once(place)
    if place.rank == place.world_size - 1:
        time.sleep(seconds)
    return _told(place)


def differing(place: Place, what: str) -> str:
    """The last rank sends different data of the same size, which no transport detects."""
    is_last = place.rank == place.world_size - 1
    shape = (3, 2) if what == "shape" and is_last else (2, 3)
    dtype = "int32" if what == "dtype" and is_last else "float32"
    axis = 1 if what == "axis" and is_last else 0
    x = np.ones((place.world_size, *shape), dtype)
    gather = partial(bj.all_gather, axis_name="ranks")  # compares by default
    assert on_ranks(gather, np.ones((place.world_size, 4))).shape == (4 * place.world_size,)
    told = ""
    for _ in range(2):
        try:
            on_ranks(partial(gather, axis=axis), x)
        except (RuntimeError, ValueError) as error:
            told = str(error)
        # Nothing has been sent, so the ranks can continue.
        assert on_ranks(gather, np.ones((place.world_size, 4))).shape == (4 * place.world_size,)
    return told


def another_shape(place: Place) -> str:
    """A rank with another shape must not hang the others, even without a comparison."""
    width = 2 + (place.rank == place.world_size - 1)
    x = np.ones((place.world_size, width))
    try:
        y = on_ranks(partial(bj.all_gather, axis_name="ranks", check=False), x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {y.shape} of {len(mesh().devices)}"
