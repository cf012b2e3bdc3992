"""The native module's calls of the CUDA library: their time, stream and arguments.

A stand-in for the library records calls instead of computing, so that no GPU is needed.
"""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.jax import subprocess_run

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

# Two devices; those below IN_USE have a context.
LIBRARY = r"""
#include <cstdint>
#include <cstdio>
#include <string>
static std::string book;
static int in_use = 0;
extern "C" {
const char* bridge_cuda_last_error() { return "an error"; }
int32_t bridge_cuda_device_count() { return 2; }
const char* bridge_cuda_archs() { return "90"; }
int32_t bridge_cuda_preload(int32_t device) {
  book += "preload " + std::to_string(device) + (device < in_use ? "\n" : ": not in use\n");
  return device < in_use ? 0 : 3;
}
void use_devices(int count) { in_use = count; }
int32_t bridge_cuda_arch(int32_t device) { return device < in_use ? 90 : 0; }
static int64_t added = 0;
int32_t bridge_program_cuda_add(const void* kernels) {
  const int32_t device = ((const int32_t*)kernels)[10];  // behind `free`
  book += "add to " + std::to_string(device) + (device < in_use ? "\n" : ": not in use\n");
  return device < in_use ? 0 : 3;
}
int64_t bridge_program_cuda_added_calls() { return added; }
void bridge_program_cuda_forget() {}
const char* take_book() {
  static std::string taken;
  taken.swap(book);
  book.clear();
  return taken.c_str();
}
#define OP(name, more) \
  size_t bridge_##name##_cuda_workspace(const void*) { return 0; } \
  int32_t bridge_##name##_cuda(const void* call, void*, size_t, void* stream) { \
    book += "run " #name " on " + std::to_string((uintptr_t)stream) + std::string(more) + "\n"; \
    return 0; \
  }
OP(program, "")
OP(embedding_gradient, "")
int32_t bridge_selection_cuda(const void*, void* stream) {
  book += "run selection on " + std::to_string((uintptr_t)stream) + "\n";
  return 0;
}
OP(convolution, "")
// skips_zeros and tensor_cores are behind dims, eight sizes, m, n and k.
#define WORD(i) ((const int32_t*)((const int64_t*)call + 1 + 8 + 3))[i]
OP(product, WORD(0) ? " without zeros" : WORD(1) ? " by tensor cores" : "")
}
"""

# Host memory that claims to be on a GPU: nothing reads it.
PRELUDE = """
import ctypes, os, sys
import numpy as np
import torch
from bridge import _native
from bridge.generated import load_built_kernels, built_kernels
from bridge.catalogue.softmax_programs import softmax_program
from bridge.ops import PROGRAM

_native.set_cuda_library_path({library!r})
fake = ctypes.CDLL({library!r})
fake.take_book.restype = ctypes.c_char_p
book = lambda: fake.take_book().decode().splitlines()

torch._C._cuda_getCurrentRawStream = lambda device: 1000 + device

CUDA = 2


class Capsule(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class OnGpu:
    def __init__(self, device, shape=(4, 8), dtype=np.float32):
        self.memory = np.zeros(shape, dtype)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        code, bits = "iuf".index(self.memory.dtype.kind), 8 * self.memory.itemsize
        self.managed = Capsule(
            self.memory.ctypes.data, CUDA, device, len(shape), code, bits, 1, self.shape, None, 0,
            None, None,
        )

    def __dlpack__(self):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


def build_has(count):
    os.environ["BRIDGE_COMPILE"] = "background"
    empty = built_kernels.Kernels(b"", [], [], [8, 1, 0, 1, 0], b"")
    found = dict.fromkeys(range(count), empty)
    built_kernels.built_kernels = lambda arch: found if arch == "sm_90" else dict()


def softmax(device):
    params = softmax_program(1.0, "float32", (False, False))
    code = PROGRAM.code(params, ("float32",))
    attributes = tuple(params.attributes().values())
    x, y = OnGpu(device), OnGpu(device)
    assert _native.run("program", (x,), (y,), attributes, 1, None, code) == -1


"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda_library")
    source, path = folder / "library.cpp", folder / "libbridge_cuda.so"
    source.write_text(LIBRARY)
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-std=c++17", str(source), "-o", str(path)], check=True
    )
    return path


def run(library: Path, code: str) -> None:
    """Runs code in a separate process, because a library is opened once per process."""
    subprocess_run.run(PRELUDE.format(library=str(library)) + textwrap.dedent(code))


def test_the_first_call_on_a_device_loads_all_kernels_before(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(2)
        softmax(1)
        assert book() == ["preload 1", "run program on 1001"]
        softmax(1)
        assert book() == ["run program on 1001"]
        softmax(0)
        assert book() == ["preload 0", "run program on 1000"]
        """,
    )


