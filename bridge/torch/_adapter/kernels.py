"""Runs calls of ops on torch tensors: memory for the results, then the kernel; no autograd."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch import check, is_zero_tensor, profiler
from bridge.generated import load_built_kernels
from bridge.lang.dtypes import NUMBERS
from bridge.ops import Role, Spec
from bridge.ops.definition import Op, shape_in, space_of

DTYPES = {name: getattr(torch, name) for name in NUMBERS}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_ALL = 2**31 - 1

_kept_empty = _native.kept_empty

PLAIN = frozenset({Tensor, torch.nn.Parameter})

Results = tuple[Tensor | None, ...]


class _TracedSpec(Spec):
    """Compares symbolic sizes as torch's own broadcasting does.

    Sizes with known example values get guards. Sizes that depend on data are assumed to fit; the
    traced program checks that when it runs.
    """

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        return len(self.shape) == len(shape) and all(map(_agree, self.shape, shape))

    def broadcasts_to(self, shape: tuple[int, ...]) -> bool:
        # The import takes half a second in a process that has not traced anything.
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        return len(self.shape) <= len(shape) and all(
            guard_or_false(own == full) or guard_or_false(own == 1) or _agree(own, full)
            for own, full in zip(reversed(self.shape), reversed(shape), strict=False)
        )


def _agree(size: int, other: int) -> bool:
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    if not guard_or_true(size == other):
        return False
    check(size == other)
    return True


def dtype_word(dtype: torch.dtype) -> str:
    """Returns our name of a dtype; a dtype that no op takes keeps torch's name."""
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))


def spec_of(tensor: Tensor) -> Spec:
    """Returns the shape and the dtype's name."""
    shape, name = tuple(tensor.shape), dtype_word(tensor.dtype)
    if torch.compiler.is_compiling() or any([type(size) is torch.SymInt for size in shape]):
        return _TracedSpec(shape, name)
    return Spec(shape, name)


def is_unguarded(size: Any) -> bool:
    """True if a trace by make_fx serves other sizes too.

    Such a trace checks no guards. One that has a part for every few rows of its example would leave
    further rows out, without an error.
    """
    return type(size) is torch.SymInt and not torch.compiler.is_compiling()


def is_known(condition: bool) -> bool:
    """Evaluates a condition on sizes; False if a traced program knows it only when it runs."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        return guard_or_false(condition)
    return condition


def same_shape(a: Tensor, b: Tensor) -> bool:
    """True if the shapes are equal, in the sense of `Spec.has_shape` under torch.compile."""
    return spec_of(a).has_shape(b.shape) if torch.compiler.is_compiling() else a.shape == b.shape


def specs_of(operands: Sequence[Tensor | None]) -> tuple[Spec | None, ...]:
    return tuple(None if operand is None else spec_of(operand) for operand in operands)


def dtypes_of(operands: Sequence[Tensor | None]) -> tuple[str | None, ...]:
    return tuple(None if operand is None else NAMES[operand.dtype] for operand in operands)


def empty_results(op: Op[Any], operands: Sequence[Tensor | None], params: Any) -> Results:
    """Returns uninitialised contiguous tensors for the wanted results."""
    like: Any = operands[0]
    return tuple(
        None if spec is None else new_memory(spec.shape, spec.dtype, like)
        for spec in op.results(specs_of(operands), params)
    )


def new_memory(shape: tuple[int, ...], dtype: str, like: Tensor) -> Tensor:
    """Returns an uninitialised contiguous tensor; large ones reuse the memory of dropped results.

    Memory is not reused while a profiler runs, because it reports torch's own allocator.
    """
    if type(like) in PLAIN and like.is_cpu and not profiler._is_profiler_enabled:
        kept: Tensor | None = _kept_empty(like, NUMBERS[dtype], shape)
        if kept is not None:
            return kept
    return torch.empty(shape, dtype=DTYPES[dtype], device=like.device)


def keep_memory() -> None:
    """Sets how many MiB of dropped results `new_memory` may hold: BRIDGE_KEEP_MIB, default 1024."""
    text = os.environ.get("BRIDGE_KEEP_MIB", "1024")
    if not text.isdecimal():
        raise ValueError(f"BRIDGE_KEEP_MIB is {text!r}; expected a number of MiB, 0 for none")
    _native.keep_memory(min(int(text), 2**40) * 2**20)


def allocate(size: int, like: Tensor) -> Tensor:
    """Returns device memory for a workspace of `size` bytes, from torch's own allocator."""
    return torch.empty(size, dtype=torch.uint8, device=like.device)


