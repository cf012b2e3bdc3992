"""Programs with operands and results of 8 bits: compiled for the CPU, and emulated for CUDA."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge import lang as bl
from bridge.catalogue.quantization import FORMATS, dequantize, fake_quantize, quantize
from bridge.catalogue.quantized_norms import layer_rows, rms_rows
from bridge.generated.requests import Request
from bridge.lang.dtypes import OF_8_BITS
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests
from tests.generated.emulated import needs_compiler, run

DTYPES = ("float32", "bfloat16", "float16", "float64")


@bridge.op
def in_all_dtypes(x: bridge.Full, y: bridge.Pairs, scale: bridge.Row) -> Any:
    """Results of each dtype, at every place and in each row, beside a sum over the rows."""
    even, odd = y
    z = bl.binade(x) * scale
    places = [bl.stored(each, dtype) for each, dtype in zip((x, z, even), OF_8_BITS, strict=False)]
    rows = [bl.stored(bl.max(bl.abs(odd)), dtype) for dtype in OF_8_BITS]
    rounded = bl.rounded(x, "float8_e5m2") + bl.rounded(odd, "int8")
    return *places, *rows, rounded, bl.column_sum(x)


def requests_of(op: Any, own: str, **static: Any) -> list[Request]:
    declaration = op.declaration
    present = tuple(True for _ in declaration.parameters)
    found = traced(declaration, present, *{**declaration.static, **static}.values())
    return [*itertools.islice(usual_requests(found, own), 1)]


def read_from(values: str, scales: str) -> Request:
    """Returns the program of dequantize on operands of these dtypes."""
    (own,) = requests_of(dequantize, "float32", dtype="bfloat16")
    return Request(own.program, own.arithmetic, (values, scales, "bfloat16"))


CASES = {
    **{
        f"{op.__name__} {name} {dtype}": (op, dtype, {"name": name})
        for op, name, dtype in itertools.product((quantize, fake_quantize), FORMATS, DTYPES)
    },
    **{
        f"{op.__name__} {name} {dtype}": (op, dtype, {"dtype": dtype, "name": name})
        for op, name, dtype in itertools.product((rms_rows, layer_rows), FORMATS, DTYPES)
    },
    **{f"all {dtype}": (in_all_dtypes, dtype, {}) for dtype in DTYPES},
}


@pytest.mark.long
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    """The library compares a program with the interpreter when it loads it."""
    op, dtype, static = CASES[name]
    for request in requests_of(op, dtype, **static):
        request.compile()


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("scales", ["float32", "float8_e8m0fnu", "float8_e4m3fn"])
@pytest.mark.parametrize("values", OF_8_BITS)
def test_compiled_operands(values: str, scales: str) -> None:
    read_from(values, scales).compile()


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.processes
@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, tmp_path: Path) -> None:
    op, dtype, static = CASES[name]
    run(requests_of(op, dtype, **static), tmp_path, calls=24, seed=len(name))


@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.processes
@needs_compiler
@pytest.mark.parametrize("values", OF_8_BITS)
def test_emulated_operands(values: str, tmp_path: Path) -> None:
    run([read_from(values, "float8_e8m0fnu")], tmp_path, calls=24, seed=len(values))
