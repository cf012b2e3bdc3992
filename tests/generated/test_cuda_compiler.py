"""Kernels for CUDA compile without a GPU, and their machine code meets its limits."""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge.catalogue import ahead_of_time
from bridge.generated import CompileError, cuda_compiler
from bridge.generated.cuda_compiler import cubin_of
from bridge.generated.nvrtc import Nvrtc, find_nvrtc
from bridge.generated.requests import Request
from bridge.lang.emission.cuda import cuda_source_of
from tests.declared.ops import rms_norm, row_dot
from tests.jax.subprocess_run import run

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "cpp"
needs_cuda_compiler = pytest.mark.skipif(
    find_nvrtc() is None and shutil.which("nvcc") is None, reason="needs NVRTC or nvcc"
)
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="needs NVRTC")
EMPTY = 'extern "C" __global__ void bridge_empty() {}\n'


@functools.cache
def checks() -> Any:
    """Imports scripts/check_generated.py, which imports modules of its own folder."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module("check_generated")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.long
@needs_cuda_compiler
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ahead_of_time.DTYPES)
@pytest.mark.parametrize("op", ahead_of_time.OPS)
def test_machine_code_is_within_its_limits(op: str, dtype: str) -> None:
    """The limits are about local memory, 128 registers, instructions, and reads in flight."""
    nvdisasm = checks().check_cubin.find_nvdisasm("nvcc")
    if nvdisasm is None:
        pytest.skip("needs nvdisasm")
    reports = list(checks().reports(nvdisasm, op, dtype))
    assert len(reports) >= 4
    assert not any(report.faults() for report in reports), "\n" + checks().table(reports)


@pytest.mark.long
@needs_cuda_compiler
@pytest.mark.parametrize(("arch", "has_clusters"), [("sm_90", True), ("sm_80", False)])
def test_blocks_meet_where_there_are_clusters(arch: str, has_clusters: bool) -> None:
    """The rows are few, and longer than the warps of a block can hold."""
    find_nvdisasm = checks().check_cubin.find_nvdisasm
    if (nvdisasm := find_nvdisasm("nvcc")) is None:
        pytest.skip("needs nvdisasm")
    request = next(ahead_of_time.requests_of("rms_norm", "bfloat16"))
    emitted = checks().cuda_source_of(
        request.program, request.arithmetic, request.dtypes, free=request.free()
    )
    code = checks().check_cubin.disassemble(nvdisasm, cubin_of(emitted.source, arch))
    meet = {
        kernel
        for kernel, (lines, _) in code.items()
        if any("UCGABAR_WAIT" in line for line in lines)
    }
    longer = {"bridge_resident_aligned", "bridge_long_aligned", "bridge_long_any"}
    assert meet == (longer if has_clusters else set())


def stores_of(request: Request, dtypes: Sequence[str]) -> dict[str, set[str]]:
    """Returns the instructions with which each kernel of a program writes to memory."""
    if (nvdisasm := checks().check_cubin.find_nvdisasm("nvcc")) is None:
        pytest.skip("needs nvdisasm")
    emitted = cuda_source_of(request.program, request.arithmetic, dtypes, free=request.free())
    code = checks().check_cubin.disassemble(nvdisasm, cubin_of(emitted.source, "sm_90"))
    return {
        kernel: {found for line in lines for found in re.findall(r"STG\.E[.\w]*", line)}
        for kernel, (lines, _) in code.items()
    }


@pytest.mark.long
@needs_cuda_compiler
def test_short_vectors_are_stored_at_once() -> None:
    """Eight bytes of bfloat16 results are stored at once, also beside float32 operands."""
    request = next(ahead_of_time.requests_of("swiglu", "float32"))
    stores = stores_of(request, (*request.dtypes[:-1], "bfloat16"))
    for kernel in ("bridge_short_aligned", "bridge_long_aligned"):
        assert stores[kernel] == {"STG.E.64"}


def test_reads_in_flight_are_those_before_the_first_use() -> None:
    load = "LDG.E.128 R{}, desc[UR6][R2.64]".format
    way = [load(4), "@!P0 " + load(8), "IADD3 R20, R21, 1, RZ", "FADD R0, R9, R1", load(12)]
    assert checks().loads_in_flight(way) == 2


def test_loops_are_what_comes_back_to_itself() -> None:
    """A branch back from code that the compiler moved to the end is no loop."""
    code = [
        *("@P0 BRA `(.aside)", "FADD R0, R0, R1"),
        *("LDG.E.128 R0, desc", "@P0 BRA `(.rare)", "FADD R0, R0, R1", "FMUL R0, R0, R1"),
        *("@P1 BRA `(.inner)", "@P2 BRA `(.outer)", "EXIT"),
        *("FMUL R2, R2, R2", "BRA `(.joined)"),
        *("FMUL R0, R0, R1", "BRA `(.again)"),
    ]
    places = {".L_outer": 2, ".L_again": 4, ".L_inner": 5, ".L_aside": 9, ".L_joined": 1}
    code = [text.replace("`(.", "`(.L_") for text in code]
    labels = {**places, ".L_rare": 11}
    (outer,) = checks().loops(code, labels)
    assert outer == {2, 3, 4, 5, 6, 7, 11, 12}
    assert checks().inner_loops(code, labels, outer) == {5, 6}


@pytest.mark.long
@needs_cuda_compiler
def test_compiled_ahead_for_a_gpu_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    row_dot.compile("cuda", dtypes=["bfloat16"], arch="sm_90")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.cubin")}
    # The value, forward mode, and reverse mode towards both operands and towards one: one program
    # for either operand.
    assert len(times) == 4
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in times)
    row_dot.compile("cuda", dtypes=["bfloat16"], arch="sm_90")
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.cubin")}
    assert row_dot(torch.ones(2, 8), torch.ones(2, 8)).tolist() == [8, 8]


@needs_nvrtc
@pytest.mark.long
def test_nvrtc_compiles_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    row_dot.compile("cuda", dtypes=["float32"], arch="sm_90")


# A stand-in for NVRTC with only its C functions; a compilation takes a minute.
SLOW = r"""
#include <string.h>
#include <unistd.h>
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return 0; }
const char* nvrtcGetErrorString(int code) { return code ? "an error" : ""; }
int nvrtcCreateProgram(void** p, const char* s, const char* n, int c, void* h, void* i) {
  *p = (void*)8;
  return 0;
}
int nvrtcCompileProgram(void* program, int count, const char** options) {
  for (int i = 0; i < count; ++i)
    if (strcmp(options[i], "-arch=sm_90") == 0) sleep(60);
  return 0;
}
int nvrtcGetCUBINSize(void* program, size_t* size) { *size = 4; return 0; }
int nvrtcGetCUBIN(void* program, char* to) { memcpy(to, "ABCD", 4); return 0; }
int nvrtcDestroyProgram(void** program) { return 0; }
"""
ENDS = """
import threading, time
from pathlib import Path
from bridge.generated import cache
from bridge.generated.cuda_compiler import cubin_of
assert cubin_of("", "sm_80").read_bytes() == b"ABCD"
threading.Thread(target=cubin_of, args=("", "sm_90"), daemon=True).start()
while not cache._running:
    time.sleep(0.01)
