"""A call of a user's torch function: the tensors among its arguments, and its results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax
import torch
from torch import Tensor

from bridge._private.jax import trace_context
from bridge._private.torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from bridge.exchange import trees
from bridge.exchange.dtypes import crosses_to_jax
from bridge.jax._from_torch.arguments import argument_paths
from bridge.jax._from_torch.modules import FunctionalModule, narrowed, widened
from bridge.jax._from_torch.program import dtype_name, is_smooth
from bridge.jax._from_torch.results import Layout, Never, Slot, does_not_cross, flatten
from bridge.jax._from_torch.seed import seeded
from bridge.jax._from_torch.thread import lasting, plain_thread
from bridge.jax._from_torch.watch import Watch
from bridge.ops import Spec


@dataclass(eq=False)
class Owner:
    """State that all calls of one `from_torch` share: its arguments, and observations of its calls.

    Attributes:
        lends: for each program, True if it was observed not to keep its arguments; see `border`.
    """

    function: Callable[..., Any]
    module: FunctionalModule | None
    _: KW_ONLY
    name: str
    seeded: bool
    vmap_method: str | None
    result_shape: Any
    lends: dict[Any, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Structure:
    """The arguments of a call except its arrays; equal structures share a program.

    Args:
        tree: the tree of (parameters, buffers, args, kwargs). Parameters and buffers are None for a
            plain function; buffers are None also if the call uses the module's own.
        static: the other leaves, as (position, key, value). The key distinguishes values that
            compare equal: 1 from True, and 0.0 from -0.0.
        count: the number of leaves.
        state: positions of the buffers among the leaves.
    """

    tree: Any
    static: tuple[tuple[int, Any, Any], ...]
    count: int
    state: range

    def leaves(self) -> list[Any]:
        """Returns all leaves, None in place of each array."""
        found: list[Any] = [None] * self.count
        for position, _, value in self.static:
            found[position] = value
        return found


def stated_spec(leaf: Any) -> Spec:
    """Returns the Spec for a leaf of `result_shape`."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(f"from_torch: result_shape holds {leaf!r}, expected jax.ShapeDtypeStruct")
    return Spec(tuple(leaf.shape), jax.numpy.dtype(leaf.dtype).name)


