"""`bridge.op`: makes an op from its declaration."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from bridge.lang.dtypes import FLOATING
from bridge.lang.errors import refuse
from bridge.lang.reference import evaluate
from bridge.lang.refusals import Foreign
from bridge.lang.tracing import Check, declared
from bridge.ops.definition import Spec
from bridge.ops.form import as_per_row, check_shapes
from bridge.ops.segmented import Segmented
from bridge.ops.segmented_reference import reference_of
from bridge.ops.traced import Traced, function_of, traced

_NO_DEFAULT = inspect.Parameter.empty


class DeclaredOp:
    """An op made from a declaration: a function of tensors and of arrays.

    `f(...)` takes tensors of PyTorch, arrays of JAX or arrays of NumPy, and returns arrays of the
    same kind with the same bits. `f.torch` and `f.jax` take arrays of one framework. `f.reference`
    computes in float64 NumPy. `str(f)` shows the program.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        keep: Sequence[str] = (),
        vjp: Callable[..., Any] | None = None,
        checks: Mapping[str, Check] | None = None,
        needs: Mapping[str, str] | None = None,
        is_own: bool = False,
    ) -> None:
        # The kernels of an op of segments see rows of one length, which its functions make.
        self.declaration = self._rows = declared(function, keep, vjp, checks, needs)
        self.segmented = Segmented.of(self.declaration)
        if self.segmented is not None:
            self.declaration, self._rows = self.segmented.public, self.segmented.rows
        functools.update_wrapper(self, function)
        # Trace now, so that a faulty declaration raises here and not at the first call.
        self._example = self._trace_example()
        self._entries: dict[str, Any] = {}
        self.takes_columns = not is_own  # one number a row may be `[*rows, 1]`
        # A first call under torch.compile could not make the function. bridge.torch makes the
        # functions of its own ops itself.
        if "torch" in sys.modules and not is_own:
            self.entry("torch")

    def _trace_example(self) -> Traced | None:
        static = self._rows.static.values()
        if any(default is _NO_DEFAULT for default in static):
            return None
        present = tuple(True for _ in self._rows.parameters)
        return traced(self._rows, present, *static)

    def entry(self, framework: str) -> Any:
        """Returns the object that runs the op in "torch", "jax" or "numpy", made at first use."""
        if framework not in self._entries:
            if self.segmented is None:
                self._entries[framework] = _maker_of(framework)(self)
            else:
                self._entries[framework] = _segmented_maker_of(framework)(self.segmented)
        return self._entries[framework]

    @property
    def torch(self) -> Callable[..., Any]:
        """The function of tensors."""
        return self.entry("torch").public  # type: ignore[no-any-return]

    @property
    def jax(self) -> Callable[..., Any]:
        """The function of JAX arrays."""
        return self.entry("jax").public  # type: ignore[no-any-return]

    @property
    def _numpy(self) -> Callable[..., Any]:
        """The function of NumPy arrays."""
        return self.entry("numpy").public  # type: ignore[no-any-return]

    @functools.cached_property
    def reference(self) -> Callable[..., Any]:
        """The function of NumPy arrays that computes and returns float64."""
        if self.segmented is not None:
            return reference_of(self.segmented)

        def run(found: Traced, operands: tuple[Any, ...]) -> Any:
            operands = as_per_row(found.form, tuple(map(np.asarray, operands)))
            check_shapes(found.name, found.form, [Spec(np.shape(o), "") for o in operands])
            results = evaluate(found.program, operands)
            return results if found.returns_several else results[0]

        find = functools.partial(traced, self.declaration)
        return function_of(self.declaration, "reference", find, run)

    def __call__(self, /, *operands: Any, **keywords: Any) -> Any:
        has_numpy = False
        for value in (*operands, *keywords.values()):
            framework = _framework_of(type(value))
            if framework == "torch":
                return self.torch(*operands, **keywords)
            if framework == "jax":
                return self.jax(*operands, **keywords)
            if framework == "bridge":
                raise refuse(
                    f"{self.declaration.name} is an op, which is called with arrays: write what "
                    "two ops have in common as a function without bridge.op, and call it in both"
                )
            has_numpy = has_numpy or framework == "numpy"
        if has_numpy:
            return self._numpy(*operands, **keywords)
        kinds = ", ".join(type(value).__name__ for value in operands) or "nothing"
        raise TypeError(
            f"{self.declaration.name}: got {kinds}, expected tensors of PyTorch, or arrays of "
            "JAX or NumPy"
        )

    def compile(
        self,
        /,
        device: str = "cpu",
        *,
        dtypes: Sequence[str] = ("float32", "bfloat16"),
        arch: str | None = None,
        wrt: Sequence[str | Sequence[str]] | None = None,
        **static: Any,
    ) -> None:
        """Compiles the op now, rather than in the background from its first call on.

        This compiles the op with all operands present and its first derivatives, for this processor
        or for GPUs, and stores the result in a cache on disk. No bit of a result depends on it.

        Args:
          device: "cpu" or "cuda".
          dtypes: compile for calls whose floating operands all have one of these dtypes.
          arch: the architecture of GPUs, such as "sm_90", even if no such GPU is present; by
            default those of the GPUs present.
          wrt: the operands to differentiate towards, by name: each member is one operand, or a
            tuple of operands together; an empty list for the forward pass only. By default the
            usual sets in training: all operands; all without those shared by the rows (`Row`,
            `Table`), as if these were frozen; the shared ones; and, for up to 4 floating operands,
            each one alone, and all without it.
          **static: static parameters; the others have their defaults.

        Raises:
          CompileError: if there is no compiler (C++; for CUDA, NVRTC or nvcc), or it fails, or the
            cache cannot be written.
          TypeError, ValueError: for an unknown device, dtype, operand or static parameter, and
            without `arch` if there is no GPU.
        """
        from bridge.generated.parallel import compile_all
        from bridge.ops.usual_programs import requests_towards, trained_sets

        archs = self._archs(device, arch)
        defaults = self._rows.static
        for name in static:
            if name not in defaults:
                raise TypeError(
                    f"{self.declaration.name}.compile: there is no static parameter {name!r}, "
                    f"expected one of {', '.join(defaults) or 'none'}"
                )
        values = {**defaults, **static}
        missing = [name for name, value in values.items() if value is _NO_DEFAULT]
        if missing:
            raise TypeError(
                f"{self.declaration.name}.compile: {', '.join(missing)} has no default, and a "
                "program has it fixed: give it"
            )
        present = tuple(True for _ in self._rows.parameters)
        found = traced(self._rows, present, *values.values())
        sets = trained_sets(found) if wrt is None else self._sets(found, wrt)
        for dtype in dtypes:
            if dtype not in FLOATING:
                raise ValueError(
                    f"{self.declaration.name}.compile: dtypes has {dtype!r}, expected some of "
                    f"{', '.join(FLOATING)}"
                )
        kinds = itertools.product(dtypes, archs)
        compile_all(r for dtype, each in kinds for r in requests_towards(sets, found, dtype, each))

    def _sets(self, found: Traced, wrt: Sequence[str | Sequence[str]]) -> list[tuple[int, ...]]:
        """Returns the positions of the operands in each member of `wrt`."""
        where = f"{self.declaration.name}.compile"
        if isinstance(wrt, str):
            raise TypeError(f"{where}: wrt is {wrt!r}, expected a list of names: [{wrt!r}]")
        names = [operand.name for operand in found.program.operands]
        smooth = [each.name for each in found.program.operands if each.dtype == "float"]
        sets = []
        for member in wrt:
            together = (member,) if isinstance(member, str) else tuple(member)
            for name in together:
                if name not in smooth:
                    raise ValueError(
                        f"{where}: wrt has {name!r}, expected operands that have a gradient: "
                        f"{', '.join(smooth)}"
                    )
            sets.append(tuple(sorted(map(names.index, together))))
        return sets

    def _archs(self, device: str, arch: str | None) -> list[str]:
        """Returns the architectures that `compile` compiles for."""
        from bridge.generated.requests import archs_of

        where = f"{self.declaration.name}.compile"
        if device not in ("cpu", "cuda"):
            raise ValueError(f"{where}: device is {device!r}, expected 'cpu' or 'cuda'")
        if device == "cpu" and arch is not None:
            raise ValueError(f"{where}: arch is {arch!r}, expected None for device 'cpu'")
        archs = archs_of(device) if arch is None else [arch]
        if not archs:
            raise ValueError(
                f"{where}: there is no GPU to compile for: say which with arch, as arch='sm_90'"
            )
        return archs

    def __str__(self) -> str:
        if self._example is None:
            return repr(self)
        return str(self._example.program)

    def __repr__(self) -> str:
        return f"<bridge.op {self.declaration.name}>"

    def __reduce__(self) -> str:
        """Pickles the op by its name, as Python pickles a function."""
        return self.__qualname__  # type: ignore[no-any-return,attr-defined]

    def __copy__(self) -> DeclaredOp:
        return self

    def __deepcopy__(self, memo: Any) -> DeclaredOp:
        return self


