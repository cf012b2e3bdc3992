"""Names of the dtypes that kernels compute in, and their promotion."""

from __future__ import annotations

FLOATING = ("float16", "bfloat16", "float32", "float64")


def promote(*names: str) -> str:
    """Returns the dtype that holds every number of these dtypes.

    Both frameworks agree on it: the widest dtype, and float32 for float16 with bfloat16, neither of
    which holds the other.
    """
    distinct = set(names)
    if len(distinct) == 1:
        return names[0]
    return "float64" if "float64" in distinct else "float32"
