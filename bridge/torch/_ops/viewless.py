"""Tensors that share memory with a view but are not views.

A view holds its base, `_base`, and so the base's autograd history, for as long as it lives; setting
the view's `.data` does not release it. `Tensor.detach` gives the tensor needed here: the same
memory, no base, and a shared version counter, so that autograd sees a write through either.
(`.data`, `set_` and aten's `_unsafe_view` give a new counter.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge._private.torch import (
    DisableTorchFunctionSubclass,
    forward_ad,
    functorch_active,
    make_subclass,
    unsafe_view,
)
from bridge.torch._adapter.checks import check_flags
from bridge.torch._adapter.overrides import hand_over, is_overridden

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling

# A leaf in a compiled graph takes its requires_grad from this.
_anchor = torch.empty(0, requires_grad=True)


class _Identity(Function):
    """The identity for eager autograd and dynamo (dynamo refuses a Function with a jvp).

    A Function whose forward takes ctx costs a quarter of one with setup_context.
    """

    @staticmethod
    def forward(ctx: Any, inp: Tensor) -> Tensor:
        return detached(inp)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _TransformedIdentity(Function):
    """The identity for forward mode and torch.func."""

    @staticmethod
    def forward(inp: Tensor) -> Tensor:
        return detached(inp)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None) -> Tensor | None:
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], inp: Tensor) -> Any:
        return _TransformedIdentity.apply(inp), in_dims[0]


class _TracedLeaf(Function):
    """A result that requires a gradient, because the second argument does, and passes none on."""

    @staticmethod
    def forward(ctx: Any, inp: Tensor, anchor: Tensor) -> Tensor:
        return inp.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def make_viewless_tensor(inp: Tensor, requires_grad: bool, keep_graph: bool) -> Tensor:
    """Returns the tensor itself if it is not a view, else a non-view with the same memory.

    The result shares inp's storage, offset, strides and version counter. A write to it in place is
    a write to inp, and a backward pass that needs the old values raises torch's error. (The
    original's result has its own counter, so that such a backward pass is silently wrong.)
    `resize_` or `share_memory_` moves the storage of both.

    Works under `torch.no_grad`, in inference mode, in forward mode, under `torch.func` and under
    `torch.compile(fullgraph=True)`. A compiled graph returns no leaves: with keep_graph=False and
    requires_grad=True the result requires a gradient there and passes none on, but has a `grad`
    only after `retain_grad()`. A result that inductor returns with a graph has its own version
    counter, as every result of a compiled graph may.

    Args:
      inp: a tensor of any shape, dtype, layout, device and class.
      requires_grad: with keep_graph=False, the result requires a gradient. Read only for a view,
        and not under a transform of `torch.func`, which has its own record of gradients.
      keep_graph: True gives the differentiable identity, whose result requires a gradient iff inp
        does; False gives a leaf that does not hold inp's history.

    Returns:
      inp if `inp._base` is None; else a tensor whose `_base` is None.

    Raises:
      TypeError: inp is not a tensor.
      RuntimeError: an integer leaf would have to require a gradient.
    """
    if is_overridden((inp,)):
        return hand_over((inp,))
    check_tensor("make_viewless_tensor", inp=inp)
    return inp if inp._base is None else _without_base(inp, requires_grad, keep_graph)


def _without_base(inp: Tensor, requires_grad: bool, keep_graph: bool) -> Tensor:
    check_flags("make_viewless_tensor", requires_grad=requires_grad, keep_graph=keep_graph)
    return with_graph(inp) if keep_graph else _leaf(inp, requires_grad)


def check_tensor(function: str, /, **tensors: Any) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{function}: {name} has type {type(tensor).__name__}, expected torch.Tensor"
            )


def with_graph(inp: Tensor) -> Tensor:
    transformed = functorch_active()
    if _is_dynamo_compiling():
        # Dynamo would trace a Function without a jvp as its forward and lose the tangents.
        return unsafe_view(inp, inp.shape) if transformed else _Identity.apply(inp)
    if transformed or forward_ad._current_level >= 0:
        return _TransformedIdentity.apply(inp)
    return _Identity.apply(inp)


def _leaf(inp: Tensor, requires_grad: bool) -> Tensor:
    requires_grad = requires_grad and not functorch_active()
    if _is_dynamo_compiling():
        leaf = inp.detach()
        return _TracedLeaf.apply(leaf, _anchor) if requires_grad else leaf
    leaf = detached(inp)
    return leaf.requires_grad_() if requires_grad else leaf


def detached(inp: Tensor) -> Tensor:
    if type(inp) is Tensor:
        return inp.detach()
    # as_subclass restores the class of a subclass without __torch_dispatch__, but makes a view.
    with DisableTorchFunctionSubclass():
        plain = inp.detach()
    return plain if type(plain) is type(inp) else make_subclass(type(inp), plain)


def assert_viewless_tensor(tensor: Any, extra_msg: str | None = None) -> Any:
    """Returns its argument after checking that it is not a view.

    Checks nested lists too; other values than lists and tensors pass.

    Args:
      tensor: a tensor, a nested list of them, or any other value.
      extra_msg: the end of the error's message, or None.

    Raises:
      AssertionError: a tensor has a `_base`. `extra_msg` ends the message.
    """
    if isinstance(tensor, list):
        for item in tensor:
            assert_viewless_tensor(item, extra_msg)
    elif isinstance(tensor, Tensor) and tensor._base is not None:
        message = (
            f"the tensor of shape {_shape_of(tensor)} is a view of one of shape "
            f"{_shape_of(tensor._base)}, which it keeps in memory with its history, also after "
            "its .data is set; pass it through make_viewless_tensor first"
        )
        raise AssertionError(message if extra_msg is None else f"{message}. {extra_msg}")
    return tensor


def _shape_of(tensor: Tensor) -> Any:
    return "nested" if tensor.is_nested else list(tensor.shape)


def safely_set_viewless_tensor_data(tensor: Tensor, new_data_tensor: Tensor) -> None:
    """Sets `tensor.data` after checking that this frees the old memory.

    The tensor keeps its place in the graph, and takes the shape, dtype and memory of the new one.

    Args:
      tensor: a tensor that is no view.
      new_data_tensor: its new contents.

    Raises:
      TypeError: one of the two is not a tensor.
      AssertionError: `tensor` is a view, so its base would stay in memory.
    """
    check_tensor("safely_set_viewless_tensor_data", tensor=tensor, new_data_tensor=new_data_tensor)
    assert_viewless_tensor(tensor, f"The new data has shape {_shape_of(new_data_tensor)}.")
    tensor.data = new_data_tensor