def test_an_embedding_runs_on_the_stream_of_its_cotangent(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(2)
        terms, result = OnGpu(1, (1, 6, 3)), OnGpu(1, (1, 5, 3))
        ids, order = (OnGpu(1, (1, 6), np.int64) for _ in range(2))
        workspace = OnGpu(1, (99,), np.uint8)
        _native.run_embedding_gradient(terms, ids, order, result, workspace, 1)
        assert book() == ["preload 1", "run embedding_gradient on 1001"]
        try:
            elsewhere = OnGpu(0, (1, 6), np.int64)
            _native.run_embedding_gradient(terms, elsewhere, order, result, None, 1)
        except ValueError as error:
            assert str(error) == "embedding: ids is on another device than the cotangent"
        else:
            raise AssertionError("two devices")
        """,
    )


def test_a_selection_runs_on_the_stream_of_its_rows(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(2)
        x, result = OnGpu(1, (2, 6)), OnGpu(1, (2, 3), np.int64)
        _native.run_selection(x, None, result, 1.0, 0, 1.0, 0.0, 1)
        assert book() == ["preload 1", "run selection on 1001"]
        try:
            _native.run_selection(x, None, OnGpu(0, (2, 3), np.int64), 1.0, 0, 1.0, 0.0, 1)
        except ValueError as error:
            assert str(error) == "selection: the result is on another device than x"
        else:
            raise AssertionError("two devices")
        """,
    )


def test_a_product_runs_on_the_stream_of_its_first_operand(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(2)
        a, b, c = (OnGpu(1, shape) for shape in ((2, 3), (3, 4), (2, 4)))
        _native.run_product(a, b, None, c, False, False, 1, None)
        assert book() == ["preload 1", "run product on 1001"]
        _native.run_product(a, b, None, c, True, False, 1, None)
        _native.run_product(a, b, None, c, False, True, 1, None)
        assert book() == [
            "run product on 1001 without zeros", "run product on 1001 by tensor cores"
        ]
        try:
            _native.run_product(a, OnGpu(0, (3, 4)), None, c, False, False, 1, None)
        except ValueError as error:
            assert str(error) == "matmul: b is on another device than a"
        else:
            raise AssertionError("two devices")
        """,
    )


def test_a_tensor_without_an_exchange_table_is_read_on_torchs_stream(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(2)
        softmax(0)
        assert book()[-1] == "run program on 1000"
        torch._C._cuda_getCurrentRawStream = lambda device: 7
        softmax(0)
        assert book()[-1] == "run program on 7"
        """,
    )