def _maker_of(framework: str) -> Callable[[DeclaredOp], Any]:
    """Returns the class that makes the entries of a framework; the import takes time."""
    if framework == "torch":
        from bridge.torch._adapter.declared import DeclaredFunction as OfTorch

        return OfTorch
    if framework == "jax":
        from bridge.jax._adapter.declared import DeclaredFunction as OfJax

        return OfJax
    from bridge.numpy_calls import DeclaredFunction as OfNumpy

    return OfNumpy


def _segmented_maker_of(framework: str) -> Callable[[Segmented], Any]:
    """Works as `_maker_of`, for ops of segments."""
    if framework == "torch":
        from bridge.torch._adapter.segments import SegmentedFunction as OfTorch

        return OfTorch
    if framework == "jax":
        from bridge.jax._adapter.segments import SegmentedFunction as OfJax

        return OfJax
    from bridge.numpy_segments import SegmentedFunction as OfNumpy

    return OfNumpy


def _framework_of(kind: type) -> str:
    """Returns the framework of an array's type, or "numpy"; "" for other types.

    It returns "bridge" for values of a declaration.
    """
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root == "torch":
            return "torch"
        if base is Foreign:
            return "bridge"
        if root in ("jax", "jaxlib") or "__jax_array__" in vars(base):
            return "jax"
        if base in (np.ndarray, np.generic):
            return "numpy"
    return ""