def load_kernels() -> None:
    """Loads the CUDA kernels onto the devices that torch uses already.

    The first call on a device would load them too. But loading waits for the device, and a
    collective that runs there may wait for a kernel that this process has not launched yet.
    """
    if torch.cuda.is_initialized():
        _native.prepare_cuda()
        load_built_kernels()


def dense(cotangent: Tensor) -> Tensor:
    """Returns a cotangent that may be sparse, as that of torch.gather(..., sparse_grad=True)."""
    return cotangent.to_dense() if cotangent.is_sparse else cotangent


def in_memory(tensor: Tensor, role: Role) -> Tensor:
    """Returns the tensor with its values in memory, aligned as the kernel needs."""
    if is_zero_tensor(tensor):  # autograd's zeros, which have no memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    tensor = tensor.resolve_neg()
    return tensor if _is_aligned(tensor, role) else tensor.clone()


def _is_aligned(tensor: Tensor, role: Role) -> bool:
    """True if the tensor starts at a multiple of its element's size, as all memory of torch does.

    Memory from a file, a message or NumPy may not. Integer operands are pairs of 32-bit words
    that the kernel reads as 64-bit integers.
    """
    size = 8 if role is Role.INTEGER else tensor.element_size()
    return tensor.data_ptr() % size == 0


def _compact(tensor: Tensor, role: Role, shape: torch.Size) -> Tensor:
    """Returns a contiguous copy; of an expanded operand that broadcasts, a copy without repeats.

    A contiguous mask is repeated to `shape`: the kernels walk few dimensions in which it repeats.
    """
    if role is Role.MASK and tensor.is_contiguous():
        return tensor.expand(shape).contiguous()
    if role.broadcasts:
        for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if size > 1 and stride == 0:
                tensor = tensor.narrow(dimension, 0, 1)
    return tensor.contiguous()


def _places(present: Sequence[bool]) -> list[int]:
    return [i for i, is_present in enumerate(present) if is_present]


