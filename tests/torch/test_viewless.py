"""make_viewless_tensor and its related functions: no base, the same memory, every transform."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck

from bridge.torch import make_viewless_tensor
from bridge.torch.megatron import (
    MakeViewlessTensor,
    assert_viewless_tensor,
    safely_set_viewless_tensor_data,
)

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: x.mT,
    "slice": lambda x: x[1:, 1:],
    "expand": lambda x: x[:, :1].expand(-1, 4),
    "view": lambda x: x.view(-1),
    "diagonal": lambda x: x.diagonal(),
    "step": lambda x: x[:, ::2],
    "empty": lambda x: x[:0],
    "scalar": lambda x: x[0, 0],
}
views = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
keep_graphs = pytest.mark.parametrize("keep_graph", [True, False])


def kept(x: Tensor) -> Tensor:
    return make_viewless_tensor(x, x.requires_grad, True)


@views
@keep_graphs
@pytest.mark.parametrize("requires_grad", [True, False])
def test_same_memory_and_no_base(
    draw: Any, view: Any, keep_graph: bool, requires_grad: bool
) -> None:
    x = draw(3, 4, grad=requires_grad)
    v = view(x)
    assert v._base is not None
    y = make_viewless_tensor(v, requires_grad, keep_graph)
    assert y._base is None
    assert not y._is_view()
    assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (y.shape, y.stride(), y.storage_offset()) == (v.shape, v.stride(), v.storage_offset())
    assert y.requires_grad == requires_grad
    assert y.is_leaf == (not keep_graph or not requires_grad)
    assert torch.equal(y, v)


def test_no_view_comes_back_itself(draw: Any) -> None:
    for x in (draw(3), torch.nn.Parameter(draw(3)), draw(3).to_sparse(), draw(3, grad=True) * 2):
        for keep_graph in (True, False):
            assert make_viewless_tensor(x, True, keep_graph) is x


def test_a_leaf_takes_the_flag_whatever_the_view_has(draw: Any) -> None:
    for wanted in (True, False):
        for given in (True, False):
            y = make_viewless_tensor(draw(3, 4, grad=given).mT, wanted, False)
            assert y.requires_grad is wanted
            assert y.is_leaf
    y = make_viewless_tensor(draw(3, 4, grad=True).mT, True, False)
    (y * 3.0).sum().backward()
    assert torch.equal(y.grad, torch.full_like(y, 3.0))


@views
def test_gradients(draw: Any, view: Any) -> None:
    x = draw(3, 4, grad=True)

    def function(x: Tensor) -> Tensor:
        return kept(view(x)).sin()

    checks = {"check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(function, (x,), check_forward_ad=True, **checks)
    assert gradgradcheck(function, (x,), check_fwd_over_rev=True)


def test_gradient_with_a_random_cotangent(draw: Any) -> None:
    x, g = draw(3, 4, grad=True), draw(4, 3)
    (dx,) = grad(kept(x.mT), x, g)
    assert torch.equal(dx, g.mT)


@keep_graphs
def test_forward_mode(draw: Any, keep_graph: bool) -> None:
    x, t = draw(3, 4), draw(3, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        y = make_viewless_tensor(dual.mT, False, keep_graph)
        tangent = forward_ad.unpack_dual(y).tangent
        assert y._base is None
    if keep_graph:
        assert torch.equal(tangent, t.mT)
    else:
        assert tangent is None


@views
def test_func_transforms(draw: Any, view: Any) -> None:
    x, t = draw(3, 4), draw(3, 4)

    def function(x: Tensor) -> Tensor:
        return (kept(view(x)).sin() * 2).sum()

    def plain(x: Tensor) -> Tensor:
        return (view(x).sin() * 2).sum()

    xs = torch.stack([x, x * 2])
    func = torch.func
    torch.testing.assert_close(func.grad(function)(x), func.grad(plain)(x))
    torch.testing.assert_close(func.vjp(function, x)[1](t.sum()), func.vjp(plain, x)[1](t.sum()))
    torch.testing.assert_close(func.jvp(function, (x,), (t,)), func.jvp(plain, (x,), (t,)))
    torch.testing.assert_close(func.vmap(function)(xs), func.vmap(plain)(xs))
    torch.testing.assert_close(func.vmap(func.grad(function))(xs), func.vmap(func.grad(plain))(xs))
    torch.testing.assert_close(
        func.grad(lambda xs: func.vmap(function)(xs).sum())(xs),
        func.grad(lambda xs: func.vmap(plain)(xs).sum())(xs),
    )
    torch.testing.assert_close(func.hessian(function)(x), func.hessian(plain)(x))
    last = xs.movedim(0, -1)
    torch.testing.assert_close(func.vmap(function, in_dims=-1)(last), func.vmap(plain)(xs))


def test_a_leaf_inside_a_transform(draw: Any) -> None:
    x = draw(3, 4)
    y = torch.func.grad(lambda x: (make_viewless_tensor(x.mT, True, False) * x.mT).sum())(x)
    assert torch.equal(y, x)


@keep_graphs
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(draw: Any, keep_graph: bool, guard: Any) -> None:
    x = draw(3, 4, grad=True)
    with guard():
        y = make_viewless_tensor(x.mT, True, keep_graph)
    assert y._base is None
    assert y.is_leaf
    assert y.requires_grad == (not keep_graph)
    with torch.inference_mode():
        inferred = torch.ones(3, 4).mT
        assert make_viewless_tensor(inferred, False, keep_graph)._base is None


@keep_graphs
def test_a_write_is_seen_by_tensors_saved_before(draw: Any, keep_graph: bool) -> None:
    """The original's own version counter hides the write, and the gradient is silently wrong."""
    h = draw(3, 4, grad=True) * 2
    v = h.mT
    y = v.sin()  # saves v for its backward pass
    viewless = make_viewless_tensor(v, False, keep_graph)
    with torch.no_grad():
        viewless.add_(1.0)
    assert viewless._version == v._version == h._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_to_the_view_is_seen_by_tensors_that_the_result_was_saved_in(draw: Any) -> None:
    v = (draw(3, 4, grad=True) * 2).mT
    y = kept(v).sin()
    with torch.no_grad():
        v.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_recorded_write_to_the_result(draw: Any) -> None:
    x, g = draw(3, 4, grad=True), draw(4, 3)
    h = x * 2
    y = kept(h.mT)
    y.mul_(3.0)
    assert torch.equal(h.mT, y)  # the same memory
    assert torch.equal(grad(y, x, g)[0], g.mT * 6)


