"""Programs evaluated in float64 NumPy, the reference for tests. Sums are NumPy's, not our tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bridge.lang import philox, roles
from bridge.lang.operations import scalar_of
from bridge.lang.program import BLOCK_REDUCTIONS, REDUCTIONS, Node, Program, Result, constant_of

Array = Any


def _logsumexp(x: Array, *_: Array) -> Array:
    largest = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    return np.log(np.sum(np.exp(x - shift), axis=-1, keepdims=True)) + shift


def _logsumexp_rest(x: Array, largest: Array) -> Array:
    away = x - np.where(np.isfinite(largest), largest, 0)
    powers = np.exp(away)
    if x.shape[-1]:
        # In a difference x moves while the largest is held, so its own power is not 1.
        place = _argmax(x)
        np.put_along_axis(powers, place, np.expm1(np.take_along_axis(away, place, -1)), axis=-1)
    rest = np.log1p(np.sum(powers, axis=-1, keepdims=True))
    return np.where(np.isfinite(largest), rest, 0)


def _argmax(x: Array) -> Array:
    if x.shape[-1] == 0:
        return np.zeros((*x.shape[:-1], 1), np.int64)
    return np.argmax(x, axis=-1, keepdims=True)


# Formulae of operations that are not scalar.
_OTHERS: dict[str, Callable[..., Array]] = {
    "float": lambda x: x.astype(np.float64),
    "sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "max": lambda x: np.max(x, axis=-1, keepdims=True, initial=-np.inf),
    "argmax": _argmax,
    "logsumexp": _logsumexp,
    "logsumexp_rest": _logsumexp_rest,
    "block_sum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "block_max": lambda x: np.max(x, axis=-1, keepdims=True),
    "block_argmax": _argmax,
    "stop_gradient": np.positive,
    "straight_through": lambda near, x: near,
}


def formula_of(node: Node) -> Callable[..., Array]:
    """Returns a node's value as a function of its inputs, in float64."""
    scalar = scalar_of(node.operation, node.static)
    formula = _OTHERS[node.operation] if scalar is None else scalar.formula
    assert formula is not None, f"{node.operation} is a step of a function of rows"
    return formula


def evaluate(
    program: Program, operands: Sequence[Array], held: dict[int, Array] | None = None
) -> tuple[Array, ...]:
    """Evaluates a program in float64.

    Args:
      program: any.
      operands: NumPy arrays or numbers of any dtype, in the shapes of their roles.
      held: a dict for finite differences, empty in the first call and filled by it. In later calls,
        on slightly different operands, a stopped gradient keeps its value of the first call, and a
        rounding keeps its offset, so that differences of results approach the derivatives.
    """
    space = _space(program, operands)
    rows, columns = _sizes(space)
    loaded = [
        _loaded(operand.role, operand.dtype, np.asarray(array), space)
        for operand, array in zip(program.operands, operands, strict=True)
    ]
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for node in program.nodes:
            inputs = [values[i] for i in node.inputs]
            if node.operation == "operand":
                position, half = node.static
                values.append(loaded[position][half])
            elif node.operation == "constant":
                values.append(np.asarray(constant_of(node)))
            elif node.operation == "column":
                values.append(np.arange(columns)[None, :])
            elif node.operation == "columns":
                values.append(np.asarray(columns, np.int64 if node.dtype == "int" else np.float64))
            elif node.operation == "keep":
                index = np.arange(rows * columns, dtype=np.uint64)
                words = philox.words(int(inputs[0]), int(inputs[1]), index)
                values.append((words >= node.static).reshape(rows, columns))
            elif node.operation == "rounded":
                near = formula_of(node)(inputs[0])
                if held is not None:
                    near = inputs[0] + held.setdefault(len(values), near - inputs[0])
                values.append(near)
            elif node.operation == "straight_through" and held is not None:
                values.append(inputs[1] + held.setdefault(len(values), inputs[0] - inputs[1]))
            elif node.operation == "stop_gradient" and held is not None:
                values.append(held.setdefault(len(values), inputs[0]))
            elif node.operation in BLOCK_REDUCTIONS:
                values.append(_of_blocks(node, inputs[0], (rows, columns)))
            elif node.operation in REDUCTIONS:
                whole = np.broadcast_to(inputs[0], (rows, columns))
                values.append(formula_of(node)(whole, *inputs[1:]))
            else:
                values.append(formula_of(node)(*inputs))
        return tuple(
            _stored(result, [np.asarray(values[i]) for i in result.nodes], space, operands)
            for result in program.results
        )


