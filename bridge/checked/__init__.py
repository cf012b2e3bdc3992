"""`bridge.check`: verification of every promise of a declared op, on example operands.

- `example`: the op and its operands, run by `in_torch` and `in_jax` on `arrays`;
- `promises`: the table of promises, some of them in `derivatives`; `comparisons`, `roundings`: the
  criteria.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge._installed import VERSIONS
from bridge.checked.comparisons import BrokenPromiseError
from bridge.checked.example import Example
from bridge.checked.promises import PROMISES, DoesNotApplyError
from bridge.declared import DeclaredOp


@dataclass
class Row:
    """One promise.

    Attributes:
      promise: its name.
      compared: the names of the comparisons made.
      skipped: the reason if it does not apply.
      found: the difference that broke it.
    """

    promise: str
    compared: list[str] = field(default_factory=list)
    skipped: str = ""
    found: str = ""

    def __str__(self) -> str:
        if self.found:
            return f"{self.promise:<30} fails    {self.found}"
        if self.skipped:
            return f"{self.promise:<30} skipped  {self.skipped}"
        return f"{self.promise:<30} holds    {len(self.compared)} compared"


@dataclass
class Report:
    """The result of `bridge.check`.

    Attributes:
      title: the op and its operands.
      rows: one for each promise.
    """

    title: str
    rows: list[Row]

    @property
    def ok(self) -> bool:
        return not any(row.found for row in self.rows)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {row}" for row in self.rows)])


def check(f: DeclaredOp, /, *example: Any, quiet: bool = False, **static: Any) -> Report:
    """Verifies every promise of a declared op, in the frameworks that are installed.

    Value and gradients have the same bits in both frameworks, on every instruction set and number
    of threads, for a row alone, under vmap, compiled, and in every layout; the value on NumPy
    arrays too. Derivatives of both modes, in reverse mode to the third order, are those of the
    declaration. The results of every dtype, size and special value are near the reference.

    Args:
      f: a result of `bridge.op`.
      example: operands of f: tensors, arrays of JAX or NumPy. The checks start from their shapes,
        numbers and dtypes. A few rows of a few dozen columns are enough. Use numbers of moderate
        size: if an intermediate value overflows in float32 but not in the float64 reference, the
        comparison fails without a fault of the op.
      quiet: True to print nothing.
      static: the op's keyword arguments.

    Returns:
      A table, printed unless `quiet`. Its `rows` have one entry for each promise, with the
      comparisons made, or the reason for which it does not apply.

    Raises:
      AssertionError: names the first broken promise and the difference found.
      TypeError: if f is not a declared op, or the number or dtypes of the operands do not fit.
      ValueError: if their shapes do not fit, or they have no rows or no columns.
      ImportError: if neither framework is installed.

    Example:
      >>> @bridge.op
      ... def row_dot(x: bridge.Full, y: bridge.Full):
      ...     return bridge.lang.sum(x * y)
      >>> report = bridge.check(row_dot, numpy.ones((2, 8)), numpy.ones((2, 8)))
      row_dot(x: float64 [2, 8], y: float64 [2, 8])
        torch has the bits of JAX      holds    1 compared
      ...
    """
    if not isinstance(f, DeclaredOp):
        raise TypeError(f"bridge.check: got {type(f).__name__}, expected a result of bridge.op")
    if f.segmented is not None:
        raise TypeError(
            f"bridge.check: {f.declaration.name} is an op of segments, expected one of rows: check "
            "the same function of rows without segments"
        )
    e = Example(f, example, static)
    if not e.frameworks:
        wanted = " or ".join(f"'{name}{VERSIONS[name]}'" for name in ("torch", "jax"))
        raise ImportError(
            f"bridge.check needs torch or jax, and neither is installed: pip install {wanted}"
        )
    report = Report(str(e), [])
    cause: Exception | None = None
    for promise, run in PROMISES.items():
        row = Row(promise)
        report.rows.append(row)
        try:
            row.compared.extend(run(e))
        except DoesNotApplyError as error:
            row.skipped = str(error)
        except Exception as error:
            is_found = isinstance(error, BrokenPromiseError)
            line = str(error).partition("\n")[0]
            row.found = line if is_found else f"{type(error).__name__}: {line}"
            cause = cause or error
    if not quiet:
        print(report)
    if cause is not None:
        first = next(row for row in report.rows if row.found)
        raise AssertionError(f"{report.title}: {first.promise}: {first.found}") from cause
    return report
