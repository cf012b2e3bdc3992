"""Declarations: an op is written once, as a Python function of rows.

The function runs once, on values that record each operation, and leaves a program: a short list of
operations. The derivatives of a program are programs too.

- `roles`: the annotations of operands; `functions`: the operations on them.
- `values`, `tracing`: the recording; `errors`, `refusals`, `suggestions`: the error for each thing
  that cannot be recorded, with its line and a replacement.
- `program`: the recorded operations; `limits`: the largest program; `derivatives`: forward and
  reverse mode; `reference`: evaluation in float64 NumPy.

This package needs NumPy alone, neither framework.
"""

from typing import TYPE_CHECKING, NoReturn

from bridge.lang.errors import DeclarationError, MissingAttribute, ProgramTooLarge, refuse
from bridge.lang.functions import (
    abs,
    argmax,
    column,
    column_sum,
    columns,
    dropout_keep,
    erf,
    exp,
    exp2,
    expm1,
    fma,
    gelu,
    halves,
    like,
    log,
    log1p,
    log_softmax,
    logsumexp,
    logsumexp_parts,
    max,
    maximum,
    mean,
    minimum,
    pairs,
    rounded,
    rsqrt,
    sigmoid,
    silu,
    softplus,
    sqrt,
    stop_gradient,
    sum,
    tanh,
    where,
)
from bridge.lang.roles import Full, Halves, Integer, Mask, Pairs, PerRow, Row, Table
from bridge.lang.suggestions import instead_of_function

__all__ = [
    "DeclarationError",
    "Full",
    "Halves",
    "Integer",
    "Mask",
    "Pairs",
    "PerRow",
    "ProgramTooLarge",
    "Row",
    "Table",
    "abs",
    "argmax",
    "column",
    "column_sum",
    "columns",
    "dropout_keep",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "fma",
    "gelu",
    "halves",
    "like",
    "log",
    "log1p",
    "log_softmax",
    "logsumexp",
    "logsumexp_parts",
    "max",
    "maximum",
    "mean",
    "minimum",
    "pairs",
    "rounded",
    "rsqrt",
    "sigmoid",
    "silu",
    "softplus",
    "sqrt",
    "stop_gradient",
    "sum",
    "tanh",
    "where",
]


if not TYPE_CHECKING:  # type checkers shall report an unknown function themselves

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"bridge.lang has no {name}")
        known = [each for each in __all__ if each.islower()]
        raise refuse(instead_of_function(name, known), MissingAttribute)
