"""A run of a torch model in which every result of an operation is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from bridge._private.torch import TorchDispatchMode
from bridge.compared.recording.fingerprints import fingerprint
from bridge.compared.recording.module_stack import ModuleStack
from bridge.compared.recording.sources import Line, line_of_caller
from bridge.compared.recording.steps import SLOPES, steps_of
from bridge.compared.recording.values import Value

VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t",
         "unsqueeze", "squeeze", "alias", "detach", "clone", "contiguous", "flatten", "_to_copy",
         "lift_fresh", "lift_fresh_copy", "copy", "copy_", "flip"}  # fmt: skip
RANDOM = {"bernoulli", "bernoulli_", "native_dropout", "_fused_dropout", "rand", "rand_like",
          "randn", "randn_like", "uniform", "uniform_", "normal", "normal_", "normal_functional",
          "exponential", "exponential_", "randint", "randint_like", "random", "random_", "randperm",
          "multinomial", "rrelu_with_noise"}  # fmt: skip
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@dataclass
class Place:
    """The module and the line that a value of torch comes from, and its operation's arguments.

    Arguments that are tensors are held as their sizes: the tensors are not kept.
    """

    line: Line | None
    module: str
    kind: str  # the module's class
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recording:
    """The values of a run in torch.

    Attributes:
      values: in the order of execution, parameters first.
      arrays: the arrays of the values that were asked for.
      outputs: indices of the values that the model returned.
      forced: lines that cast to float32, with their counts.
      random: lines that draw random numbers.
      gradients: indices of the parameters' gradients.
      forward: the number of values of the forward pass.
    """

    values: list[Value] = field(default_factory=list)
    arrays: dict[int, np.ndarray] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    forced: dict[Line, int] = field(default_factory=dict)
    random: list[Line] = field(default_factory=list)
    gradients: dict[str, int] = field(default_factory=dict)
    forward: int = 0


@dataclass(frozen=True)
class Sized:
    """An argument of an operation in place of a tensor."""

    shape: tuple[int, ...]


@dataclass
class _Storage:
    """The values that lie in one storage.

    Attributes:
      alive: says whether the storage is still there, or another one in its place.
      writers: the values that it was written by.
      views: the value of each view, by where the view lies.
    """

    alive: Any
    writers: list[int] = field(default_factory=list)
    views: dict[Any, int] = field(default_factory=dict)


class Enough(BaseException):
    """Ends a run that has made all arrays that were asked for. A model's `except` lets it pass."""


