"""Programs of the catalogue that a build compiles: who has no compiler runs them at full speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from bridge.catalogue import norms
from bridge.generated.ahead import usual_requests
from bridge.generated.requests import Request
from bridge.ops.declared import traced

# As training in 16 bits and in float32 has them: all operands there and of one dtype, and static
# parameters with their defaults but for the dtype of a sum.
OPS = (norms.rms_norm, norms.add_rms_norm, norms.layer_norm)
DTYPES = ("float32", "bfloat16")


def requests() -> Iterator[Request]:
    """Each op's forward pass, that which keeps what the backward pass reads, and that one."""
    for op, dtype in itertools.product(OPS, DTYPES):
        declaration = op.declaration
        static = {**declaration.static}
        if "dtype" in static:
            static["dtype"] = dtype
        present = tuple(True for _ in declaration.parameters)
        yield from itertools.islice(
            usual_requests(traced(declaration, present, *static.values()), dtype), 3
        )
