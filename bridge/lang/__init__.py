"""Declarations: an op as one Python function of rows, from which everything else follows.

The function runs once, on values that record what is done with them, and leaves a program: a short
list of operations. Its derivatives are programs again.

- `roles`: the annotations of operands; `functions`: what can be computed from them.
- `values`, `tracing`: the recording; `errors`, `refusals`, `suggestions`: what cannot be recorded,
  by line, and what to write instead.
- `program`: what is left; `limits`: how large it may be; `derivatives`: forward and reverse mode;
  `reference`: in float64 NumPy.

NumPy alone is needed here, neither framework.
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


if not TYPE_CHECKING:  # checkers are to tell that there is no such function

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"bridge.lang has no {name}")
        known = [each for each in __all__ if each.islower()]
        raise refuse(instead_of_function(name, known), MissingAttribute)
