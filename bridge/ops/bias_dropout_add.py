r"""Bias, dropout and residual as one op, which is its own derivative.

    y = residual + keep·factor·(x + bias),  s = Σ_rows y,  factor = 1/(1 − p)

It is linear in x, bias and residual: its tangent is the op with the tangents in their place, and
its backward the op with the cotangent as x, which gives dx and the bias gradient at once. keep is
drawn again from the seed, so that nothing but the seed is kept. The residual's gradient is the
cotangent itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.lang.philox import words
from bridge.ops.column_sums import column_sums_workspace_bytes
from bridge.ops.definition import (
    Call,
    Operands,
    OpWithNamedResults,
    Role,
    Spec,
    ZerosLike,
    passed_on,
    shape_in,
)
from bridge.ops.dtypes import FLOATING
from bridge.ops.scalars import real_number

_X, _BIAS, _RESIDUAL, _SEED, _OFFSET, _START = range(6)


@dataclass(frozen=True)
class BiasDropoutAddParams:
    """Parameters of a call.

    Attributes:
      threshold: an element is kept iff its random word is at least this: round(p·2³²).
      factor: what kept elements are multiplied by.
      full: dtype of the result y, or None when it is not wanted.
      row: dtype of the column sums s, or None when they are not wanted (or there is a residual).
      batch_ndim: leading dimensions that have a bias, a seed and column sums of their own, and in
        each of which elements are counted from the start again.
      index_cols: length of a row of the array in which elements are counted; 0: that of x.
    """

    threshold: int
    factor: float
    full: str | None = None
    row: str | None = None
    batch_ndim: int = 0
    index_cols: int = 0

    def with_batch(self) -> BiasDropoutAddParams:
        return replace(self, batch_ndim=self.batch_ndim + 1)

    def attributes(self) -> dict[str, float | int]:
        # Numbers past 32 bits travel as floats, which hold them exactly.
        return {
            "threshold": float(self.threshold),
            "factor": self.factor,
            "batch_ndim": self.batch_ndim,
            "index_cols": float(self.index_cols),
        }


class BiasDropoutAdd(OpWithNamedResults[BiasDropoutAddParams]):
    """The op. See the module's docstring for what it computes."""

    name = "bias_dropout_add"
    operand_names: tuple[str, ...] = ("x", "bias", "residual", "seed", "offset", "start")
    params_type = BiasDropoutAddParams
    result_names: tuple[str, ...] = ("full", "row")

    def operand_roles(self, count: int, params: BiasDropoutAddParams) -> tuple[Role, ...]:
        return (Role.FULL, Role.ROW, Role.FULL, Role.INTEGER, Role.INTEGER, Role.INTEGER)[:count]

    def operand_count(self, used: int) -> int:
        return 6

    def result_roles(self, params: BiasDropoutAddParams) -> tuple[Role, ...]:
        return (Role.FULL, Role.ROW)

    def needs_separate_batches(self, params: BiasDropoutAddParams) -> bool:
        return params.row is not None or params.threshold > 0

    def fixed_ndim(self, params: BiasDropoutAddParams) -> int:
        return 0

    def counts_from(self, params: BiasDropoutAddParams) -> int | None:
        return _START if params.threshold > 0 else None

    def is_linear_in(self, position: int, params: BiasDropoutAddParams) -> bool:
        return position <= _RESIDUAL

    def workspace_bytes(self, operands: Sequence[Spec | None], params: BiasDropoutAddParams) -> int:
        x = operands[_X]
        if params.row is None or x is None or not x.shape:
            return 0
        dtypes = {params.full, params.row, *(o.dtype for o in operands[:3] if o is not None)}
        return column_sums_workspace_bytes(x.shape, params.batch_ndim, "float64" in dtypes)

    def results(
        self, operands: Sequence[Spec | None], params: BiasDropoutAddParams
    ) -> tuple[Spec | None, Spec | None]:
        x = operands[_X]
        if x is None:
            raise TypeError("bias_dropout_add: the operand x is missing")
        if params.threshold > 0 and operands[_SEED] is None:
            raise TypeError("bias_dropout_add: the operand seed is missing")
        if params.row is not None and operands[_RESIDUAL] is not None:
            raise ValueError("bias_dropout_add: there are no column sums with a residual")
        batch = x.shape[: params.batch_ndim]
        for name, operand, role in zip(
            self.operand_names, operands, self.operand_roles(len(operands), params), strict=False
        ):
            if operand is None:
                continue
            if role is Role.INTEGER:
                expected = batch if operand.dtype == "int64" else (*batch, 2)
            else:
                expected = shape_in(role, x.shape, params.batch_ndim)
            if not operand.has_shape(expected):
                raise ValueError(
                    f"bias_dropout_add: {name} has shape {list(operand.shape)}, expected "
                    f"{list(expected)}"
                )
        return (
            None if params.full is None else Spec(x.shape, params.full),
            None
            if params.row is None
            else Spec(shape_in(Role.ROW, x.shape, params.batch_ndim), params.row),
        )

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: BiasDropoutAddParams,
    ) -> list[Call[Any]]:
        x, bias, residual = tangents[:_SEED]
        if x is None and bias is None and residual is None:
            return []
        if x is None and bias is None and params.row is None:
            return [passed_on(residual, None)]
        return [
            Call(
                self,
                (ZerosLike(_X) if x is None else x, bias, residual, *operands[_SEED:]),
                params,
            )
        ]

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: BiasDropoutAddParams,
    ) -> list[tuple[Call[Any], tuple[int | None, ...]]]:
        full, row = cotangents
        calls: list[tuple[Call[Any], tuple[int | None, ...]]] = []
        if full is None and row is None:
            return calls
        if wanted[_RESIDUAL]:  # then there is no `row`
            calls.append((passed_on(full), (_RESIDUAL,)))
        dtypes = [
            spec.dtype if spec is not None and wanted[i] else None
            for i, spec in enumerate(specs[:_RESIDUAL])
        ]
        if dtypes != [None, None]:
            gradients = replace(params, full=dtypes[_X], row=dtypes[_BIAS])
            cotangent = ZerosLike(_X) if full is None else full
            call = Call(self, (cotangent, row, None, *operands[_SEED:]), gradients)
            places = tuple(None if d is None else i for i, d in enumerate(dtypes))
            calls.append((call, places))
        return calls

    def reference(self, operands: Sequence[Any], params: BiasDropoutAddParams) -> tuple[Any, Any]:
        """The formula in float64 NumPy. Operands are NumPy arrays (any dtype) or None.

        Returns (y, s) in float64, both whether wanted or not.
        """
        import numpy as np

        x, bias, residual, seed, offset, start = (*operands, *[None] * 6)[:6]
        x = np.asarray(x, np.float64)
        batch = x.shape[: params.batch_ndim]
        middle = (1,) * (x.ndim - params.batch_ndim - 1)
        h = x
        if bias is not None:
            h = h + np.asarray(bias, np.float64).reshape(*batch, *middle, *x.shape[-1:])
        y = h
        if params.threshold > 0:
            inner = x.shape[params.batch_ndim :]
            columns = inner[-1] if inner else 1
            count = math.prod(inner)
            place = np.arange(count, dtype=np.uint64)
            if params.index_cols and columns:
                width = np.uint64(columns)
                place = place // width * np.uint64(params.index_cols) + place % width
            keep = np.empty((math.prod(batch), count), bool)
            for i, (key, high, first) in enumerate(
                zip(*(_integers(value, batch) for value in (seed, offset, start)), strict=True)
            ):
                keep[i] = words(key, high, place + first) >= params.threshold
            with np.errstate(all="ignore"):
                y = np.where(keep.reshape(x.shape), h * params.factor, 0.0)
        if residual is not None:
            y = y + np.asarray(residual, np.float64)
        axes = tuple(range(params.batch_ndim, max(y.ndim - 1, 0)))
        return y, y.sum(axis=axes) if y.ndim else y.reshape(1)


