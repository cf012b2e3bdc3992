"""Promises of every op: derivatives in every mode and order, batches, tracing, no writes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.func import functional_call, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from tests.torch.cases import CASES, Case
from tests.torch.expected import DTYPES, assert_close, assert_same_bits

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_gradcheck_in_every_mode(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, grad=True)
    assert gradcheck(
        case.function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert gradgradcheck(
        case.function,
        inputs,
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
    )


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_first_derivatives(draw: Any, case: Case, dtype: torch.dtype) -> None:
    """Errors are roundings of float64 results, and of y if the derivative is computed from y."""
    inputs = case.inputs(draw, dtype=dtype, grad=True)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    y, expected = case.function(*inputs), case.expected(*exact)
    assert y.dtype == dtype
    compare(y, expected, ulps=16)
    g = draw(*y.shape, dtype=dtype)
    pairs = zip(grad(y, inputs, g), grad(expected, exact, g.double()), strict=True)
    for one, other in pairs:
        assert one.dtype == dtype
        compare(one, other, ulps=64)


def compare(actual: Any, expected: Any, ulps: float) -> None:
    if expected.count_nonzero():
        assert_close(actual, expected, ulps)
    else:
        assert not actual.count_nonzero()


@every_case
def test_inputs_and_cotangents_are_not_written(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, grad=True)
    y = case.function(*inputs)
    g = draw(*y.shape)
    tensors = (*inputs, y, g)
    before = [t.detach().clone() for t in tensors]
    versions = [t._version for t in tensors]
    first = grad(y, inputs, g.requires_grad_(), create_graph=True)
    grad([f.sum() for f in first if f.requires_grad], (*inputs, g), allow_unused=True)
    assert versions == [t._version for t in tensors]
    for one, other in zip(tensors, before, strict=True):
        assert_same_bits(one, other)


NESTINGS = [nesting for n in (2, 3) for nesting in itertools.product("FR", repeat=n)]


@pytest.mark.parametrize("nesting", NESTINGS, ids="".join)
@pytest.mark.parametrize(
    "name", ["bias_gelu", "softmax masked", "softmax backward", "dropout bias"]
)
def test_nested_derivatives(draw: Any, name: str, nesting: tuple[str, ...]) -> None:
    """Eager and traced calls agree; in a trace the dispatcher handles every transform by itself."""
    case = CASES[name]
    x, *others = case.inputs(draw)
    t, g = draw(*x.shape), draw(*x.shape)

    def derivative(function: Any) -> Any:
        def nested(x: Any) -> Any:  # squared, so that outer levels also differentiate the value
            y = function(x, *others)
            return y * y

        for mode in reversed(nesting):
            nested = along(nested) if mode == "F" else back(nested)
        return nested(x)

    def along(function: Any) -> Any:
        return lambda x: jvp(function, (x,), (t,))[1]

    def back(function: Any) -> Any:
        return lambda x: vjp(function, x)[1](g)[0]

    expected = derivative(case.expected)
    compare_small(derivative(case.function), expected)
    traced = make_fx(lambda: derivative(case.function))()
    assert "torch.ops.bridge." in traced.code
    compare_small(traced(), expected)


@every_case
def test_every_mix_of_two_modes(draw: Any, case: Case) -> None:
    inputs, tangents = case.inputs(draw), case.inputs(draw)

    def jvp_of_vjp(function: Any, g: Any) -> Any:
        return jvp(lambda *i: vjp(function, *i)[1](g), inputs, tangents)[1]

    def vjp_of_jvp(function: Any, g: Any) -> Any:
        return vjp(lambda *i: jvp(function, i, tangents)[1], *inputs)[1](g)

    def jvp_of_jvp(function: Any, g: Any) -> Any:
        return (jvp(lambda *i: jvp(function, i, tangents)[1], inputs, inputs)[1],)

    g = draw(*case.expected(*inputs).shape)
    for mix in (jvp_of_vjp, vjp_of_jvp, jvp_of_jvp):
        pairs = zip(mix(case.function, g), mix(case.expected, g), strict=True)
        for one, other in pairs:
            compare_small(one, other)


def compare_small(actual: Any, expected: Any) -> None:
    """Compares sums that may cancel, which torch computes with several roundings."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-9)


@every_case
def test_eager_dual_tensors(draw: Any, case: Case) -> None:
    inputs, tangents = case.inputs(draw, grad=True), case.inputs(draw, grad=True)
    with forward_ad.dual_level():
        y = case.function(*map(forward_ad.make_dual, inputs, tangents))
        tangent = forward_ad.unpack_dual(y).tangent
        g = draw(*y.shape)
        back = grad(tangent, (*inputs, *tangents), g, allow_unused=True)
    expected = jvp(case.expected, inputs, tangents)[1]
    compare_small(tangent, expected)
    expected_back = grad(expected, (*inputs, *tangents), g, allow_unused=True)
    for one, other in zip(back, expected_back, strict=True):
        if one is None or other is None:
            assert all(gradient is None or not gradient.any() for gradient in (one, other))
        else:
            compare_small(one, other)


