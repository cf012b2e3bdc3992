"""Every private name of torch that bridge uses, except those of torch_distributed.py.

All of them exist in torch 2.11, 2.13, 2.14 and 2.15. Hot callers import the objects themselves: no
call is added where a name exists.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.autograd import profiler as _profiler

from bridge._private.names import Names

names = Names("torch", known="2.11 to 2.15")

Ask = Callable[[], Any]

# Modes and transforms that observe the operations of this thread.

functorch_active: Ask = names.find(
    "torch._C._are_functorch_transforms_active",
    "is true inside a transform of torch.func",
)
dispatch_modes: Ask = names.find(
    "torch._C._len_torch_dispatch_stack",
    "counts modes that see every op; without it every call goes through the dispatcher",
    lambda: 1,
)
function_modes: Ask = names.find(
    "torch._C._len_torch_function_stack",
    "counts modes that see every function; without it every call goes through the dispatcher",
    lambda: 1,
)
_mode_stack: Ask = names.find(
    "torch.overrides._get_current_function_mode_stack",
    "finds the contexts of `invariant` around another; without it only the innermost one counts",
    list,
)
tracing_state: Ask = names.find(
    "torch._C._get_tracing_state",
    "is set under torch.jit.trace; without it a Python function is called",
    torch.jit.is_tracing,
)
_get_dispatch_mode = names.find(
    "torch._C._get_dispatch_mode",
    "finds the mode of a key; without it any mode counts as this one",
    None,
)


def _finder(key: str) -> Ask:
    """Returns a function that finds the mode of a key."""
    path = f"torch._C._TorchDispatchModeKey.{key}"
    value = names.find(path, "is the key; without it any mode counts as this one", None)
    if _get_dispatch_mode is None or value is None:
        return lambda: dispatch_modes() or None
    return functools.partial(_get_dispatch_mode, value)  # enters no function of Python


proxy_mode, _fake_mode = _finder("PROXY"), _finder("FAKE")
_MODES = "torch.utils._python_dispatch"
_current_dispatch_mode: Ask = names.find(
    f"{_MODES}._get_current_dispatch_mode",
    "finds a FakeTensorMode entered by hand; without it only the mode of the key counts",
    lambda: None,
)
_FAKE = "torch._subclasses.fake_tensor"
FakeTensor: Any = names.find(
    f"{_FAKE}.FakeTensor", "is refused by name; without it like any other subclass", ()
)
_fake_mode_type = names.find(
    f"{_FAKE}.FakeTensorMode", "is the type of such modes; without it only the key finds them", ()
)


def is_fake() -> bool:
    """True if a FakeTensorMode is on, in which no data can be exchanged."""
    return _fake_mode() is not None or isinstance(_current_dispatch_mode(), _fake_mode_type)


def _module(module: Any, name: str, why: str, value: Any) -> Any:
    """Returns the module, or a copy with `name` set to `value` if the module lacks that name."""
    names.attribute(name, "is read from the module at every call, without a call of its own")
    if names.find(f"{module.__name__}.{name}", why, None) is not None:
        return module
    return types.SimpleNamespace(**{**vars(module), name: value})


forward_ad: Any = _module(
    _forward_ad,
    "_current_level",
    "is below 0 outside forward mode; without it all calls take the path for tangents",
    0,
)
profiler: Any = _module(
    _profiler,
    "_is_profiler_enabled",
    "is true while a profiler runs; without it calls without autograd have no range in it",
    False,
)

# Derivatives.

current_graph_task_id = names.find_function(
    "torch._C._current_graph_task_id", "is not -1 while a backward pass runs"
)
set_fwd_grad_enabled = names.find_function(
    "torch.autograd.forward_ad._set_fwd_grad_enabled",
    "turns outer levels of forward mode on inside a Function's jvp",
)
is_fwd_grad_enabled = names.find_function(
    "torch._C._is_fwd_grad_enabled", "is true if the caller wants tangents"
)
unpack_dual: Callable[..., Any] = names.find(
    "torch._VF._unpack_dual",
    "separates the tangents of a level, also of one entered by dynamo; without it the public "
    "function does so for other levels",
    _forward_ad.unpack_dual,
)
after_autograd_keyset: Any = names.find(
    "torch._C._after_autograd_keyset", "has the dispatch keys after autograd"
)
AutoDispatchBelowAutograd = names.find_function(
    "torch._C._AutoDispatchBelowAutograd", "keeps autograd from recording a second time"
)
SingleLevelFunction: Any = names.find(
    "torch.autograd.function._SingleLevelFunction",
    "is Function without the transforms of torch.func, for calls inside a dispatcher kernel",
)
enable_single_level_autograd_function = names.find_function(
    "torch._functorch.autograd_function.enable_single_level_autograd_function",
    "lets a Function run after the dispatcher has removed the transforms",
)
_is_key_excluded = names.find_function(
    "torch._C._dispatch_tls_is_dispatch_key_excluded", "is true for keys that a dispatch has passed"
)
_FRONT_MODE = names.find(
    "torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode", "is the first key of torch.func"
)
FUNCTIONALIZE: Any = names.find(
    "torch._C.DispatchKey.Functionalize",
    "marks wrappers of functionalization, which have the type of plain tensors; without it calls "
    "below a compiled graph take the longer path through the dispatcher",
    None,
)
_has_backward_class = names.find(
    "torch.autograd.Function._backward_cls",
    "is the class of a Function's nodes; without it they have torch's own names, and the engine "
    "looks `backward` up at every call",
    None,
)


def inside_dispatcher() -> bool:
    """True while a transform of torch.func asks a dispatcher kernel for a derivative."""
    return functorch_active() and _is_key_excluded(_FRONT_MODE)  # type: ignore[no-any-return]


_interpreters: Callable[[], Any] = names.find(
    "torch._C._functorch.get_interpreter_stack",
    "finds torch.func.functionalize, for which torch has no rule; without it ops raise its error",
    lambda: (),
)


def is_functionalized() -> bool:
    """True if torch.func.functionalize is among the active transforms."""
    if not functorch_active():
        return False
    return any(each.key().name == "Functionalize" for each in _interpreters() or ())


def backward_class(function: Any) -> Any:
    """Returns the class of a Function's nodes in the graph, or None."""
    return vars(function).get("_backward_cls") if _has_backward_class else None


