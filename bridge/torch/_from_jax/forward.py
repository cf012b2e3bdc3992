"""The forward pass of a program with its residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from bridge._private.jax import jaxpr_as_fun
from bridge.torch._from_jax.program import Mask, Program, choose, conj, merge


class Forward:
    """A program's forward pass under `jax.vjp`: outputs, residuals, and the backward pass.

    A residual that is an input or an output is not computed a second time: `places` says where each
    residual is. One jitted function computes the outputs and the remaining residuals.

    Attributes:
      run: arrays -> outputs, followed by the residuals that are neither inputs nor outputs.
      places: for each residual, `(0, i)` an input, `(1, i)` an output, `(2, i)` computed, `(3, i)`
        an array that the function closes over.
      aliased: the outputs that are residuals; they must not be written before the backward pass.
      saved: pairs (residual, place) for the residuals among the saved tensors, which are the
        input tensors and then the aliased outputs.
    """

    def __init__(self, program: Program, wanted: Mask) -> None:
        self.program = program
        self.wanted = wanted
        self.places: list[tuple[int, int]] = []
        self._tree: Any = None
        self._backward: dict[Any, Callable[..., Any]] = {}
        self._programs: dict[Any, Program | None] = {}
        again: Callable[..., Any] | None = None

        def flat(*arrays: Any) -> Any:
            # JAX calls this again, on values, to find a NaN or without jit. The attributes below
            # belong to the compiled function, so they must not change.
            if again is not None:
                return tuple(again(*arrays))
            chosen = choose(wanted, arrays)
            differentiable, pullback, others = jax.vjp(
                program.of(wanted, arrays), *chosen, has_aux=True
            )
            outputs = merge(program.differentiable, differentiable, others, packed=True)
            residuals, self._tree = jax.tree_util.tree_flatten(pullback)
            computed: list[Any] = []
            self._constants: list[Any] = []
            sources = (arrays, outputs, computed, self._constants)
            self.places = [_place(residual, sources) for residual in residuals]
            return (*outputs, *computed)

        flat.__name__ = flat.__qualname__ = f"{program.name}_forward"
        self.run = jax.jit(flat)
        again = jaxpr_as_fun(self.run.trace(*program.avals).jaxpr)
        outputs = {i for kind, i in self.places if kind == 1}
        self.aliased = tuple(sorted(i for i in outputs if not program.opaque[i]))
        self.out_count = len(program.out_avals)
        inputs = [i for i, is_tensor in enumerate(program.tensors) if is_tensor]
        places = [(0, i) for i in inputs] + [(1, i) for i in self.aliased]
        place_of = {place: i for i, place in enumerate(places)}
        self.saved = [(n, place_of[p]) for n, p in enumerate(self.places) if p in place_of]

    def residuals(self, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Returns the residuals, picked from the inputs and from the results of `run`."""
        sources = (arrays, results, results[self.out_count :], self._constants)
        return [sources[kind][i] for kind, i in self.places]

    def backward(self, given: Mask, needed: Mask) -> Callable[..., Any]:
        """Returns a function (residuals, given cotangents) -> gradients of the `needed` inputs."""
        run = self._backward.get((given, needed))
        if run is None:
            run = self._backward[given, needed] = self._make_backward(given, needed)
        return run

    def _make_backward(self, given: Mask, needed: Mask) -> Callable[..., Any]:
        kept = [n for n, w in zip(needed, self.wanted, strict=True) if w]

        def flat(residuals: Any, cotangents: Any) -> Any:
            pullback = jax.tree_util.tree_unflatten(self._tree, residuals)
            cotangents = self.program.cotangents(given, cotangents)
            gradients = self.program.origin.made(lambda: pullback(cotangents))
            return tuple(conj(g) for g, keep in zip(gradients, kept, strict=True) if keep)

        flat.__name__ = flat.__qualname__ = f"{self.program.name}_backward"
        return jax.jit(flat)

    def count(self) -> int:
        """Returns the number of jitted functions."""
        return 1 + len(self._backward)

    # The methods below give the same as programs, for tracing: residuals are tensors of the graph.

    def whole(self) -> Program | None:
        """Returns the program of `run`; None if a residual is a random key: no tensor holds it."""
        if "whole" not in self._programs:
            program = self.program
            name = f"{program.name}_forward"
            whole = Program(self.run, program.avals, program.tensors, name, program)
            computed_a_key = any(whole.opaque) or not program.only_tensors
            self._programs["whole"] = None if computed_a_key else whole
        return self._programs["whole"]

    def travelling(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Returns the residuals without the arrays that the function closes over."""
        sources = (inputs, results, results[self.out_count :])
        return [sources[kind][i] for kind, i in self.places if kind < 3]

    def pullback(self, given: Mask, needed: Mask) -> Program:
        """Returns the program of (`travelling` residuals, given cotangents) -> needed gradients."""
        key = given, needed
        if key not in self._programs:
            backward, whole = self.backward(given, needed), self.whole()
            assert whole is not None

            def function(*arrays: Any) -> Any:
                remaining = iter(arrays)
                residuals = [
                    self._constants[i] if kind == 3 else next(remaining) for kind, i in self.places
                ]
                return backward(residuals, list(remaining))

            avals = self.travelling(whole.avals, whole.out_avals)
            structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
            structs += self.program.out_structs(given)
            name = f"{self.program.name}_backward"
            tensors = (True,) * len(structs)
            self._programs[key] = Program(function, structs, tensors, name, self.program)
        program = self._programs[key]
        assert program is not None
        return program


def forward_of(program: Program, wanted: Mask) -> Forward:
    """Returns the forward pass with the residuals for the gradients of the `wanted` inputs."""
    forward: Forward = program.derive(("forward", wanted), lambda: Forward(program, wanted))
    return forward


def _place(residual: Any, sources: Sequence[Any]) -> tuple[int, int]:
    """Finds a residual among inputs and outputs, or adds it to one of the lists after them."""
    for kind, candidates in enumerate(sources[:2]):
        for i, candidate in enumerate(candidates):
            if residual is candidate:
                return kind, i
    kind = 2 if isinstance(residual, jax.core.Tracer) else 3
    sources[kind].append(residual)
    return kind, len(sources[kind]) - 1
