"""The layer scale of ConvNeXt, an op of both frameworks.

A product with a parameter is exact, but the parameter's gradient is a sum over all places.
"""

from __future__ import annotations

import bridge


@bridge.op
def scaled(x: bridge.Full, scale: bridge.Row):
    return x * scale