def _integers(value: Any, batch: tuple[int, ...]) -> Any:
    """The uint64 of each batch from an INTEGER operand."""
    import numpy as np

    count = math.prod(batch)
    if value is None:
        return np.zeros(count, np.uint64)
    value = np.ascontiguousarray(value)
    if value.dtype == np.uint32:
        value = value.reshape(count, 2).astype(np.uint64)
        return value[:, 0] | value[:, 1] << np.uint64(32)
    return value.astype(np.int64).view(np.uint64).reshape(count)


BIAS_DROPOUT_ADD = BiasDropoutAdd()


def check_bias_dropout_add(
    x: Spec, bias: Spec | None, residual: Spec | None, p: Any, training: bool
) -> BiasDropoutAddParams:
    """Checks the arguments of the public function and returns the parameters of the call.

    Raises:
      TypeError: for a dtype other than float16, bfloat16, float32, float64, or p that is no number.
      ValueError: for a bias that is not `[d]`, a residual of another shape than x, or p outside
        [0, 1].
    """
    name = "bias_dropout_add"
    for argument, spec in (("x", x), ("bias", bias), ("residual", residual)):
        if spec is not None and spec.dtype not in FLOATING:
            raise TypeError(
                f"{name}: {argument} has dtype {spec.dtype}, expected one of {', '.join(FLOATING)}"
            )
    if bias is not None and not x.shape:
        raise ValueError(
            f"{name}: x is 0-dimensional, expected at least one dimension to add bias of shape "
            f"{list(bias.shape)} to"
        )
    if bias is not None and not bias.has_shape(x.shape[-1:]):
        raise ValueError(
            f"{name}: bias has shape {list(bias.shape)}, expected [{x.shape[-1]}], the last "
            f"dimension of x of shape {list(x.shape)}"
        )
    if residual is not None and not residual.has_shape(x.shape):
        raise ValueError(
            f"{name}: residual has shape {list(residual.shape)}, expected {list(x.shape)}, the "
            f"shape of x"
        )
    p = check_p(p)
    full = x.dtype if residual is None else residual.dtype
    if not training:
        return BiasDropoutAddParams(0, 1.0, full)
    return BiasDropoutAddParams(threshold_of(p), 0.0 if p == 1.0 else 1.0 / (1.0 - p), full)


def check_p(p: Any, function: str = "bias_dropout_add", argument: str = "p") -> float:
    """Returns the probability as a float.

    Raises:
      TypeError: if it is no number.
      ValueError: if it is outside [0, 1].
    """
    p = real_number(function, argument, p)
    if not 0.0 <= p <= 1.0:  # NaN too
        raise ValueError(f"{function}: {argument} is {p}, expected a probability, from 0 to 1")
    return p


def threshold_of(p: float) -> int:
    """round(p·2³²): a random word below it drops its element."""
    return round(p * 2.0**32)
