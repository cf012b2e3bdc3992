"""Ops of segments in float64 NumPy, the reference for tests: each segment is a call of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bridge.lang import roles
from bridge.lang.reference import evaluate
from bridge.ops.definition import Spec
from bridge.ops.segmented import Segmented
from bridge.ops.traced import Traced, function_of, traced


def reference_of(segmented: Segmented) -> Callable[..., Any]:
    """Returns the function of NumPy arrays that computes and returns float64."""
    name, place = segmented.public.name, segmented.place

    def run(operands: tuple[Any, ...], _: None, *values: Any) -> Any:
        static, longest = segmented.divided(values)
        arrays = [None if operand is None else np.asarray(operand) for operand in operands]
        specs = [None if a is None else Spec(a.shape, a.dtype.name) for a in arrays]
        segmented.check(name, specs, longest)
        ends = np.asarray(arrays[place]).astype(np.int64)
        segmented.check_known(name, specs, ends, longest)
        present = tuple(array is not None for array in arrays)
        found = traced(segmented.rows, present, *static)
        of_roles = [parameter.role for parameter in segmented.public.parameters]
        given = [(role, a) for role, a in zip(of_roles, arrays, strict=True) if a is not None]
        run_one = _of_segments if segmented.is_cut else _of_tokens
        results = run_one(found, given, ends)
        return results if found.returns_several else results[0]

    return function_of(segmented.public, "reference", None, run)


def _of_segments(found: Traced, given: Sequence[Any], ends: Any) -> tuple[Any, ...]:
    (_, first), *_ = given
    slices = list(itertools.pairwise(ends)) or [(0, 0)]
    count = len(ends) - 1
    parts = []
    for which, (start, stop) in enumerate(slices):
        own = []
        for role, array in given:
            if role is roles.Segments:
                own.append(np.full(first.shape[:-1], stop - start))
            elif role is roles.Integer or (
                role in (roles.Table, roles.Mask) and _is_constant(array)
            ):
                own.append(array)
            elif issubclass(role, roles.PerRow):
                own.append(array[..., which] if count else np.zeros(first.shape[:-1], array.dtype))
            else:
                own.append(array[..., start:stop])
        parts.append(evaluate(found.program, own))
    return tuple(
        np.concatenate(each, -1) if fills else np.stack(each, -1)[..., :count]
        for each, fills in zip(zip(*parts, strict=True), found.form.fills_space, strict=True)
    )


def _of_tokens(found: Traced, given: Sequence[Any], ends: Any) -> tuple[Any, ...]:
    (_, first), *_ = given
    total, *others, _ = first.shape
    starts = np.repeat(ends[:-1], np.diff(ends))
    positions = np.arange(total) - starts
    column = (total, *(1 for _ in others))
    own = []
    for role, array in given:
        if role is roles.Positions:
            array = np.broadcast_to(positions.reshape(column), (total, *others))
        elif role is roles.PerPosition:
            array = array[positions].reshape(*column, array.shape[-1])
        own.append(array)
    return evaluate(found.program, own)


def _is_constant(array: Any) -> bool:
    return array.ndim == 0 or array.shape[-1] == 1
