"""The C++ sources form layers, and none includes a higher layer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CPP = Path(__file__).resolve().parent.parent / "cpp"
# From bottom to top. The layers on one line do not include each other.
LAYERS = (
    ("include",),
    ("math",),
    ("cpu", "cuda"),
    ("drivers",),
    ("program",),
    ("tiles",),
    ("products", "embedding", "selection", "taps", "generated"),
    ("convolution",),
    ("interpreter",),
    ("hand_written",),
    ("bindings",),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
# The emulator of tests/simt replaces CUDA's intrinsics behind the same interface.
STANDS_IN = {
    ("cuda/simt.h", "simt_emulator.h"),
    ("cuda/tensor_core.h", "tensor_core_emulator.h"),
}
SOURCES = sorted(
    path.relative_to(CPP).as_posix()
    for path in CPP.rglob("*")
    if path.suffix in {".h", ".cuh", ".cpp", ".cu"}
)


def includes(text: str) -> list[str]:
    """Returns the quoted includes of a source: files of this project, relative to cpp/."""
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE)


def misplaced(source: str, text: str) -> list[str]:
    """Returns the includes of a source that no layer allows, or that name no file in cpp/."""
    layer = source.partition("/")[0]
    wrong = []
    for include in includes(text):
        below = include.partition("/")[0]
        if (source, include) in STANDS_IN:
            continue
        allowed = below == layer or HEIGHT.get(below, len(LAYERS)) < HEIGHT[layer]
        if not allowed or include not in SOURCES:
            wrong.append(include)
    return wrong


def test_every_folder_is_a_layer() -> None:
    assert {source.partition("/")[0] for source in SOURCES} == set(HEIGHT)


def test_nothing_includes_what_stands_above_it() -> None:
    found = {source: misplaced(source, (CPP / source).read_text()) for source in SOURCES}
    assert {source: wrong for source, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("source", "include"),
    [
        ("math/gelu.h", "cpu/tile.h"),
        ("cpu/tile.h", "cuda/simt.h"),
        ("cpu/tile.h", "hand_written/softmax_call.h"),
        ("drivers/rows/row_sums.h", "hand_written/softmax_call.h"),
        ("hand_written/softmax_kernel.cpp", "bindings/calls/program_call.h"),
        ("hand_written/softmax_kernel.cpp", "softmax.h"),
        ("cuda/driver.cpp", "simt_emulator.h"),
    ],
)
def test_an_include_of_a_layer_above_is_found(source: str, include: str) -> None:
    assert misplaced(source, f'#include <new>\n  # include "{include}"\n') == [include]
