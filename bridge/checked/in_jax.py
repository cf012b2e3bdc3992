"""Runs of an op in JAX, with NumPy arrays in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bridge.checked.arrays import Array, Arrays, of_smooth


class InFramework:
    """A function of JAX arrays. Methods run it under jit unless their name says otherwise."""

    name = "jax"

    def __init__(self, function: Callable[..., Any], smooth: Sequence[int]) -> None:
        self._function, self._smooth = function, smooth
        self._pulled, self._pushed = jax.jit(self._pull), jax.jit(self._push)
        self._nested = jax.jit(self._pull_nested)

    def _run(self, function: Callable[..., Any], *given: Arrays) -> list[Array]:
        def array(a: Array) -> Any:
            return a.data.view(jnp.bfloat16) if a.dtype == "bfloat16" else a.data

        with jax.enable_x64(True):
            return [*map(Array.of, function(*([*map(array, arrays)] for arrays in given)))]

    def _pull(self, operands: Any, cotangents: Any) -> Any:
        run = of_smooth(self._function, self._smooth, operands)
        values, back = jax.vjp(run, *[operands[i] for i in self._smooth])
        return [*values, *back(tuple(cotangents))]

    def _push(self, operands: Any, tangents: Any) -> Any:
        run = of_smooth(self._function, self._smooth, operands)
        moved = tuple(operands[i] for i in self._smooth)
        values, pushed = jax.jvp(run, moved, tuple(tangents))
        return [*values, *pushed]

    def _pull_nested(self, operands: Any, *levels: Any) -> Any:
        def pulled(function: Any, count: int) -> Any:
            return lambda *given: jax.vjp(function, *given[:count])[1](given[count:])

        function = of_smooth(self._function, self._smooth, operands)
        given = [operands[i] for i in self._smooth]
        for cotangents in levels:
            function = pulled(function, len(given))
            given += cotangents
        return function(*given)

    def pulled(self, arrays: Arrays, cotangents: Arrays) -> list[Array]:
        return self._run(self._pulled, arrays, cotangents)

    def pushed(self, arrays: Arrays, tangents: Arrays) -> list[Array]:
        return self._run(self._pushed, arrays, tangents)

    def nested(self, arrays: Arrays, *levels: Arrays) -> list[Array]:
        return self._run(self._nested, arrays, *levels)

    def compiled(self, arrays: Arrays, cotangents: Arrays) -> list[tuple[str, list[Array]]]:
        """Runs `pulled` without jit, and in lax.scan; returns names and results."""

        def scanned(operands: Any, cotangents: Any) -> Any:
            def step(carry: Any, each: Any) -> Any:
                return carry, self._pull(*each)

            once = jax.tree.map(lambda array: array[None], (operands, cotangents))
            return [array[0] for array in jax.lax.scan(step, None, once)[1]]

        runs = {"jax without jit": self._pull, "jax.lax.scan": scanned}
        return [(name, self._run(run, arrays, cotangents)) for name, run in runs.items()]

    def mapped(self, arrays: Arrays, cotangents: Arrays, batched: Sequence[bool]) -> list[Array]:
        axes = ([0 if is_batched else None for is_batched in batched], [0] * len(cotangents))
        return self._run(jax.jit(jax.vmap(self._pull, in_axes=axes)), arrays, cotangents)