def _of_blocks(node: Node, x: Array, shape: tuple[int, int]) -> Array:
    rows, columns = shape
    blocks = np.broadcast_to(x, shape).reshape(rows, columns // node.static, node.static)
    found = formula_of(node)(blocks)
    if node.operation == "block_argmax":
        found = found + np.arange(0, columns, node.static)[:, None]
    return np.broadcast_to(found, blocks.shape).reshape(shape)


def _space(program: Program, operands: Sequence[Array]) -> tuple[int, ...]:
    shape = tuple(np.shape(operands[0]))
    if program.operands[0].role in roles.DOUBLE:
        return (*shape[:-1], shape[-1] // 2)
    return shape


def _sizes(space: tuple[int, ...]) -> tuple[int, int]:
    """Returns the numbers of rows and columns; a scalar counts as one row of one column."""
    return math.prod(space[:-1]), space[-1] if space else 1


def _loaded(
    role: type[roles.Annotation], dtype: str, array: Array, space: tuple[int, ...]
) -> list[Array]:
    rows, columns = _sizes(space)
    if array.dtype == np.uint64 and dtype == "int":
        array = np.minimum(array, np.uint64(2**63 - 1))  # kernels clamp the upper half likewise
    array = array.astype({"float": np.float64, "bool": bool, "int": np.int64}[dtype])
    if role in (roles.Full, roles.Quantized):
        return [array.reshape(rows, columns)]
    if issubclass(role, roles.PerBlock):
        numbers = array.reshape(rows, columns // role.block)
        return [np.repeat(numbers, role.block, axis=1)]
    if role is roles.Row:
        return [array.reshape(1, columns)]
    if role in (roles.Table, roles.Mask):
        return [np.broadcast_to(array, space).reshape(rows, columns)]
    if role is roles.Halves:
        whole = array.reshape(rows, 2 * columns)
        return [whole[:, :columns], whole[:, columns:]]
    if role is roles.Pairs:
        whole = array.reshape(rows, columns, 2)
        return [whole[..., 0], whole[..., 1]]
    if role is roles.Integer:
        return [array]
    return [array.reshape(rows, 1)]


def _stored(
    result: Result,
    values: list[Array],
    space: tuple[int, ...],
    operands: Sequence[Array],
) -> Array:
    rows, columns = _sizes(space)
    if result.role is roles.PerRow:
        return np.broadcast_to(values[0], (rows, 1)).reshape(space[:-1])
    whole = [np.broadcast_to(value, (rows, columns)) for value in values]
    if result.role is roles.Row:
        return whole[0].sum(axis=0)
    if result.role is roles.Halves:
        return np.concatenate(whole, axis=1).reshape(*space[:-1], 2 * columns)
    if result.role is roles.Pairs:
        return np.stack(whole, axis=-1).reshape(*space[:-1], 2 * columns)
    if issubclass(result.role, roles.PerBlock):
        n = result.role.block
        return whole[0][:, ::n].reshape(*space[:-1], columns // n)
    full = whole[0].reshape(space)
    if result.role is not roles.Table:
        return full
    shape = np.shape(operands[result.like])
    full = full.sum(axis=tuple(range(len(space) - len(shape))))
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 and full.shape[i] != 1)
    return full.sum(axis=repeated, keepdims=True)