class TorchCall:
    """The program of the user's function. Its operands are the seed, if seeded, and the arrays."""

    def __init__(self, owner: Owner, structure: Structure) -> None:
        self.owner = owner
        self.name = owner.name
        self.vmap_method = owner.vmap_method
        self.is_seeded = owner.seeded
        self._structure = structure
        static = {position for position, _, _ in structure.static}
        self._places = [i for i in range(structure.count) if i not in static]
        first = int(owner.seeded)
        self._constant = [
            *range(first),
            *(first + k for k, place in enumerate(self._places) if place in structure.state),
        ]
        leaves = [None] * structure.count
        buffers = structure.tree.unflatten(leaves)[1]
        self._buffer_names = None if buffers is None else tuple(buffers)
        self._layouts: dict[Any, Layout] = {}

    # The methods of a Program.

    def run(self, operands: Sequence[Tensor], functional: bool) -> list[Tensor]:
        operands = list(operands)
        leaves = self._structure.leaves()
        tensors = operands[1:] if self.is_seeded else operands
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        parameters, buffers, args, kwargs = self._structure.tree.unflatten(leaves)
        with lasting() as stack:
            if self.is_seeded:
                stack.enter_context(seeded(operands[0], tensors))
            if self.owner.module is None:
                result, after = self.owner.function(*args, **kwargs), {}
            else:
                result, after = self._run_module(parameters, buffers, args, kwargs)
        flat: list[Tensor] = []
        _threads.template = flatten(result, flat, self.name)
        if buffers is not None:
            flat += [narrowed(after[name], buffers[name]) for name in buffers]
        return flat

    def _run_module(self, parameters: Any, buffers: Any, args: Any, kwargs: Any) -> Any:
        module = self.owner.module
        assert module is not None
        if buffers is None:
            given: Mapping[str, Tensor] = module.buffers
        else:
            given = {name: widened(b, module.buffers[name]) for name, b in buffers.items()}
        result, after = module(parameters, given, args, kwargs)
        watch = getattr(_threads, "watch", None)
        if buffers is None and watch is not None:
            for name, tensor in after.items():
                if watch.has_seen_write_to(tensor):
                    raise ValueError(
                        f"from_torch: {self.name} writes to its buffer {name!r} in this mode: pass "
                        "buffers=g.buffers() and take the new ones from (result, buffers), or make "
                        "g with train=False"
                    )
        return result, after

    def specs(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        return self.layout(tuple(operands)).specs

    def constant_operands(self, count: int) -> Sequence[int]:
        return self._constant

    def linear_operands(self, count: int) -> Sequence[int]:
        return ()

    def smooth_results(self, dtypes: Sequence[str]) -> tuple[int, ...]:
        # New buffers are state: they have no derivatives.
        count = len(dtypes) - len(self._structure.state)
        return tuple(i for i in range(count) if is_smooth(dtypes[i]))

    # Methods that only the primitive and the public function call.

    def layout(self, operands: tuple[Spec, ...]) -> Layout:
        """Returns specs and tree of the results, inferred without running the call if unknown."""
        key = operands, _settings()
        layout = self._layouts.get(key)
        if layout is None:
            if self.owner.result_shape is None:
                layout = self._discover(operands)
            else:
                layout = self._stated(operands)
            self._layouts[key] = layout
        return layout

    def run_eagerly(self, operands: Sequence[Tensor], specs: tuple[Spec, ...]) -> list[Tensor]:
        """Runs on real tensors; the first call of each kind is watched."""
        key = specs, _settings()
        if key in self._layouts:
            results = self.run(operands, False)
            layout = Layout((), _threads.template, self._buffer_names)
        else:
            with self._watch(operands):
                results = self.run(operands, False)
            layout = self._layouts[key] = self._layout_of(results)
        last_layout.of, last_layout.layout = self, layout
        return results

    @contextlib.contextmanager
    def _watch(self, operands: Sequence[Tensor]) -> Iterator[None]:
        tensors = operands[1:] if self.is_seeded else operands
        named = {
            self._path(place): tensor
            for place, tensor in zip(self._places, tensors, strict=True)
            if place not in self._structure.state
        }
        before = getattr(_threads, "watch", None)
        with Watch(self.name, named, self.is_seeded) as _threads.watch:
            try:
                yield
            finally:
                _threads.watch = before

    def _path(self, place: int) -> str:
        marks = self._structure.tree.unflatten(range(self._structure.count))
        return argument_paths(*marks)[place]

    def _discover(self, operands: tuple[Spec, ...]) -> Layout:
        device = self.owner.module.device if self.owner.module else _default_device()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with plain_thread(), mode:
            fakes = [
                torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
                for spec in operands
            ]
            try:
                with self._watch(fakes):
                    return self._layout_of(self.run(fakes, False))
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise self._undiscovered(f"depend on values ({error})") from error
            except RuntimeError as error:
                if "not supported for tensor subclasses" not in str(error):
                    raise
                raise self._undiscovered(f"cannot be seen without values ({error})") from error

    def _undiscovered(self, why: str) -> ValueError:
        return ValueError(
            f"from_torch: the results of {self.name} {why}, and inside jit, grad or vmap JAX must "
            "know their shapes before: pass result_shape= to from_torch, or call it eagerly"
        )

    def _stated(self, operands: tuple[Spec, ...]) -> Layout:
        stated = self.owner.result_shape
        if callable(stated):
            leaves = self._structure.leaves()
            for place, spec in zip(self._places, operands[int(self.is_seeded) :], strict=True):
                leaves[place] = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
            parameters, _, args, kwargs = self._structure.tree.unflatten(leaves)
            stated = stated(*([] if parameters is None else [parameters]), *args, **kwargs)
        specs: list[Spec] = []

        def take(leaf: Any) -> Slot:
            specs.append(stated_spec(leaf))
            return Slot(len(specs) - 1)

        template = trees.tree_map(take, stated, Never)
        state = [operands[i] for i in self._constant[int(self.is_seeded) :]]
        return Layout((*specs, *state), template, self._buffer_names)

    def _layout_of(self, results: Sequence[Tensor]) -> Layout:
        for i, result in enumerate(results):
            if not crosses_to_jax(result.dtype):
                raise does_not_cross(self.name, f"result number {i}", result)
        specs = tuple(Spec(tuple(r.shape), dtype_name(r)) for r in results)
        return Layout(specs, _threads.template, self._buffer_names)


def _settings() -> tuple[Any, ...]:
    """Returns the global settings that determine the dtypes of results and their support in JAX."""
    return trace_context(), torch.get_default_dtype()


def _default_device() -> str:
    on_gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    return "cuda" if on_gpu else "cpu"


# `template` and `watch` belong to the current call of this thread.
_threads = threading.local()
# `of` is the last call that ran on this thread, `layout` the layout of its results.
last_layout = threading.local()
