"""A declared op with operands, in the frameworks that are installed."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bridge.checked.arrays import Array, Arrays
from bridge.checked.comparisons import hold_same
from bridge.declared import DeclaredOp
from bridge.lang import codes, roles
from bridge.lang.derivatives import modes
from bridge.lang.dtypes import promote
from bridge.lang.program import Program
from bridge.lang.reference import evaluate
from bridge.ops.definition import Spec
from bridge.ops.form import check_operands
from bridge.ops.traced import traced


class Example:
    """An op with operands: `arrays` has the given operands, `program` is the traced program."""

    def __init__(self, op: DeclaredOp, example: Sequence[Any], static: dict[str, Any]) -> None:
        declaration = op.declaration
        signature = inspect.signature(declaration.function)
        bound = signature.bind(*example, **static)
        bound.apply_defaults()
        given = bound.arguments
        names = [p.name for p in declaration.parameters if given[p.name] is not None]
        present = tuple(p.name in names for p in declaration.parameters)
        found = traced(declaration, present, *(given[name] for name in declaration.static))
        self.program: Program = found.program
        self.arrays = [Array.of(given[name]) for name in names]
        specs = [Spec(a.data.shape, a.dtype) for a in self.arrays]
        check_operands(found.name, found.form, specs, found.texts)
        self.space = space_of(self.program, self.arrays)
        self.smooth = [i for i, o in enumerate(self.program.operands) if o.dtype == "float"]
        only = signature.parameters.values()
        ahead = [p.name for p in only if p.kind is p.POSITIONAL_ONLY]

        def function_of(member: str) -> Callable[..., Any]:
            function = getattr(op, member)

            def run(*operands: Any) -> Any:
                every = {**given, **dict(zip(names, operands, strict=True))}
                results = function(*[every.pop(name) for name in ahead], **every)
                return tuple(results) if found.returns_several else (results,)

            return run

        self.frameworks = list(_in_frameworks(function_of, self.smooth))
        self.reference, self.numpy = function_of("reference"), function_of("_numpy")
        given_all = [True] * len(self.program.results)
        derived = modes.vjp(self.program, given_all, self.moved(self.program))
        # A rule towards all operands from all cotangents, as a custom VJP is.
        self.back = codes.parse(found.code).rule or derived
        self.rng = np.random.default_rng(0)
        if 0 in self.space:
            raise ValueError(f"bridge.check: {self} has no elements, expected rows and columns")

    def __str__(self) -> str:
        pairs = zip(self.program.operands, self.arrays, strict=True)
        shown = [f"{operand.name}: {a.dtype} {list(a.data.shape)}" for operand, a in pairs]
        return f"{self.program.name}({', '.join(shown)})"

    def moved(self, program: Program) -> list[bool]:
        return [operand.dtype == "float" for operand in program.operands]

    def dtypes(self, arrays: Arrays) -> list[str]:
        """Returns the documented dtypes of the results."""
        floating = [arrays[i].dtype for i in self.smooth]
        arithmetic = "float64" if "float64" in floating else "float32"
        return [
            result.dtype
            if result.dtype
            else arrays[result.like].dtype
            if result.like >= 0
            else (promote(*floating) if result.role in roles.SPACIOUS else arithmetic)
            for result in self.program.results
        ]

    def cotangents(self, arrays: Arrays) -> list[Array]:
        """Returns random cotangents of the results."""
        space = space_of(self.program, arrays)
        pairs = zip(self.program.results, self.dtypes(arrays), strict=True)
        shapes = [(shape_of(result.role, space), dtype) for result, dtype in pairs]
        return [Array.rounded(self.rng.normal(size=shape), dtype) for shape, dtype in shapes]

    def tangents(self, arrays: Arrays) -> list[Array]:
        """Returns random tangents of the smooth operands, in their own dtypes."""
        return self._random_like([arrays[i] for i in self.smooth])

    def levels(self, arrays: Arrays, order: int) -> list[list[Array]]:
        """Returns random cotangents: of the results, of their gradients, of the gradients of these.

        A level has one for each smooth operand and for each cotangent of the levels before it.
        """
        level, towards = self.cotangents(arrays), [arrays[i] for i in self.smooth]
        levels = [level]
        for _ in range(order - 1):
            levels.append(self._random_like(towards))
            towards += level
            level = levels[-1]
        return levels

    def _random_like(self, arrays: Arrays) -> list[Array]:
        return [Array.rounded(self.rng.normal(size=a.data.shape), a.dtype) for a in arrays]

    def cast(self, dtypes: Sequence[str]) -> list[Array]:
        """Returns the operands with the floating ones cast to these dtypes, in turn."""
        every, arrays = itertools.cycle(dtypes), list(self.arrays)
        for i in self.smooth:
            arrays[i] = Array.rounded(arrays[i].values, next(every))
        return arrays

    def resized(self, space: tuple[int, ...]) -> list[Array]:
        """Returns the operands with their numbers repeated or cut to another space."""
        return [
            Array(a.dtype, _resized(a.data, shape_of(operand.role, space, a.data.shape)))
            for a, operand in zip(self.arrays, self.program.operands, strict=True)
        ]

    def row(self, arrays: Arrays, all_roles: Sequence[Any], index: tuple[int, ...]) -> list[Array]:
        """Returns the part of each array that belongs to one row, with all dimensions."""
        return [
            Array(a.dtype, np.asarray(a.data[_place(role, a.data.shape, index)]))
            for a, role in zip(arrays, all_roles, strict=True)
        ]

    def same(self, what: str, run: Callable[[Any], list[Array]]) -> list[Array]:
        """Runs a computation in every framework; raises unless the bits are the same."""
        found = [(framework.name, run(framework)) for framework in self.frameworks]
        for name, other in found[1:]:
            hold_same(f"{what}: {found[0][0]} and {name}", found[0][1], other)
        return found[0][1]

    def pulled(self, what: str, arrays: Arrays, cotangents: Arrays) -> list[Array]:
        return self.same(what, lambda framework: framework.pulled(arrays, cotangents))

    def exact(self, arrays: Arrays, cotangents: Arrays) -> list[Any]:
        """Returns the expected `pulled`: the reference and the derivative program in float64."""
        operands = [a.values for a in arrays]
        gradients = evaluate(self.back, [*operands, *(c.values for c in cotangents)])
        return [*self.reference(*operands), *gradients]


def _in_frameworks(
    function_of: Callable[[str], Callable[..., Any]], smooth: Sequence[int]
) -> Iterator[Any]:
    for name in ("torch", "jax"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        module = importlib.import_module(f"bridge.checked.in_{name}")
        yield module.InFramework(function_of(name), smooth)


def space_of(program: Program, arrays: Arrays) -> tuple[int, ...]:
    *rows, last = arrays[0].data.shape
    return (*rows, last // 2 if program.operands[0].role in roles.DOUBLE else last)


def shape_of(role: Any, space: tuple[int, ...], own: tuple[int, ...] = ()) -> tuple[int, ...]:
    if role in (roles.Table, roles.Mask):
        ends = space[len(space) - len(own) :]
        return tuple(1 if size == 1 else end for size, end in zip(own, ends, strict=True))
    if role is roles.Integer:
        return own
    if role is roles.Row:
        return space[-1:]
    if role in roles.DOUBLE:
        return (*space[:-1], 2 * space[-1])
    return space if role is roles.Full else space[:-1]


def _resized(data: Any, shape: tuple[int, ...]) -> Any:
    return np.resize(data, shape) if data.size else np.zeros(shape, data.dtype)


def _place(role: Any, shape: tuple[int, ...], index: tuple[int, ...]) -> tuple[slice, ...]:
    if role in (roles.Row, roles.Integer):
        return ()
    if role in (roles.Table, roles.Mask):
        ends = index[len(index) + 1 - len(shape) :]
        pairs = zip(ends, shape, strict=False)
        return tuple(slice(None) if size == 1 else slice(i, i + 1) for i, size in pairs)
    return tuple(slice(i, i + 1) for i in index)