# Tensors inside of transforms.

DisableFuncTorch: Any = names.find(
    "torch._C._DisableFuncTorch",
    "allows copies of plain tensors inside a transform; without it they can raise",
    contextlib.nullcontext,
)
no_interpreters: Any = names.find(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "lets ranks compare arguments inside a transform; without it DisableFuncTorch is used",
    DisableFuncTorch,
)
is_functorch_wrapped: Callable[[Tensor], bool] = names.find(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "is true for values of a transform; without it all tensors inside one count as such",
    lambda tensor: functorch_active(),
)
unwrap_if_dead: Callable[[Tensor], Tensor] = names.find(
    "torch._C._functorch.unwrap_if_dead",
    "unwraps values that outlived their transform; without it from_jax refuses them",
    lambda tensor: tensor,
)
is_old_batched: Callable[[Tensor], bool] = names.find(
    "torch._C._functorch.is_legacy_batchedtensor",
    "finds gradients of is_grads_batched=True; without it these raise an error of torch",
    lambda tensor: False,
)
_OLD_BATCHES = "unbatches these gradients for from_jax; without it they raise an error of torch"
_enter_old_vmap = names.find("torch._C._vmapmode_increment_nesting", _OLD_BATCHES, None)
_leave_old_vmap = names.find("torch._C._vmapmode_decrement_nesting", _OLD_BATCHES, None)
remove_batch_dim: Any = names.find("torch._remove_batch_dim", _OLD_BATCHES, None)
add_batch_dim: Any = names.find("torch._add_batch_dim", _OLD_BATCHES, None)
can_unbatch = None not in (_enter_old_vmap, _leave_old_vmap, remove_batch_dim, add_batch_dim)


def old_vmap_level() -> int:
    """Returns the level of the innermost of these batches; needs `can_unbatch`."""
    level: int = _enter_old_vmap() - 1
    _leave_old_vmap()
    return level


# Tensors and memory.

names.find("torch.Tensor._base", "is set for a view, also under dynamo")
names.attribute("_base", "is read in code that dynamo traces, which supports only the attribute")
is_zero_tensor: Callable[[Tensor], bool] = names.find(
    "torch.Tensor._is_zerotensor",
    "is true for zeros without memory; without it all tensors without memory count as zeros",
    lambda tensor: tensor.numel() > 0 and not tensor.is_meta and tensor.data_ptr() == 0,
)
make_subclass: Callable[[Any, Tensor], Tensor] = names.find(
    "torch.Tensor._make_subclass",
    "gives a viewless tensor its class back; without it the result is a view",
    lambda kind, tensor: tensor.as_subclass(kind),
)
unsafe_view: Callable[[Tensor, Sequence[int]], Tensor] = names.find(
    "torch.ops.aten._unsafe_view",
    "is the identity in a graph of torch.func; without it a copy is made",
    lambda tensor, shape: tensor.clone(),
)
neg_view: Callable[[Tensor], Tensor] = names.find(
    "torch._neg_view",
    "makes a lazy negative; without it the imaginary part of a conjugate is taken",
    lambda tensor: torch.complex(torch.zeros_like(tensor), tensor).conj().imag,
)
DisableTorchFunctionSubclass: Any = names.find(
    "torch._C.DisableTorchFunctionSubclass",
    "treats a subclass as a plain tensor; without it its __torch_function__ is called",
    contextlib.nullcontext,
)
DisableTorchFunction: Any = names.find(
    "torch._C.DisableTorchFunction",
    "hides calls from modes and subclasses; without it an optimizer's step fails beside them",
    contextlib.nullcontext,
)
cuda_device: Ask | None = names.find(
    "torch._C._cuda_getDevice",
    "finds the current device; without it, as without CUDA, small calls on a GPU cost more",
    None,
)
capsule_to_tensor: Callable[[Any], Tensor] = names.find(
    "torch._C._from_dlpack",
    "converts a capsule directly; without it torch.from_dlpack repeats its queries",
    torch.utils.dlpack.from_dlpack,
)
exchanged_in: Callable[..., Any] = names.find(
    "torch.nn.utils.stateless._reparametrize_module",
    "puts tensors into a module for its backward pass too; without it a gradient under "
    "torch.utils.checkpoint raises torch's error for parameters on meta",
    lambda module, tensors: contextlib.nullcontext(),
)
names.attribute(
    "_forward_pre_hooks",
    "has the hooks that set weights before a call; without it such a weight is refused, like other "
    "weights with a history",
)
TENSOR_NAME = "_tensor_name"
names.attribute(TENSOR_NAME, "is the name of the weight that a pruning hook sets; likewise")