@overload
def op(function: Callable[..., Any], /) -> DeclaredOp: ...
@overload
def op(
    *, keep: Sequence[str] = (), vjp: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], DeclaredOp]: ...


def op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    keep: Sequence[str] = (),
    vjp: Callable[..., Any] | None = None,
) -> Any:
    """Makes an op from a declaration: a function of rows that runs in PyTorch and in JAX.

    The function runs once, on values of `bridge.lang` that record each operation. The recorded
    program gives the kernels and every derivative, for both frameworks.

    Args:
      function: its operands are annotated with `bridge.Full`, `Row`, `PerRow`, `PerRow[int]`,
        `Table`, `Mask`, `Halves` or `bridge.lang.Integer`; static parameters are keyword-only.
      keep: names of local variables whose values are saved for the backward pass instead of being
        computed again there. No bit of a result depends on it.
      vjp: a custom VJP, used instead of the derived one. It is compared with the derived one in
        float64. `vjp(*operands, *results, *cotangents, **static)` returns a value for each floating
        operand. If a value varies along the row or over the rows and its operand does not, the
        value is summed.

    Returns:
      A function of tensors or arrays.

    Raises:
      bridge.lang.DeclarationError: with the line that cannot be traced, and a replacement.

    Example:
      >>> @bridge.op
      ... def row_dot(x: bridge.Full, y: bridge.Full):
      ...     return bridge.lang.sum(x * y)
    """
    if function is not None:
        return DeclaredOp(function)
    return functools.partial(DeclaredOp, keep=keep, vjp=vjp)
