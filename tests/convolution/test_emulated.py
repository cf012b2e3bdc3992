"""The CUDA kernels of convolutions on the host emulator (tests/simt/convolution_simt.cpp)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.generated.emulated import COMPILER, ROOT, needs_compiler

SOURCES = (
    "cpp/cuda/last_error.cpp",
    "cpp/convolution/convolution.cu",
    "cpp/convolution/tensor_convolution.cu",
    "tests/simt/convolution_simt.cpp",
    "tests/simt/simt_emulator.cpp",
    "tests/simt/tensor_core_emulator.cpp",
)
FLAGS = ("-std=c++17", "-O1", "-w", "-ffp-contract=off", "-xc++")


@needs_compiler
@pytest.mark.long
def test_bits_and_errors(tmp_path: Path) -> None:
    """Every kernel against a plain evaluation of the definition."""
    folders = [f"-I{ROOT / folder}" for folder in ("tests/simt", "cpp", "cpp/include")]
    program = tmp_path / "convolution_simt"
    sources = [str(ROOT / source) for source in SOURCES]
    subprocess.run(
        [str(COMPILER), *FLAGS, *folders, *sources, "-o", str(program)], check=True, timeout=600
    )
    done = subprocess.run([str(program), "120"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]
