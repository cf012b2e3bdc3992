"""Declarations: an op is written once, as a Python function of rows.

The function runs once, on values that record each operation, and leaves a program: a short list of
operations. The derivatives of a program are programs too.

- `roles`: the annotations of operands; `functions`: the operations on them.
- `values`, `tracing`: the recording; `errors`, `refusals`, `suggestions`: the error for each thing
  that cannot be recorded, with its line and a replacement.
- `operations`: the table of scalar operations; `program`: the recorded operations; `limits`: the
  largest program; `derivatives`: forward and reverse mode; `reference`: evaluation in float64
  NumPy.

This package needs NumPy alone, neither framework.
"""

from typing import TYPE_CHECKING, NoReturn

from bridge.lang import functions
from bridge.lang.applied import *  # noqa: F403
from bridge.lang.errors import DeclarationError, MissingAttribute, ProgramTooLarge, refuse
from bridge.lang.functions import *  # noqa: F403
from bridge.lang.reductions import *  # noqa: F403
from bridge.lang.roles import (
    Full,
    Halves,
    Integer,
    Mask,
    Pairs,
    PerBlock,
    PerPosition,
    PerRow,
    Positions,
    Quantized,
    Row,
    Scale,
    Segments,
    Table,
)
from bridge.lang.suggestions import instead_of_function

__all__ = [
    "DeclarationError",
    "Full",
    "Halves",
    "Integer",
    "Mask",
    "Pairs",
    "PerBlock",
    "PerPosition",
    "PerRow",
    "Positions",
    "ProgramTooLarge",
    "Quantized",
    "Row",
    "Scale",
    "Segments",
    "Table",
]
__all__ += functions.__all__


if not TYPE_CHECKING:  # type checkers shall report an unknown function themselves

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"bridge.lang has no {name}")
        known = [each for each in __all__ if each.islower()]
        raise refuse(instead_of_function(name, known), MissingAttribute)
