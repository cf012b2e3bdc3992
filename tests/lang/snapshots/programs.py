"""The programs whose texts are stored, chosen so that each part of the emitters writes some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import bridge
from bridge import lang as bl
from bridge.catalogue import bias_dropout_add, bias_gelu, cross_entropy, gates, norms, rotary
from bridge.generated.requests import Request
from bridge.lang.emission.cpu import source_of
from bridge.lang.emission.cuda import Emitted
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests

FOLDER = Path(__file__).parent
FORWARD, KEEPS, BACKWARD = "forward", "keeps", "backward"


@bridge.op
def ranked(x: bridge.Full, y: bridge.Pairs, first: bridge.PerRow[int], share: bridge.PerRow) -> Any:
    """A small op of a user: places and numbers of columns, integers, and results of each role."""
    even, odd = y
    place = bl.argmax(x)
    last = bl.columns() - 1 - first
    seen = bl.where((bl.column() >= first) & (bl.column() <= last), bl.exp(x - bl.max(x)), 0.0)
    return bl.pairs(seen * odd, even / 3.0), bl.column_sum(seen), bl.where(place > 2, share, 0.5)


@bridge.op
def masked_mean(x: bridge.Full, hidden: bridge.Mask, scale: bridge.Table) -> Any:
    seen = bl.where(hidden, -0.0, x)
    return bl.mean(seen), seen * scale / (2.0 + bl.max(seen))


@bridge.op
def in_blocks(x: bridge.Full, scales: bridge.PerBlock[32]) -> Any:
    sizes = bl.block_max(bl.abs(x), 32)
    return x / (sizes + scales), sizes, bl.block_sum(x * scales, 32)


def _request(
    op: Any, dtype: str, wanted: str, given: tuple[str, ...] = (), **static: Any
) -> Request:
    """Returns a pass of an op, with these of its optional operands."""
    declaration = op.declaration
    values = {**declaration.static, **static}
    if "dtype" in values:
        values["dtype"] = dtype
    present = tuple(not each.optional or each.name in given for each in declaration.parameters)
    requests = [*usual_requests(traced(declaration, present, *values.values()), dtype)]
    passes = (FORWARD, KEEPS, BACKWARD) if declaration.keep else (FORWARD, BACKWARD)
    return requests[passes.index(wanted)]


def _of_a_part(request: Request) -> Request:
    """Returns the program on a part of an array: it takes the number of its first element too."""
    count = len(request.program.operands)
    dtypes = *request.dtypes[:count], "int64", *request.dtypes[count:]
    return replace(request, dtypes=dtypes, has_start=True)


def requests() -> dict[str, Request]:
    """Returns the programs by the names of their files."""
    weight, both = ("weight",), ("bias", "up_bias", "weight")
    drop = ("bias", "residual", "seed")
    counted = cross_entropy.counted_losses
    found = {
        "add_rms_norm": _request(norms.add_rms_norm, "bfloat16", KEEPS, weight),
        "rms_norm_backward": _request(norms.rms_norm, "bfloat16", BACKWARD, weight),
        "layer_norm_backward": _request(norms.layer_norm, "float32", BACKWARD, ("weight", "bias")),
        "packed_glu": _request(gates.packed_glu, "float16", FORWARD, activation="gelu"),
        "packed_glu_backward": _request(gates.packed_glu, "bfloat16", BACKWARD, both),
        "glu_backward": _request(gates.glu, "float32", BACKWARD),
        "cross_entropy": _request(counted, "bfloat16", KEEPS),
        "cross_entropy_backward": _request(counted, "bfloat16", BACKWARD),
        "bias_gelu_backward": _request(bias_gelu.bias_gelu, "float32", BACKWARD, ("bias",)),
        "bias_dropout_add": _request(
            bias_dropout_add.bias_dropout_add, "float32", FORWARD, drop, p=0.1
        ),
        "rotary": _request(rotary.rotary_of_pairs, "float16", FORWARD),
        "rotary_backward": _request(rotary.rotary, "bfloat16", BACKWARD),
        "masked_mean": _request(masked_mean, "bfloat16", FORWARD),
        "ranked": _request(ranked, "float64", FORWARD),
        "in_blocks": _request(in_blocks, "float32", FORWARD),
        "in_blocks_backward": _request(in_blocks, "bfloat16", BACKWARD),
    }
    return found | {"bias_dropout_add": _of_a_part(found["bias_dropout_add"])}


def in_cuda(request: Request) -> str:
    emitted = request.emitted()
    facts = zip(Emitted.__dataclass_fields__, astuple(emitted), strict=True)
    return "".join(f"// {name}: {fact}\n" for name, fact in [*facts][1:]) + emitted.source


def texts() -> Iterator[tuple[Path, str]]:
    """Yields each file with the text that the emitters write now."""
    for name, request in requests().items():
        of = request.program, request.arithmetic, request.dtypes, request.has_start
        yield FOLDER / "cpu" / f"{name}.txt", source_of(*of, request.free())
        yield FOLDER / "cuda" / f"{name}.txt", in_cuda(request)