@every_case
def test_vmap_over_each_argument(draw: Any, case: Case) -> None:
    """vmap equals a loop, over any one argument and over all: values, vjp and jvp."""
    inputs = case.inputs(draw)
    count = len(inputs)
    g = draw(3, *case.function(*inputs).shape)

    def everything(g: Any, *inputs: Any) -> Any:
        y, pull = vjp(case.function, *inputs)
        return y, *pull(g), jvp(case.function, inputs, inputs)[1]

    for batched in {*(1 << i for i in range(count)), (1 << count) - 1}:
        dims = [-1 if batched >> i & 1 else None for i in range(count)]
        members = [
            torch.stack([draw(*o.shape) for _ in range(3)], -1) if d == -1 else o
            for o, d in zip(inputs, dims, strict=True)
        ]
        results = vmap(everything, in_dims=(0, *dims))(g, *members)
        for i in range(3):
            one = [m if d is None else m[..., i] for m, d in zip(members, dims, strict=True)]
            for alone, together in zip(everything(g[i], *one), results, strict=True):
                compare_small(together[i], alone)


@every_case
def test_nested_vmap(draw: Any, case: Case) -> None:
    inputs = [draw(2, 3, *shape) for shape in case.shapes]
    results = vmap(vmap(case.function), in_dims=0)(*inputs)
    for i, j in itertools.product(range(2), range(3)):
        assert_same_bits(results[i, j], case.function(*(o[i, j] for o in inputs)))


@every_case
def test_batched_cotangents(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, grad=True)
    y = case.function(*inputs)
    g = draw(3, *y.shape)
    batched = grad(y, inputs, g, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        for one, many in zip(grad(y, inputs, g[i], retain_graph=True), batched, strict=True):
            assert_same_bits(many[i], one)
    # The old vmap runs above autograd, which must record the derivatives all the same.
    many = grad(y, inputs, g, is_grads_batched=True, create_graph=True)
    alone = [grad(y, inputs, each, create_graph=True) for each in g]
    for place, found in enumerate(many):
        expected = torch.stack([each[place] for each in alone])
        assert found.requires_grad == expected.requires_grad
        if found.requires_grad:
            h = draw(*found.shape)
            for one, other in zip(
                grad(found, inputs, h, retain_graph=True, materialize_grads=True),
                grad(expected, inputs, h, retain_graph=True, materialize_grads=True),
                strict=True,
            ):
                compare_small(one, other)


@every_case
def test_layouts(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, grad=True)
    y = case.function(*inputs)
    g = draw(*y.shape)
    expected = (y, *grad(y, inputs, g))
    for apart in (
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
        lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    ):
        y = case.function(*map(apart, inputs))
        for one, other in zip((y, *grad(y, inputs, apart(g))), expected, strict=True):
            assert_same_bits(one, other)
        assert y.is_contiguous()


@every_case
def test_cotangents_without_memory(draw: Any, case: Case) -> None:
    """Autograd's efficient zeros have elements, but no memory."""
    inputs = case.inputs(draw, grad=True)
    y = case.function(*inputs)
    zeros = torch._efficientzerotensor(y.shape, dtype=y.dtype)
    assert not any(gradient.any() for gradient in grad(y, inputs, zeros))


@every_case
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(draw: Any, case: Case, reentrant: bool) -> None:
    inputs = case.inputs(draw, grad=True)
    y = case.function(*inputs)
    g = draw(*y.shape)
    expected = grad(y, inputs, g)
    checkpoint(case.function, *inputs, use_reentrant=reentrant).backward(g)
    for one, other in zip(inputs, expected, strict=True):
        assert_same_bits(one.grad, other)


@pytest.mark.usefixtures("fresh_compiler")
@every_case
def test_compile(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, grad=True)
    compiled = torch.compile(
        lambda *inputs: case.function(*inputs) * 2.0, fullgraph=True, backend="aot_eager"
    )
    y, expected = compiled(*inputs), case.function(*inputs) * 2.0
    assert_same_bits(y, expected)
    g = draw(*y.shape)
    for one, other in zip(grad(y, inputs, g), grad(expected, inputs, g), strict=True):
        assert_same_bits(one, other)


class Layer(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("fresh_compiler")
@every_case
def test_export(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw)
    program = torch.export.export(Layer(case.function), inputs, strict=False)
    assert "torch.ops.bridge." in program.graph_module.code
    assert_same_bits(program.module()(*inputs), case.function(*inputs))


@every_case
def test_autocast_leaves_alone(draw: Any, case: Case) -> None:
    inputs = case.inputs(draw, dtype=torch.float32)
    expected = case.function(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_bits(case.function(*inputs), expected)
    assert_same_bits(functional_call(Layer(case.function), {}, inputs), expected)
