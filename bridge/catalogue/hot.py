"""Programs of the catalogue that a build compiles: who has no compiler runs them at full speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from bridge.catalogue import cross_entropy, gates, norms
from bridge.generated.ahead import usual_requests
from bridge.generated.requests import Request
from bridge.ops.declared import traced

# As training has them: with these of the optional operands, all operands of one dtype, and static
# parameters with their defaults but for the dtype of a sum. Numbers such as eps may be others.
OPS = (
    (norms.rms_norm, ("weight",)),
    (norms.add_rms_norm, ("weight",)),
    (norms.layer_norm, ("weight", "bias")),
    (gates.packed_glu, ()),
    (gates.glu, ()),
    (cross_entropy.counted_losses, ()),
)
DTYPES = ("float32", "bfloat16")


def requests() -> Iterator[Request]:
    """What the build compiles."""
    for (op, given), dtype in itertools.product(OPS, DTYPES):
        yield from requests_of(op, given, dtype)


def requests_of(op: Any, given: tuple[str, ...], dtype: str) -> Iterator[Request]:
    """An op's forward pass, that which keeps what the backward pass reads, and that one."""
    declaration = op.declaration
    static = {**declaration.static}
    if "dtype" in static:
        static["dtype"] = dtype
    present = tuple(not p.optional or p.name in given for p in declaration.parameters)
    usual = usual_requests(traced(declaration, present, *static.values()), dtype)
    yield from itertools.islice(usual, 3 if declaration.keep else 2)