def test_devices_that_nothing_uses_are_left_alone(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(1)
        _native.prepare_cuda()
        assert book() == ["preload 0", "preload 1: not in use"]
        _native.prepare_cuda(0)
        assert book() == []
        fake.use_devices(2)  # somebody does from now on
        _native.prepare_cuda()
        assert book() == ["preload 1"]
        softmax(0), softmax(1)
        assert book() == ["run program on 1000", "run program on 1001"]
        """,
    )


def test_importing_the_torch_adapter_loads_where_cuda_has_started(library: Path) -> None:
    run(
        library,
        """
        fake.use_devices(1)
        import bridge.torch
        assert book() == []
        from bridge.torch._adapter.kernels import load_kernels
        torch.cuda.is_initialized = lambda: True
        build_has(2)
        load_kernels()
        assert book() == ["preload 0", "preload 1: not in use", "add to 0", "add to 0"]
        """,
    )


def test_kernels_of_the_build_are_added_to_devices_in_use(library: Path) -> None:
    """All of them are added before the first call of a program or a collective."""
    run(
        library,
        """
        import threading

        build_has(2)
        fake.use_devices(1)
        load_built_kernels()
        assert book() == ["preload 0", "add to 0", "add to 0"]
        load_built_kernels()
        assert book() == []
        fake.use_devices(2)
        threads = [threading.Thread(target=load_built_kernels, args=(1,)) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert book() == ["preload 1", "add to 1", "add to 1"]
        load_built_kernels()
        assert book() == []
        """,
    )


def test_kernels_of_the_build_are_left_where_nothing_is_to_be_compiled(library: Path) -> None:
    run(
        library,
        """
        build_has(2)
        fake.use_devices(2)
        os.environ["BRIDGE_COMPILE"] = "0"
        load_built_kernels()
        assert book() == []
        os.environ["BRIDGE_COMPILE"] = "background"
        load_built_kernels()
        assert book().count("add to 1") == 2
        """,
    )


@pytest.mark.long
def test_xla_loads_them_when_it_compiles(library: Path) -> None:
    """The stages of CUDA's handlers run on the CPU: only the last one differs there."""
    run(
        library,
        """
        import jax, jax.numpy as jnp
        from bridge.jax._adapter.ffi import register_handlers

        fake.use_devices(1)
        for target, platforms in _native.ffi_handlers().items():
            stages = {**platforms.get("CUDA", {}), "execute": platforms["cpu"]}
            jax.ffi.register_ffi_target(f"{target}_in_stages", stages, platform="cpu")

        def call(x):
            params = softmax_program(0.5, "float32", (False, False))
            attributes = np.array(list(params.attributes().values()), np.float64)
            code = np.frombuffer(PROGRAM.code(params, ("float32",)), np.int32)
            call = jax.ffi.ffi_call(
                "bridge_program_in_stages", jax.ShapeDtypeStruct(x.shape, x.dtype)
            )
            return call(
                x, attributes=attributes, count=np.int32(1), slots=np.zeros(1, np.int32),
                outputs=np.int32(1), code=code,
            )

        x = jnp.arange(32.0).reshape(4, 8)
        compiled = jax.jit(call).lower(x).compile()
        assert book()[0] == "preload 0"
        np.testing.assert_allclose(compiled(x), jax.nn.softmax(0.5 * x), rtol=1e-6)
        assert book() == []
        """,
    )


def test_threads_wait_until_the_kernels_are_there(library: Path) -> None:
    run(
        library,
        """
        import threading
        fake.use_devices(1)
        threads = [threading.Thread(target=softmax, args=(0,)) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert book() == ["preload 0", *["run program on 1000"] * 8]
        """,
    )


def test_compiled_kernels_are_added_to_devices_in_use(library: Path) -> None:
    """The kernels of one architecture, as requested from the library."""
    run(
        library,
        """
        from bridge.generated.requests import archs_of

        assert archs_of("cuda") == []
        fake.use_devices(1)
        assert archs_of("cuda") == ["sm_90"]
        add = lambda device: _native.add_generated_cuda(b"", [], [], device, b"", 8, 1, 0, 1, 0)
        assert add(0) is True
        assert add(1) is False
        assert book() == ["preload 0", "add to 0", "preload 1: not in use", "add to 1: not in use"]
        """,
    )
