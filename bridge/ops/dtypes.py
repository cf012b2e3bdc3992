"""Names of the dtypes that kernels compute in, and their promotion: see bridge/lang/dtypes.py."""

from bridge.lang.dtypes import FLOATING, promote

__all__ = ["FLOATING", "promote"]