[process] = cache._running
cache.stop()  # as at exit
assert process.wait(30) != 0
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_process_that_ends_ends_nvrtc(tmp_path: Path) -> None:
    """NVRTC compiles in its own process, which can be ended; inside this one it would crash."""
    library = tmp_path / "wheels" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    text = tmp_path / "slow.c"
    text.write_text(SLOW)
    subprocess.run(["gcc", "-shared", "-fPIC", str(text), "-o", str(library)], check=True)
    code = f"import sys; sys.path.insert(0, {str(library.parents[3])!r})\n{ENDS}"
    run(code, BRIDGE_CACHE_DIR=str(tmp_path / "cache"))


# Builtins of NVRTC itself, or of cpp/cuda/nvrtc/stdint.h.
_BUILTINS = {*("assume", "inf", "nan", "fma", "fmaf", "sqrt", "sqrtf")}


def _included(header: Path, found: dict[Path, str]) -> dict[Path, str]:
    """Returns the text of a header of the kernels, and of all headers that it includes."""
    if header not in found:
        found[header] = header.read_text()
        for name in re.findall(r'#include [<"]([^>"]+)[>"]', found[header]):
            places = (CPP / folder / name for folder in ("", "include", "cuda/nvrtc"))
            for path in filter(Path.is_file, places):
                _included(path, found)
    return found


