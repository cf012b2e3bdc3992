"""Runs of the torch model: in float64 with every value recorded, and as it is."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bridge.compared.recording.outside import Outside, exchanged, outside, tensors_in
from bridge.compared.recording.recorder import Enough, Nodes, Recorder, Recording
from bridge.compared.recording.torch_gradients import run_backward


class TorchSide:
    """A torch model with its arguments.

    Args:
      model: a module, or a function that calls one.
      args, kwargs: its arguments, with tensors in the model's own dtype.
      is_wide: run in float64.
    """

    def __init__(
        self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_wide: bool
    ) -> None:
        self.model, self.args, self.kwargs, self.is_wide = model, args, kwargs, is_wide
        self._known: Recording | None = None  # the first run
        self.cotangents: Any = None  # gradients of the outputs' sum with these are recorded too

    def record(self, wanted: Sequence[int] = ()) -> tuple[Recording, Any]:
        """Runs a copy of the model in float64; returns its values and its result.

        Args:
          wanted: indices of values that an earlier run recorded. This run is then only for their
            arrays: it takes no fingerprints, and ends behind the last of them.
        """
        known = self._known if wanted else None
        call, modules = copied(self.model, self.is_wide)
        others = outside(call, modules)
        with exchanged(others, torch.float64 if self.is_wide else None):
            return self._record(call, modules, others, known, frozenset(wanted))

    def _record(
        self,
        call: Callable[..., Any],
        modules: list[nn.Module],
        others: Outside,
        known: Recording | None,
        wanted: frozenset[int],
    ) -> tuple[Recording, Any]:
        recorder, result = self._run_recorded(call, modules, others, known, wanted)
        recording = recorder.recording
        if known is not None:
            return recording, result
        self._known = recording
        for tensor in tensors_of(result):
            index = recorder.index_of(tensor)
            if index is not None:
                recording.outputs.append(index)
        for module in [*modules, *others.values()]:
            for tensor in module.buffers() if isinstance(module, nn.Module) else ():
                index = recorder.index_of(tensor)
                if index is not None and recording.values[index].kind != "leaf":
                    recording.buffers.append(index)
        return recording, result

    def _run_recorded(
        self,
        call: Callable[..., Any],
        modules: list[nn.Module],
        others: Outside,
        known: Recording | None,
        wanted: frozenset[int],
    ) -> tuple[Recorder, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            beside = tensors_in(others)
            states = [t for m in modules for t in _state(m).values()]
            floats = [t for t in [*states, *beside.values()] if t.is_floating_point()]
            dtype = torch.float64 if self.is_wide or not floats else floats[0].dtype
            if self.is_wide:
                for module in modules:
                    _to_double(module)
            names = {**beside, **{name: t for m in modules for name, t in _state(m).items()}}
            args = [_cast(a, dtype) for a in self.args]
            kwargs = {key: _cast(a, dtype) for key, a in self.kwargs.items()}
            for key, tensor in named_tensors([*args, kwargs]):
                names[key] = tensor
            recorder = Recorder(names, self.is_wide, known, wanted)
            is_differentiated = self.cotangents is not None
            result = None
            with (
                _running(dtype),
                torch.set_grad_enabled(is_differentiated),
                contextlib.suppress(Enough),
            ):
                nodes = Nodes(recorder) if is_differentiated else contextlib.nullcontext()
                with recorder.module.watch(modules, others), nodes, recorder:
                    result = run_torch_model(call, args, kwargs)
                recorder.recording.forward = len(recorder.recording.values)
                if is_differentiated:
                    named = {n: p for m in modules for n, p in m.named_parameters()}
                    named |= {n: p for n, p in beside.items() if isinstance(p, nn.Parameter)}
                    found = run_backward(recorder, named, tensors_of(result), self.cotangents)
                    gradients = {k: v for k, v in found.items() if v is not None}
                    recorder.recording.gradients = gradients
        return recorder, result

    def run(self) -> Any:
        """Runs a copy of the model in its own dtype.

        Raises:
          ValueError: the call changed a parameter.
        """
        call, modules = copied(self.model)
        before = {k: p for m in modules_of(self.model) for k, p in m.named_parameters()}
        with torch.no_grad(), exchanged(outside(call, modules), None):
            result = run_torch_model(call, self.args, self.kwargs)
        after = {k: p for m in modules for k, p in m.named_parameters()}
        for name, tensor in before.items():
            if not torch.equal(tensor, after[name]) and not bool(torch.isnan(tensor).any()):
                raise ValueError(
                    f"torch_model changes its own parameter {name!r} when it is called; "
                    "compare needs a model whose parameters stay as they are"
                )
        return result


def run_torch_model(call: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Calls the model; lines of source are looked for up to this frame."""
    return call(*args, **kwargs)


