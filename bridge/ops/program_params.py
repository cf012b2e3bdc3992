"""Parameters of a call of a program."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.lang import codes, roles
from bridge.ops.definition import Role

ROLES = {role: Role(name) for role, name in roles.NAMES.items()}


@dataclass(frozen=True, repr=False)
class ProgramParams:
    """Parameters of a call.

    Attributes:
      code: the serialized program.
      arithmetic: "float32" or "float64", the type of all computation.
      dtypes: the dtypes of the results, joined by commas; empty for a result that is not wanted.
      batch_ndim: leading dimensions that have row vectors, column sums and integers of their own.
      index_cols: the length of the rows by which elements are numbered; 0: of the call's own rows.
    """

    code: str
    arithmetic: str
    dtypes: str
    batch_ndim: int = 0
    index_cols: int = 0

    def __repr__(self) -> str:
        """A short text that differs for other parameters: it has a hash of the program."""
        digest = hashlib.sha256(self.code.encode()).hexdigest()[:16]
        name = codes.parse(self.code).program.name
        rest = f"{self.arithmetic}, {self.dtypes}, {self.batch_ndim}, {self.index_cols}"
        return f"ProgramParams({name} {digest}, {rest})"

    def with_batch(self) -> ProgramParams:
        return replace(self, batch_ndim=self.batch_ndim + 1)

    def attributes(self) -> dict[str, int]:
        return {"batch_ndim": self.batch_ndim, "index_cols": self.index_cols}


def joined(dtypes: Sequence[str | None]) -> str:
    return ",".join(dtype or "" for dtype in dtypes)


def split(dtypes: str) -> tuple[str | None, ...]:
    return tuple(dtype or None for dtype in dtypes.split(","))


def are_wanted(dtypes: str) -> tuple[bool, ...]:
    return tuple(dtype is not None for dtype in split(dtypes))