def test_headers_of_kernels_ask_for_no_builtins_that_nvrtc_lacks() -> None:
    """On a machine without NVRTC, no other test shows it: nvcc knows the headers of the host."""
    headers = _included(CPP / "generated" / "cuda" / "column_driver.cuh", {})
    assert CPP / "math" / "scalar.h" in headers
    for path, text in headers.items():
        asked = set(re.findall(r"__builtin_(\w+)", text))
        assert asked <= _BUILTINS, f"{path}: {asked - _BUILTINS}"


@needs_nvrtc
def test_errors_of_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=r"NVRTC .* failed for sm_90: (.|\n)*undefined"):
        cubin_of("int f() { return missing; }\n", "sm_90")
    with pytest.raises(CompileError, match=r"failed for sm_11: (.|\n)*invalid value"):
        cubin_of(EMPTY, "sm_11")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_nvcc_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda: None)
    assert cubin_of(EMPTY, "sm_90").read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(CompileError, match=r"nvcc .* failed:\n(.|\n)*missing"):
        cubin_of("int f() { return missing; }\n", "sm_90")


def test_what_is_looked_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompileError, match=r"folders nvidia beside .* CUDA_HOME .* nvcc is not on"):
        rms_norm.compile("cuda", dtypes=["float32"], arch="sm_90")


def test_nvrtc_is_found_in_wheels_and_toolkits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any version is found: in the order of sys.path, then in toolkits."""
    wheels, toolkit = tmp_path / "wheels", tmp_path / "toolkit"
    for path in (
        wheels / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13",
        wheels / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12",
        wheels / "nvidia" / "cu13" / "lib" / "libnvrtc-builtins.so.13.0",
        toolkit / "lib64" / "libnvrtc.so",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no library")
    from bridge.generated import nvrtc

    monkeypatch.setattr(sys, "path", [str(wheels)])
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(toolkit))
    found = list(nvrtc._candidates())
    folders = [Path(path).relative_to(tmp_path).parts[0] for path in found[:3]]
    assert folders == ["wheels", "wheels", "toolkit"]
    assert not any("builtins" in path for path in found)
    assert found[3:] == list(nvrtc._NAMES)
    # A file that is no library is skipped.
    find_nvrtc.cache_clear()
    try:
        assert find_nvrtc() is None or isinstance(find_nvrtc(), Nvrtc)
    finally:
        find_nvrtc.cache_clear()


def test_what_compile_refuses_for_cuda() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU to compile for: say which with arch"):
            rms_norm.compile("cuda")
    with pytest.raises(ValueError, match="arch is '90', expected the name of an architecture"):
        rms_norm.compile("cuda", arch="90")
    with pytest.raises(ValueError, match="arch is 'sm_90', expected None for device 'cpu'"):
        rms_norm.compile(arch="sm_90")


def test_the_flags_are_those_of_the_cuda_library() -> None:
    text = (CPP / "cuda" / "CMakeLists.txt").read_text()
    assert all(flag in text for flag in cuda_compiler._FLAGS)
    assert f"set(exact {' '.join(cuda_compiler._FLAGS)})" in text
    assert "-cubin -arch=${sm} -std=c++17 -O3 ${exact}" in text  # the flags of the build
    assert "-fmad=false" in cuda_compiler._FLAGS
