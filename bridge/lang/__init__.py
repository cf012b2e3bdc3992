"""Declarations: an op as one Python function of rows, from which everything else follows.

The function runs once, on values that record what is done with them, and leaves a program: a short
list of operations. Its derivatives are programs again.

- `roles`: the annotations of operands; `functions`: what can be computed from them.
- `values`, `tracing`: the recording; `errors`: what cannot be recorded, by line.
- `program`: what is left; `derivatives`: forward and reverse mode; `reference`: in float64 NumPy.

NumPy alone is needed here, neither framework.
"""

from bridge.lang.errors import DeclarationError
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
    logsumexp,
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
    sum,
    tanh,
    where,
)
from bridge.lang.roles import Full, Halves, Integer, Mask, Pairs, PerRow, Row, Table

__all__ = [
    "DeclarationError",
    "Full",
    "Halves",
    "Integer",
    "Mask",
    "Pairs",
    "PerRow",
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
    "logsumexp",
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
    "sum",
    "tanh",
    "where",
]
