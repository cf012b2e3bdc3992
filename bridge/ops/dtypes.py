"""Names of the dtypes that the kernels compute in, and how they promote."""

from __future__ import annotations

FLOATING = ("float16", "bfloat16", "float32", "float64")


def promote(*names: str) -> str:
    """Returns the dtype that holds a result of operands of these dtypes.

    The frameworks agree on this table: the widest of the operands, and float32 for float16 with
    bfloat16, neither of which holds the other.
    """
    distinct = set(names)
    if len(distinct) == 1:
        return names[0]
    return "float64" if "float64" in distinct else "float32"