def pre_hooks(layer: Any) -> Sequence[Any]:
    """Returns the hooks that run before a module's forward."""
    return [*getattr(layer, "_forward_pre_hooks", {}).values()]


pytree_nodes: Ask = names.if_loaded(
    "torch.utils._pytree.SUPPORTED_NODES",
    "has the nodes registered with torch; without it to_jax and to_torch treat them as leaves",
    {},
)
async_collective_tensor: Ask = names.if_loaded(
    "torch.distributed._functional_collectives.AsyncCollectiveTensor",
    "is waited for before it crosses; without it it is refused, like any other subclass",
    (),
)

# Tracing.

check = names.find_function("torch._check", "checks sizes when a traced program runs")
nonstrict_trace: Ask = names.later(
    "torch._dynamo.nonstrict_trace",
    "puts from_jax into a graph as one call; without it the graph is broken there",
    lambda function: function,
)
names.attribute(
    "_is_exporting_flag",
    "is true while torch.export traces; `torch.compiler.is_exporting`, which returns it, is true "
    "in torch.compile as well for the dynamo of torch 2.11",
)


def is_exporting() -> bool:
    """True while torch.export traces; dynamo can trace this function."""
    flag: bool = getattr(torch.compiler, "_is_exporting_flag", False)
    return flag


HigherOrderOperator: Any = names.find(
    "torch._ops.HigherOrderOperator",
    "is the type of operators on functions; without it `invariant` reports none that passed by",
    (),
)
_dynamo_modes: Ask = names.if_loaded(
    "torch._dynamo.variables.torch_function.torch_function_mode_stack_state_mgr",
    "has the modes that dynamo sets aside while it traces; without it no call is counted there",
    None,
)


def modes_of_thread() -> list[Any]:
    """Returns the modes with `__torch_function__` of this thread, also while dynamo traces."""
    return [*_mode_stack(), *getattr(_dynamo_modes(), "stack", ())]


names.attribute("graph_break", "is called in code that dynamo traces: torch._dynamo.graph_break")


def break_graph() -> None:
    """Ends the graph of torch.compile here; an error with `fullgraph=True`. Dynamo traces it."""
    torch._dynamo.graph_break(
        "inside invariant() a checkpoint runs between two graphs: compile without fullgraph"
    )


names.attribute("_dynamo_marked_constant", "is only written here, and read by dynamo")


def constant_to_dynamo(function: Any) -> Any:
    """Makes dynamo run a function instead of tracing it.

    It does the same as torch.compiler.assume_constant_result, without the import of dynamo. A
    dynamo that looks for another attribute would break its graph there.
    """
    function._dynamo_marked_constant = True
    return function


# Names for torch functions in JAX and for measurements: looked up on first use.

_later: dict[str, Ask] = {
    name: names.later(path, why)
    for name, path, why in (
        (
            "FakeTensorMode",
            f"{_FAKE}.FakeTensorMode",
            "finds the results of a function without running it",
        ),
        ("DataDependentOutputException", f"{_FAKE}.DataDependentOutputException", "says it cannot"),
        ("DynamicOutputShapeException", f"{_FAKE}.DynamicOutputShapeException", "says it cannot"),
        ("TorchDispatchMode", f"{_MODES}.TorchDispatchMode", "sees every op of a function"),
        ("disable_current_modes", f"{_MODES}._disable_current_modes", "makes plain tensors"),
        ("tree_leaves", "torch.utils._pytree.tree_leaves", "finds tensors in arguments of ops"),
        ("softmax_backward_data", "torch.ops.aten._softmax_backward_data", "is timed against ours"),
        ("functorch_config", "torch._functorch.config", "lets a compiled graph be differentiated"),
    )
}
names.attribute("_version", "counts the writes to a tensor; from_torch must make none")
names.attribute("_schema", "describes the arguments an op writes to, its draws and its results")
names.attribute("_cdata", "distinguishes storages by their address")


def __getattr__(name: str) -> Any:
    if name not in _later:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _later[name]()
    return value