def modules_of(model: Any) -> list[nn.Module]:
    """Returns the modules that a callable is, or holds in its closure or globals."""
    if isinstance(model, nn.Module):
        return [model]
    found = [cell.cell_contents for cell in getattr(model, "__closure__", None) or ()]
    found += [getattr(model, "__self__", None)]
    code = getattr(model, "__code__", None)
    if code is not None:
        found += [model.__globals__.get(name) for name in code.co_names]
    return [thing for thing in found if isinstance(thing, nn.Module)]


def copied(model: Any, is_wide: bool = False) -> tuple[Callable[..., Any], list[nn.Module]]:
    """Returns a callable over copies of the modules, and the copies.

    Args:
      is_wide: plain floating-point parameters and buffers are copied to float64.
    """
    import types

    memo: dict[int, Any] = {}
    if is_wide:
        for old in modules_of(model):
            memo.update(_doubled(old))
    if isinstance(model, nn.Module):
        new = copy.deepcopy(model, memo)
        return new, [new]
    olds = modules_of(model)
    news = {id(old): copy.deepcopy(old, memo) for old in olds}
    if isinstance(model, types.MethodType):
        owner = news.get(id(model.__self__), model.__self__)
        return types.MethodType(model.__func__, owner), list(news.values())
    if not isinstance(model, types.FunctionType):
        return model, list(news.values())
    closure = model.__closure__ and tuple(
        types.CellType(news.get(id(cell.cell_contents), cell.cell_contents))
        for cell in model.__closure__
    )
    scope = {
        **model.__globals__,
        **{k: news[id(v)] for k, v in model.__globals__.items() if id(v) in news},
    }
    function = types.FunctionType(
        model.__code__, scope, model.__name__, model.__defaults__, closure
    )
    function.__kwdefaults__ = model.__kwdefaults__
    return function, list(news.values())


def _doubled(module: nn.Module) -> dict[int, Tensor]:
    """Returns float64 copies by the identity of the original, so that no other copy is made."""
    copies: dict[int, Tensor] = {}
    for tensor in _state(module).values():
        if tensor.is_floating_point() and type(tensor) in (Tensor, nn.Parameter):
            if vars(tensor) or tensor.layout != torch.strided:
                continue  # a copy of it has what it holds besides
            new = tensor.detach().to(torch.float64, copy=True)
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            copies[id(tensor)] = new
    return copies


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _to_double(module: nn.Module) -> None:
    """Parameters, buffers and tensors that a module holds beside them."""
    module.double()
    for inner in module.modules():
        for key, held in vars(inner).items():
            if isinstance(held, Tensor) and held.is_floating_point():
                setattr(inner, key, held.double())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_cast(part, dtype) for part in value)
    if isinstance(value, dict):
        return {key: _cast(part, dtype) for key, part in value.items()}
    return value


@contextlib.contextmanager
def _running(dtype: torch.dtype) -> Iterator[None]:
    """Attention in its steps, no fused layers, new tensors in the run's dtype."""
    before, fast = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(dtype)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_default_dtype(before)
        torch.backends.mha.set_fastpath_enabled(fast)


def tensors_of(tree: Any) -> list[Tensor]:
    """Returns the tensors of a result in order: containers, and dataclasses such as ModelOutput."""
    return [tensor for _, tensor in named_tensors(tree)]


def named_tensors(tree: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Returns the tensors of a tree with their paths. A dict is read in the order of its keys."""
    if isinstance(tree, Tensor):
        return [(path or "0", tree)]
    join = f"{path}." if path else ""
    if isinstance(tree, Mapping):
        return [
            pair
            for key in sorted(tree, key=str)
            for pair in named_tensors(tree[key], f"{join}{key}")
        ]
    if isinstance(tree, list | tuple):
        return [p for k, part in enumerate(tree) for p in named_tensors(part, f"{join}{k}")]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
        return named_tensors(fields, path)
    return []


def as_array(tensor: Tensor) -> np.ndarray:
    """Returns a result as an array of NumPy, 16-bit numbers in float32."""
    tensor = tensor.detach().cpu()
    return (
        tensor.float() if tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
    ).numpy()
