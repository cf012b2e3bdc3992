"""What the native module offers to the adapters: not for users."""

from typing import Any

# By target and platform: the handler, or a dict of those of its stages.
def ffi_handlers() -> dict[str, dict[str, Any]]: ...

# A handler for any platform that does nothing.
def empty_handler() -> Any: ...

# The custom call "bridge_stream" by platform, and the stream that it was last called on.
def stream_handlers() -> dict[str, Any]: ...
def noted_stream() -> int: ...

# The threads of torch calls: those of the OpenMP runtime whose GOMP_parallel is at the address.
def use_openmp(gomp_parallel: int, omp_get_thread_num: int) -> None: ...

# What cpp/bindings/torch/nodes.cpp lends, once it is compiled: memory for results without Python.
def use_function_table(capsule: object) -> None: ...
def build_info() -> dict[str, Any]: ...
def cpu_isa() -> str: ...
def set_cpu_isa(name: str | None) -> None: ...
def add_generated(
    code: bytes, dtypes: list[int], free: list[int], isa: str, library: str
) -> None: ...
def has_generated(code: bytes, dtypes: list[int], isa: str) -> bool: ...
def add_generated_cuda(
    code: bytes,
    dtypes: list[int],
    free: list[int],
    device: int,
    image: bytes,
    vector: int,
    cells: int,
    held: int,
    kinds: int,
    staged: int,
) -> bool: ...
def cuda_arch(device: int) -> str: ...
def forget_generated() -> None: ...
def generated_calls() -> int: ...
def rejected_programs() -> int: ...
def set_cuda_library_path(path: str, why: str = "") -> None: ...
def cuda_unavailable() -> str: ...
def cuda_device_count() -> int: ...
def cuda_archs() -> str: ...

# Loads every CUDA kernel onto this device, or all devices, if something uses it by now, once.
def prepare_cuda(device: int = ...) -> None: ...

# Memory of large results on the CPU that is kept for later ones: how much at most, how much now.
def keep_memory(bytes: int, /) -> None: ...
def kept_memory() -> int: ...

# A tensor in such memory, of the library that `like` is of; None where it is not to be kept.
def kept_empty(like: Any, dtype_code: int, shape: tuple[int, ...], /) -> Any: ...

# Writes the matrix product of any DLPack tensors, plus a bias, into c.
def run_product(
    a: Any,
    b: Any,
    bias: Any,
    c: Any,
    skips_zeros: bool,
    tensor_cores: bool,
    threads: int,
    allocate: Any,
    /,
) -> None: ...

# Returns the matrix product of ordinary tensors on the CPU, plus a bias, with the shapes of
# numpy.matmul; None for a call that the general path must take. True if autograd is to record it.
# `frontend` is that of a Kernel. `flags` adds 1 (a is transposed), 2 (b is), 4 (zeros of a are
# skipped), 8 (do not ask for observers: there are none) and 16 (b has two dimensions). `dtype` is
# the result's, as a code and as the library's own, or None for the promoted one.
def quick_product(
    frontend: tuple[Any, ...],
    a: Any,
    b: Any,
    bias: Any,
    flags: int,
    dtype: tuple[int, Any] | None,
    /,
) -> Any: ...

# Writes a convolution of any DLPack tensors: y from x and w (kind 0), x from y and w (1), or w from
# x and y (2), plus a bias in the first two. The padding is that of the low side; the sizes of the
# arrays are free otherwise.
def run_convolution(
    kind: int,
    x: Any,
    w: Any,
    bias: Any,
    y: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    tensor_cores: bool,
    threads: int,
    allocate: Any,
    /,
) -> None: ...

# Writes a map between places into the result, as taps.h says; all are compact tensors on the CPU.
# The table and weights are None for chosen places, which are None otherwise.
def run_taps(
    kind: int,
    x: Any,
    table: Any,
    weights: Any,
    chosen: Any,
    result: Any,
    has_inner: bool,
    threads: int,
    /,
) -> None: ...

# Writes the sums of the terms with equal ids into the result; all are compact DLPack tensors. On
# CUDA ids are sorted, order has the places of their terms, and a workspace of bytes is needed; both
# are None on the CPU.
def run_embedding_gradient(
    terms: Any, ids: Any, order: Any, result: Any, workspace: Any, threads: int, /
) -> None: ...

# Writes columns of each row of x into the result, as bridge.h says; all are compact DLPack tensors.
# The words are None for the largest, else uint32 [..., 4] or int64 [..., 2].
def run_selection(
    x: Any,
    words: Any,
    result: Any,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    threads: int,
    /,
) -> None: ...

# An op on tensors: runs `op` by name, returns -1 or the position of an operand to make contiguous.
def are_columns(labels: Any, columns: int, ignored: int | None, /) -> bool: ...
def run(
    op: str,
    operands: tuple[Any, ...],
    results: tuple[Any, ...],
    attributes: tuple[float, ...],
    threads: int,
    allocate: Any,
    code: bytes,
) -> int: ...

class Kernel:
    """An op with fixed attributes; see cpp/bindings/python/kernel_type.h."""

    def __init__(self, op: str, frontend: tuple[Any, ...]) -> None: ...
    def __call__(self, *operands: Any) -> tuple[Any, ...] | None: ...
    def compute(self, *operands: Any) -> tuple[Any, ...] | None: ...
    def recorded(self, *operands: Any) -> Any: ...
    def write(self, out: Any, *operands: Any) -> bool: ...
    def add(
        self,
        dtypes: tuple[int, ...],
        attributes: tuple[float, ...],
        made: tuple[Any, ...],
        plan: Any,
        code: bytes,
    ) -> None: ...