class Kernel:
    """An op whose parameters and operand dtypes are fixed, ready to run on plain tensors.

    Everything that depends on these alone is computed once, here: a call on a tiny tensor costs
    little more than the memory for its result.
    """

    function = ""  # the public function, if known

    def __init__(self, op: Op[Any], params: Any, dtypes: tuple[str | None, ...]) -> None:
        self.op = op
        self.params = params
        self.dtypes = dtypes
        self._attributes = tuple(params.attributes().values())
        code = op.code(params, dtypes)
        self._code: Any = () if code is None else (code,)
        self._added: set[Any] = set()  # pairs of native kernel and `present`, see `add_to`
        self._met: set[int] = set()  # devices
        self._roles = op.operand_roles(len(dtypes), params)
        self._results = list(zip(op.result_dtypes(params), op.result_roles(params), strict=True))

    def add_to(self, native: Any, present: Sequence[bool] | None = None) -> None:
        """Lets a `_native.Kernel` take calls of this kind.

        `present` marks the operands of the native kernel that this call has. None: it has all, and
        absent operands are passed as None.
        """
        if (native, present) not in self._added:
            self._added.add((native, present))
            codes = [-1 if dtype is None else NUMBERS[dtype] for dtype in self.dtypes]
            places = range(len(codes)) if present is None else _places(present)
            dtypes = [-1] * (len(codes) if present is None else len(present))
            for place, code in zip(places, codes, strict=True):
                dtypes[place] = code
            made = self._made(places, len(dtypes))
            native.add(tuple(dtypes), self._attributes, made, self, *self._code)

    def met(self, device: int) -> None:
        """Prepares for the first call on CUDA device `device` (-1: CPU); native kernels call it."""
        if device not in self._met:
            self._met.add(device)
            platform = "cpu" if device < 0 else "cuda"
            self.op.ask_for_machine_code(self.params, self.dtypes, platform, self.function)

    def _made(self, places: Sequence[int], count: int) -> tuple[Any, ...]:
        """Tells a native kernel how to allocate each result.

        The entry of a result is one of:
        - -1: the result is not wanted;
        - an index: the result has the shape and dtype of that array, counting the `count` operands
          of the native kernel (this call's are at `places`) and then the earlier results;
        - (leading, columns, dtype code, dtype): the shape is the first `leading` dimensions of the
          first operand (at most all but the last), then, unless `columns` is 0, one dimension of
          `columns` halves of the operand's last dimension.
        """
        made: list[Any] = []
        arrays: list[Any] = [None] * count + self._results
        for place, dtype, role in zip(places, self.dtypes, self._roles, strict=True):
            arrays[place] = dtype, role
        whole = 2 if self._roles[0] is Role.FULL else 1
        columns = {Role.FULL: whole, Role.ROW: whole}
        columns |= {Role.HALVES: 2 * whole, Role.PAIRS: 2 * whole}
        for i, (dtype, role) in enumerate(self._results):
            if dtype is None:
                made.append(-1)
            elif (dtype, role) in arrays[: count + i]:
                made.append(arrays.index((dtype, role)))
            else:
                leading = self.params.batch_ndim if role is Role.ROW else _ALL
                made.append((leading, columns.get(role, 0), NUMBERS[dtype], DTYPES[dtype]))
        return tuple(made)

    def empty_results(self, operands: tuple[Any, ...]) -> Results:
        """Like the function `empty_results`, for operands that are known to fit each other."""
        first = operands[0]
        role, batch_ndim = self._roles[0], self.params.batch_ndim
        space = first.shape if role is Role.FULL else space_of(first.shape, role)
        return tuple(
            [
                None
                if dtype is None
                else new_memory(
                    space if role is Role.FULL else shape_in(role, space, batch_ndim), dtype, first
                )
                for dtype, role in self._results
            ]
        )

    def _run_apart(self, operands: tuple[Any, ...], results: Results) -> Results:
        """Runs the call into new memory, for results whose layout the kernel cannot write."""
        for given, made in zip(results, self.run(operands), strict=True):
            if given is not None and made is not None:
                given.copy_(made)
        return results

    def run(self, operands: tuple[Any, ...], results: Results | None = None) -> Results:
        """Runs the call on plain tensors and returns the results, written into `results` if given.

        An operand whose layout the kernel cannot read by strides is copied; the others are not.
        """
        first = operands[0]
        if first.is_meta:  # there are no values to compute
            return empty_results(self.op, operands, self.params) if results is None else results
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            # A kernel is launched on the current device.
            with torch.cuda.device(first.get_device()):
                return self.run(operands, results)
        self.met(first.get_device())
        operands = tuple(
            [
                None if o is None else in_memory(o, role)
                for o, role in zip(operands, self._roles, strict=True)
            ]
        )
        if results is None:
            results = empty_results(self.op, operands, self.params)
        elif not all(
            [
                r is None or _is_aligned(r, role)
                for r, (_, role) in zip(results, self._results, strict=True)
            ]
        ):
            return self._run_apart(operands, results)
        name, threads = self.op.kernel_name, torch.get_num_threads()
        settings = (self._attributes, threads, allocate, *self._code)
        while (
            unreadable := _native.run(name, operands, results, *settings)
        ) >= 0:  # at most twice for each operand: whole and contiguous, it can be read
            if unreadable >= len(operands):  # a result of too many dimensions
                return self._run_apart(operands, results)
            copy = _compact(operands[unreadable], self._roles[unreadable], operands[0].shape)
            operands = (*operands[:unreadable], copy, *operands[unreadable + 1 :])
        return results