@keep_graphs
def test_memory_that_moves_does_so_for_both(draw: Any, keep_graph: bool) -> None:
    x = draw(3, 4)
    y, before = make_viewless_tensor(x.view(-1), False, keep_graph), x.clone()
    y.resize_(100_000)
    y[0] = before[0, 0] = 5.0
    y.share_memory_()
    assert x.data_ptr() == y.data_ptr()
    assert x.is_shared()
    assert torch.equal(x, before)
    assert torch.equal(y[:12], before.view(-1))


class Watched:
    """An object that dies with its graph node."""


def _node_of(x: Tensor) -> weakref.ref[Watched]:
    watched = Watched()
    x.grad_fn.metadata["watched"] = watched
    return weakref.ref(watched)


@pytest.mark.parametrize(
    ("keep_graph", "history"), [(True, True), (False, False)], ids=["kept", "leaf"]
)
def test_what_it_keeps_alive(draw: Any, keep_graph: bool, history: bool) -> None:
    base = draw(3, 4, grad=True) * 2
    node, tensor = _node_of(base), weakref.ref(base)
    y = make_viewless_tensor(base.mT, True, keep_graph)
    del base
    gc.collect()
    assert tensor() is None
    assert (node() is not None) == history
    if history:
        y.sum().backward()
        del y
        gc.collect()
        assert node() is None