class Recorder(TorchDispatchMode):
    """Records the results of operations while it is entered.

    Args:
      names: parameters and buffers by name; arguments by position.
      is_wide: casts to float32 are left out.
      known: the recording of an earlier run. This run then only keeps arrays.
      wanted: indices of the values whose arrays it keeps.
    """

    def __init__(
        self,
        names: Mapping[str, Tensor],
        is_wide: bool = True,
        known: Recording | None = None,
        wanted: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.recording = Recording()
        self.is_wide, self.known, self.wanted = is_wide, known, wanted
        self.module = ModuleStack()
        self._storages: dict[int, _Storage] = {}
        self._kept: list[Tensor] = []  # tensors without a storage
        self.node: Place | None = None  # of the backward pass
        self.made_by: dict[Any, Place] = {}  # nodes of the graph, by the call that made them
        for name, tensor in names.items():
            self._append("leaf", (), None, tensor, "leaf", name)

    def index_of(self, tensor: Tensor) -> int | None:
        """Returns the newest value that a tensor holds."""
        parents = self._parents([tensor])
        return max(parents, default=None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        line = self.node.line if self.node else line_of_caller()
        if self.is_wide:
            args, kwargs = self._widened(name, args, kwargs, line)
        tensors = list(_tensors((args, kwargs)))
        parents = self._parents(tensors)
        if name in RANDOM and line is not None and line not in self.recording.random:
            self.recording.random.append(line)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            narrow = [t for t in tensors if self.is_wide and t.dtype is torch.float32]
            if not narrow or len({t.dtype for t in tensors}) < 2:
                raise
            raise ValueError(
                f"torch_model takes a float32 tensor of shape {tuple(narrow[0].shape)} at "
                f"{line.source if line else name}; compare runs the model in float64 and finds "
                "tensors in modules, closures and global variables: hold this one in a buffer"
            ) from error
        module, kind = self.module.current()
        place = Place(line, module, kind)
        if self.node:
            place = Place(line, self.node.module, self.node.kind)
        options = _options(func, args, kwargs)
        place.options = _sized(options)
        behind = start = parents
        if name in SLOPES:
            behind = start = self._parents([options[SLOPES[name]]])
        if (not self.node or name in SLOPES) and not self._skip_steps():
            for k, step in enumerate(steps_of(name, options, result)):
                behind = (self._append(name, behind, place, step, "fine", f"step {k}"),)
        if start is not parents:
            behind = (*parents, *behind)
        outputs = list(_tensors(result))
        written = _written(func, args, kwargs, name, options)
        every = [*outputs, *(w for w in written if all(w is not o for o in outputs))]
        for k, tensor in enumerate(every):
            is_written = any(tensor is w for w in written)
            fresh = not is_written and not any(_shares(tensor, t) for t in tensors)
            move = name in VIEWS and bool(parents)
            # The steps lead to the first result; a mean beside it is right where the rest is not.
            self._append(
                name, behind, place, tensor, "move" if move else "op", f"result {k}",
                fresh, is_written,
            )  # fmt: skip
            behind = parents
        if self.known and max(self.wanted) < min(len(self.recording.values), self.known.forward):
            raise Enough
        return result

    def _skip_steps(self) -> bool:
        """Counts the steps of an operation without running them, if none of them is wanted."""
        if self.known is None:
            return False
        first = last = len(self.recording.values)
        values = self.known.values
        while last < len(values) and values[last].kind == "fine":
            last += 1
        if not self.wanted.isdisjoint(range(first, last)):
            return False
        self.recording.values += values[first:last]
        return True

    def _widened(self, name: str, args: Any, kwargs: Any, line: Line | None) -> tuple[Any, Any]:
        def wide(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return _WIDE.get(value, value)
            return value

        new = tuple(map(wide, args)), {key: wide(value) for key, value in kwargs.items()}
        is_cast = name == "_to_copy" and kwargs.get("dtype") is torch.float32
        if is_cast and line is not None and args[0].dtype == torch.float64:
            self.recording.forced[line] = self.recording.forced.get(line, 0) + 1
        return new

    def _parents(self, tensors: list[Tensor]) -> tuple[int, ...]:
        found: set[int] = set()
        for tensor in tensors:
            storage = self._storage_of(tensor)
            if storage is None:
                continue
            own, writers = storage.views.get(_place_of(tensor)), storage.writers
            later = writers if own is None else [w for w in writers if w > own]
            if own is None:
                found.update(later)
            elif later:
                found.add(self._rewritten(tensor, own, later))
            else:
                found.add(own)
        return tuple(sorted(found))

    def _rewritten(self, tensor: Tensor, own: int, later: list[int]) -> int:
        """Records a tensor anew after writes to views of it, such as to one row of a cache."""
        last = self.recording.values[later[-1]]
        return self._append(
            last.op, (own, *later), last.place, tensor, "op", "written", fresh=False
        )

    def _append(
        self,
        op: str,
        parents: tuple[int, ...],
        place: Place | None,
        tensor: Tensor,
        kind: str,
        name: str = "",
        fresh: bool = True,
        written: bool = False,
    ) -> int:
        values = self.recording.values
        index = len(values)
        shape = tuple(tensor.shape)
        found = None
        if tensor.dtype is not torch.bool:
            if self.known is None:
                found = fingerprint(_array(tensor))
            elif index in self.wanted:
                self.recording.arrays[index] = _array(tensor).copy()
        values.append(Value(index, op, parents, place, shape, found, kind, name))
        if kind != "fine":
            storage = self._storage_of(tensor) or self._new_storage(tensor)
            if fresh and _storage(tensor):
                storage.writers = [index]
            elif written:
                storage.writers.append(index)
            storage.views[_place_of(tensor)] = index
        return index

    def _storage_of(self, tensor: Tensor) -> _Storage | None:
        """Returns the storage of a tensor that was recorded; another may have had its address."""
        found = self._storages.get(_storage(tensor))
        return None if found is None or (found.alive and found.alive.expired()) else found

    def _new_storage(self, tensor: Tensor) -> _Storage:
        address = _storage(tensor)
        alive = None
        if tensor.layout != torch.strided:
            self._kept.append(tensor)
        elif address:
            alive = StorageWeakRef(tensor.untyped_storage())
        self._storages[address] = new = _Storage(alive)
        return new


class Nodes(TorchFunctionMode):
    """Notes for each node of autograd's graph the line and the module that made it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made_by = self.recorder.made_by
        left = [t.grad_fn for t in _tensors(result) if t.requires_grad and t.grad_fn is not None]
        if left:
            module, kind = self.recorder.module.current()
            place = Place(line_of_caller(), module, kind)
            while left:
                node = left.pop()
                if node not in made_by:
                    made_by[node] = place
                    left += [inner for inner, _ in node.next_functions if inner is not None]
        return result


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16) or str(tensor.dtype).startswith(
        "torch.float8"
    ):
        tensor = tensor.to(torch.float32)
    return tensor.numpy()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _place_of(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided:
        return id(tensor)
    return (
        _storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(),
        tensor.dtype,
    )  # fmt: skip


def _shares(a: Tensor, b: Tensor) -> bool:
    return _storage(a) == _storage(b) != 0


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from _tensors(part)


def _options(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of an operation by name."""
    found: dict[str, Any] = {}
    for k, argument in enumerate(func._schema.arguments):
        if argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif k < len(args):
            found[argument.name] = args[k]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def _sized(value: Any) -> Any:
    """Returns arguments with sizes in place of tensors."""
    if isinstance(value, Tensor):
        return Sized(tuple(value.shape))
    if isinstance(value, list | tuple):
        return [_sized(part) for part in value]
    if isinstance(value, dict):
        return {key: _sized(part) for key, part in value.items()}
    return value


def _written(func: Any, args: Any, kwargs: Any, name: str, options: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that an operation wrote to."""
    found = []
    for argument in func._schema.arguments:
        info = argument.alias_info
        if info is not None and info.is_write:
            found += list(_tensors(options.get(argument.name)))
    if "batch_norm" in name and options.get("training"):
        for key in ("running_mean", "running_var"):
            if isinstance(options.get(key), Tensor) and all(options[key] is not t for t in found):
                found.append(options[key])
    return found