def test_a_view_keeps_its_base(draw: Any) -> None:
    """The test above fails if the result is a view."""
    base = draw(3, 4, grad=True) * 2
    node, tensor = _node_of(base), weakref.ref(base)
    y = base.mT
    del base
    gc.collect()
    assert tensor() is not None
    assert node() is not None
    assert y._base is not None


def test_memory_is_freed_when_data_is_replaced(draw: Any) -> None:
    """Pipelines use it this way: the graph stays, the activations are freed."""
    h = draw(64, 64, grad=True) * 2
    y = kept(h.mT)
    storage = weakref.ref(h.untyped_storage())
    del h
    safely_set_viewless_tensor_data(y, torch.empty(1, dtype=y.dtype))
    gc.collect()
    assert storage() is None
    assert y.shape == (1,)
    assert y.grad_fn is not None


def test_other_kinds_of_tensors(draw: Any) -> None:
    class Named(torch.Tensor):
        pass

    named = draw(3, 4).as_subclass(Named)[1:]
    z = torch.complex(draw(3, 4), draw(3, 4)).requires_grad_()
    cases = [
        torch.nn.Parameter(draw(3, 4))[1:],
        named,
        torch.empty(3, 4, device="meta").mT,
        z.mT,
        z.conj(),
        torch.view_as_real(z)[..., 1],
        z.detach().conj().imag,  # its negative bit is set
        torch.arange(12).view(3, 4).mT,
        torch.ones(3, 4, dtype=torch.bool).mT,
        torch.ones(3, 4, dtype=torch.float8_e4m3fn).mT,
    ]
    for v in cases:
        assert v._base is not None
        for keep_graph in (True, False):
            y = make_viewless_tensor(v, v.requires_grad, keep_graph)
            assert y._base is None
            assert type(y) is type(v)
            assert (y.shape, y.stride(), y.dtype) == (v.shape, v.stride(), v.dtype)
            assert (y.is_conj(), y.is_neg()) == (v.is_conj(), v.is_neg())
            assert y.requires_grad == v.requires_grad
    assert gradcheck(lambda z: kept(z.conj()) * z, (z,), check_forward_ad=True)


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"inp has type list, expected torch\.Tensor"):
        make_viewless_tensor([1.0], True, True)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="floating point"):
        make_viewless_tensor(torch.arange(4).view(2, 2), True, False)


def test_apply_takes_any_tensor(draw: Any) -> None:
    for x in (draw(3, 4, grad=True), draw(3, 4, grad=True).mT):
        g = draw(*x.shape)
        y = MakeViewlessTensor.apply(x, False)  # like the original, which checks x alone
        assert y is not x
        assert y._base is None
        assert torch.equal(grad(y, x, g)[0], g)
    assert not MakeViewlessTensor.apply(draw(3), True).requires_grad
    x = draw(3, 4)
    columns = torch.func.vmap(lambda column: MakeViewlessTensor.apply(column, False), in_dims=1)(x)
    assert torch.equal(columns, x.mT)


def test_assert_viewless(draw: Any) -> None:
    x = draw(3, 4)
    nested = [x, [1, "a", None, [x]]]
    for argument in (x, nested, (x.mT,), None, 3):
        assert assert_viewless_tensor(argument) is argument
    with pytest.raises(AssertionError, match=r"shape \[4, 3\] is a view of one of shape \[3, 4\]"):
        assert_viewless_tensor(x.mT)
    with pytest.raises(AssertionError, match=r"first\. in the last stage$"):
        assert_viewless_tensor([x, [x[1:]]], "in the last stage")


def test_safely_set_data(draw: Any) -> None:
    x, new = draw(3, 4), draw(5, dtype=torch.float32)
    safely_set_viewless_tensor_data(x, new)
    assert x.data_ptr() == new.data_ptr()
    assert (x.shape, x.dtype) == ((5,), torch.float32)
    v = draw(3, 4).mT
    before = v.clone()
    with pytest.raises(AssertionError, match=r"The new data has shape \[5\]"):
        safely_set_viewless_tensor_data(v, new)
    assert torch.equal(v, before)
