"""`bridge.torch.invariant`: torch's own functions run on bridge's kernels, in all their forms."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bridge.torch as bt
from bridge.catalogue import framework_functions

mean_of_rows, silu_of_rows = framework_functions.mean.torch, framework_functions.silu.torch
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COLUMNS = 37
RMS_EPS = torch.finfo(torch.float32).eps


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def strides_of(x: Tensor) -> list[int]:
    """Returns the strides that matter to a view."""
    found = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    return found if x.numel() else []


def same(found: Any, expected: Any) -> None:
    """Asserts the same bits, shape, dtype and layout."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert strides_of(found) == strides_of(expected)
    assert torch.equal(torch.nan_to_num(found), torch.nan_to_num(expected))
    assert torch.equal(found.isnan(), expected.isnan())


def moved(op: Any, x: Tensor, dim: int) -> Tensor:
    return op(x.movedim(dim, -1).contiguous()).movedim(-1, dim).contiguous()


def vector(like: Tensor, seed: int) -> Tensor:
    return numbers(like.shape[-1], dtype=like.dtype, seed=seed)


# For each form: a function of torch, and the same by a function of bridge.
FORMS: dict[str, tuple[Any, Any]] = {
    "torch.softmax": (lambda x: torch.softmax(x, -1), bt.scaled_softmax),
    "Tensor.softmax": (lambda x: x.softmax(dim=-1), bt.scaled_softmax),
    "axis=": (lambda x: torch.softmax(x, axis=-1), bt.scaled_softmax),  # type: ignore[call-overload]
    "F.softmax": (lambda x: F.softmax(x, -1, _stacklevel=5), bt.scaled_softmax),
    "special.softmax": (lambda x: torch.special.softmax(x, -1), bt.scaled_softmax),
    "nn.Softmax": (lambda x: nn.Softmax(-1)(x), bt.scaled_softmax),
    "softmax of the first": (
        lambda x: F.softmax(x, dim=0),
        lambda x: moved(bt.scaled_softmax, x, 0),
    ),
    "softmax in float64": (
        lambda x: x.softmax(-1, torch.float64),
        lambda x: bt.scaled_softmax(x.double()),
    ),
    "softmin": (lambda x: F.softmin(x, -1), lambda x: bt.scaled_softmax(-x)),
    "torch.log_softmax": (lambda x: torch.log_softmax(x, -1), bt.log_softmax),
    "Tensor.log_softmax": (lambda x: x.log_softmax(-1), bt.log_softmax),
    "special.log_softmax": (lambda x: torch.special.log_softmax(x, -1), bt.log_softmax),
    "F.log_softmax": (
        lambda x: F.log_softmax(x, dim=1, dtype=torch.float32),
        lambda x: moved(bt.log_softmax, x.float(), 1),
    ),
    "nn.LogSoftmax": (lambda x: nn.LogSoftmax(-1)(x), bt.log_softmax),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda x: bt.logsumexp(x).to(x.dtype)),
    "logsumexp of two": (
        lambda x: x.logsumexp((0, 2), keepdim=True),
        lambda x: bt.logsumexp(x.movedim(1, 0).flatten(1)).to(x.dtype)[None, :, None],
    ),
    "torch.mean": (lambda x: torch.mean(x, dim=-1, keepdim=True), lambda x: mean_of_rows(x)[..., None]),
    "Tensor.mean": (lambda x: x.mean(-1), mean_of_rows),
    "keepdims=": (lambda x: x.mean(axis=2, keepdims=True), lambda x: mean_of_rows(x)[..., None]),
    "mean of all": (lambda x: x.mean(), lambda x: mean_of_rows(x.flatten())),
    "mean of ()": (lambda x: x.mean(()), lambda x: mean_of_rows(x.flatten())),
    "mean of two": (lambda x: x.mean((-1, 1)), lambda x: mean_of_rows(x.flatten(1))),
    "mean of the first": (
        lambda x: x.mean(0, keepdim=True),
        lambda x: mean_of_rows(x.movedim(0, -1).contiguous())[None],
    ),
    "mean in float32": (
        lambda x: x.mean(-1, dtype=torch.float32),
        lambda x: mean_of_rows(x.float()),
    ),
    "F.gelu": (F.gelu, lambda x: bt.bias_gelu(x, approximate="none")),
    "nn.GELU": (lambda x: nn.GELU("tanh")(x), lambda x: bt.bias_gelu(x, approximate="tanh")),
    "F.silu": (F.silu, silu_of_rows),
    "silu in place": (lambda x: F.silu(x * 1, inplace=True), silu_of_rows),
    "nn.SiLU": (lambda x: nn.SiLU()(x), silu_of_rows),
    "F.layer_norm": (
        lambda x: F.layer_norm(x, (COLUMNS,), vector(x, 1), vector(x, 2)),
        lambda x: bt.layer_norm(x, vector(x, 1), vector(x, 2)),
    ),
    "layer_norm without": (lambda x: F.layer_norm(x, [COLUMNS], eps=0.5), lambda x: bt.layer_norm(x, eps=0.5)),
    "layer_norm with a bias alone": (
        lambda x: F.layer_norm(x, (COLUMNS,), bias=vector(x, 2)),
        lambda x: bt.layer_norm(x, None, vector(x, 2)),
    ),
    "layer_norm of two": (
        lambda x: torch.layer_norm(x, x.shape[1:], numbers(*x.shape[1:], dtype=x.dtype)),
        lambda x: bt.layer_norm(
            x.flatten(1), numbers(*x.shape[1:], dtype=x.dtype).flatten()
        ).unflatten(1, x.shape[1:]),
    ),
    "nn.LayerNorm": (lambda x: nn.LayerNorm(COLUMNS, dtype=x.dtype)(x), lambda x: bt.layer_norm(x, torch.ones(COLUMNS, dtype=x.dtype), torch.zeros(COLUMNS, dtype=x.dtype))),
    "F.rms_norm": (
        lambda x: F.rms_norm(x, (COLUMNS,), vector(x, 1), 0.25),
        lambda x: bt.rms_norm(x, vector(x, 1), eps=0.25),
    ),
    "torch.rms_norm": (
        lambda x: torch.rms_norm(x, (COLUMNS,)),
        lambda x: bt.rms_norm(x, eps=torch.finfo(x.dtype).eps if x.dtype == torch.float64 else RMS_EPS),
    ),
    "nn.RMSNorm": (
        lambda x: nn.RMSNorm(x.shape[1:], eps=1e-3, dtype=x.dtype)(x),
        lambda x: bt.rms_norm(x.flatten(1), torch.ones(x[0].numel(), dtype=x.dtype), eps=1e-3).unflatten(1, x.shape[1:]),
    ),
}  # fmt: skip
by_form = pytest.mark.parametrize("form", FORMS)


def differentiated(function: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, numbers(*y.shape, dtype=y.dtype, seed=5))
    return y.detach(), gradient


@by_form
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_form_has_the_bits_of_bridges_op(form: str, dtype: torch.dtype) -> None:
    of_torch, of_bridge = FORMS[form]
    x = numbers(3, 5, COLUMNS, dtype=dtype)
    plain, plain_gradient = differentiated(of_torch, x)
    with bt.invariant(report=True) as context:
        found, gradient = differentiated(of_torch, x)
    assert context.caught and not context.passed
    expected, expected_gradient = differentiated(of_bridge, x)
    same(found, expected)
    same(gradient, expected_gradient)
    # Torch's shapes, dtypes and layouts, and its numbers.
    assert (found.dtype, found.shape, found.stride()) == (plain.dtype, plain.shape, plain.stride())
    exact, exact_gradient = differentiated(of_torch, x.double())
    eps = torch.finfo(found.dtype).eps
    largest = max(eps, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.double(), exact.double(), rtol=4 * eps, atol=8 * eps)
    torch.testing.assert_close(
        gradient.double(), exact_gradient, rtol=8 * largest, atol=64 * largest
    )


@by_form
@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "channels last", "empty", "one row"])
def test_layouts_are_those_of_torch(form: str, layout: str) -> None:
    x = {
        "transposed": lambda: numbers(5, 3, COLUMNS).transpose(0, 1),
        "sliced": lambda: numbers(3, 10, 2 * COLUMNS)[:, ::2, 1::2],
        "expanded": lambda: numbers(3, 1, COLUMNS).expand(3, 5, COLUMNS),
        "channels last": lambda: numbers(3, COLUMNS, 5).transpose(1, 2),
        "empty": lambda: numbers(0, 5, COLUMNS),
        "one row": lambda: numbers(1, 1, COLUMNS),
    }[layout]()
    of_torch, _ = FORMS[form]
    expected = of_torch(x)
    with bt.invariant(report=True) as context:
        found = of_torch(x)
    assert context.caught and not context.passed
    assert strides_of(found) == strides_of(expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@by_form
def test_a_row_alone_has_the_bits_of_the_row_in_a_batch(form: str) -> None:
    if any(word in form for word in ("first", "two", "all", "()", "RMSNorm", "F.log_softmax")):
        pytest.skip("its rows are another dimension")
    of_torch, _ = FORMS[form]
    x = numbers(64, 3, COLUMNS)
    with bt.invariant():
        whole = of_torch(x)
        for part in (slice(5, 6), slice(7, 20), slice(1, 64)):
            assert torch.equal(of_torch(x[part]), whole[part])


LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.25},
    "ignored": {"ignore_index": 3},
    "weights": {"weight": True},
    "weights, none": {"weight": True, "reduction": "none", "label_smoothing": 0.125},
    "weights, smooth": {"weight": True, "label_smoothing": 0.125, "ignore_index": 2},
    "probabilities": {"target": "probabilities"},
    "probabilities, all": {
        "target": "probabilities", "weight": True, "label_smoothing": 0.5, "reduction": "sum",
    },
    "probabilities, none": {"target": "probabilities", "reduction": "none"},
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 7, 4), (2, 7, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross_entropy(loss: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    options = dict(LOSSES[loss])
    x = numbers(*shape, dtype=dtype)
    dim = 0 if len(shape) == 1 else 1
    if options.pop("target", "labels") == "labels":
        generator = torch.Generator().manual_seed(1)
        rows = [size for place, size in enumerate(shape) if place != dim]
        target = torch.randint(0, 7, rows, generator=generator)
        if target.numel() > 1:
            target.view(-1)[1] = options.get("ignore_index", -100)
    else:
        target = numbers(*shape, seed=9).softmax(dim).to(dtype)
    if options.get("weight"):
        options["weight"] = numbers(7, seed=3).abs().to(dtype)

    def of(x: Tensor) -> Tensor:
        weight, goal = options.get("weight"), target
        if x.dtype != dtype:  # the reference in float64
            weight = None if weight is None else weight.double()
            goal = goal.double() if goal.is_floating_point() else goal
        return F.cross_entropy(x, goal, **{**options, "weight": weight})

    plain, _ = differentiated(of, x)
    with bt.invariant(report=True) as context:
        found, gradient = differentiated(of, x)
    assert context.caught == {"cross_entropy": 1} and not context.passed
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    exact, exact_gradient = differentiated(of, x.double())
    eps = torch.finfo(dtype).eps
    # The cotangent is rounded to the dtype of the loss.
    torch.testing.assert_close(found.double(), exact, rtol=8 * eps, atol=32 * eps)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=8 * eps, atol=32 * eps)


def test_cross_entropy_has_the_bits_of_bridges_and_the_nan_of_torch() -> None:
    x, labels = numbers(9, 31), torch.arange(9)
    with bt.invariant():
        for options in LOSSES["plain"], LOSSES["sum"], LOSSES["none"], LOSSES["smooth"]:
            same(F.cross_entropy(x, labels, **options), bt.cross_entropy(x, labels, **options))
        same(nn.CrossEntropyLoss()(x, labels), bt.cross_entropy(x, labels))
        assert F.cross_entropy(x, torch.full((9,), -100)).isnan()


def cases_that_pass() -> dict[str, tuple[Any, str]]:
    x, labels = numbers(4, 6), torch.tensor([0, 5, 2, 1])
    whole = torch.arange(24).reshape(4, 6)

    class Own(torch.Tensor):
        pass

    return {
        "integers": (lambda: F.softmax(whole, -1, dtype=torch.int64), "dtype"),
        "integers to float": (lambda: F.softmax(whole, -1, dtype=torch.float32), "dtype"),
        "complex": (lambda: torch.mean(x + 1j, -1), "dtype"),
        "a complex dtype": (lambda: torch.mean(x, -1, dtype=torch.complex64), "dtype"),
        "meta": (lambda: F.gelu(x.to("meta")), "device"),
        "sparse": (lambda: torch.softmax(x.to_sparse(), -1), "sparse"),
        "nested": (lambda: torch.softmax(torch.nested.nested_tensor([x, x[:2]]), -1), "nested"),
        "no dimension": (lambda: torch.softmax(torch.tensor(2.0), 0), "dimension"),
        "a subclass": (lambda: F.gelu(x.as_subclass(Own)), "__torch_function__"),
        "no dim": (lambda: F.softmax(x), "dim is None"),
        "eps of 0": (lambda: F.layer_norm(x, (6,), eps=0.0), "eps"),
        "size_average": (lambda: F.cross_entropy(x, labels, size_average=True), "size_average"),
        "an out of another shape": (lambda: torch.mean(x, -1, out=torch.empty(0)), "out"),
        "an operator": (lambda: torch.ops.aten.softmax.int(x, -1), "called as an operator"),
        "a product": (lambda: x @ x.T, "no kernel"),
        "attention": (lambda: F.scaled_dot_product_attention(x, x, x), "no kernel"),
    }  # fmt: skip


@pytest.mark.parametrize("case", cases_that_pass())
def test_a_call_that_passes_by_is_torchs_own_and_named(case: str) -> None:
    call, reason = cases_that_pass()[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = call()
        except Exception as error:
            expected = error
        with bt.invariant(report=True) as context:
            try:
                found = call()
            except Exception as error:
                found = error
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    else:
        assert found.dtype == expected.dtype and found.layout == expected.layout
        if not (found.is_meta or found.is_nested):
            assert torch.equal(found.to_dense(), expected.to_dense())
    assert not context.caught and any(reason in why for _, why in context.passed)
    assert reason in str(context)


WRONG: dict[str, Any] = {
    "a missing dim": lambda x: torch.softmax(x),  # type: ignore[call-overload]
    "an unknown argument": lambda x: torch.softmax(x, -1, keepdim=True),  # type: ignore[call-overload]
    "twice": lambda x: torch.softmax(x, -1, dim=-1),  # type: ignore[call-overload]
    "too many": lambda x: F.silu(x, False, 1),  # type: ignore[call-arg]
    "NumPy's name in Python": lambda x: F.softmax(x, axis=-1),  # type: ignore[call-arg]
    "a dim beyond": lambda x: x.softmax(2),
    "a dim twice": lambda x: x.mean((0, 0)),
    "a dim that is no number": lambda x: x.mean(1.5),
    "a shape that does not fit": lambda x: F.layer_norm(x, (5,)),
    "a weight that does not fit": lambda x: F.rms_norm(x, (6,), torch.ones(5)),
    "a weight of another dtype": lambda x: F.layer_norm(x, (6,), torch.ones(6).double()),
    "an unknown approximation": lambda x: F.gelu(x, approximate="fast"),
    "a label out of range": lambda x: F.cross_entropy(x, torch.tensor([0, 6, 1, 2])),
    "labels of another shape": lambda x: F.cross_entropy(x, torch.tensor([0, 1])),
    "labels of 32 bits": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int32)),
    "an unknown reduction": lambda x: F.cross_entropy(x, torch.zeros(4).long(), reduction="max"),
    "smoothing beyond 1": lambda x: F.cross_entropy(x, torch.zeros(4).long(), label_smoothing=2.0),
    "an index for probabilities": lambda x: F.cross_entropy(x, x.softmax(-1), ignore_index=1),
    "in place of a leaf": lambda x: F.silu(x.clone().requires_grad_(), inplace=True),
    "in place of repeated memory": lambda x: F.silu(x[:, :1].expand(4, 6), inplace=True),
    "out of a gradient": lambda x: torch.mean(x.clone().requires_grad_(), -1, out=torch.empty(4)),
    "out of another dtype": lambda x: torch.softmax(x, -1, out=torch.empty(4, 6).half()),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_torchs_own(case: str) -> None:
    x = numbers(4, 6)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        WRONG[case](x)
    with bt.invariant(), pytest.raises(Exception) as found:  # noqa: PT011
        WRONG[case](x)
    assert found.type is expected.type
    assert str(found.value) == str(expected.value)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("of_weight", DTYPES, ids=str)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_mixed_dtypes_and_autocast(dtype: Any, of_weight: Any, autocast: Any) -> None:
    x, weight = numbers(4, 6, dtype=dtype), numbers(6, dtype=of_weight)
    target = numbers(4, 6, seed=1).softmax(-1).to(of_weight)
    labels = torch.tensor([0, 5, 2, 1])
    calls = {
        "softmax": lambda: x.softmax(-1),
        "log_softmax": lambda: x.log_softmax(-1),
        "mean": lambda: x.mean(-1),
        "gelu": lambda: F.gelu(x),
        "layer_norm": lambda: F.layer_norm(x, (6,), weight, weight),
        "rms_norm": lambda: F.rms_norm(x, (6,), weight, 1e-3),
        "cross_entropy": lambda: F.cross_entropy(x, labels, weight),
        "probabilities": lambda: F.cross_entropy(x, target),
    }
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        for name, call in calls.items():
            try:
                expected = call()
            except RuntimeError as error:
                with bt.invariant(), pytest.raises(type(error)) as found:
                    call()
                assert str(found.value) == str(error), name
                continue
            with bt.invariant(report=True) as context:
                result = call()
            assert not context.passed, (name, context.passed)
            assert result.dtype == expected.dtype, name
            # Torch rounds the logarithms of probabilities to the dtype of x.
            eps = max(torch.finfo(result.dtype).eps, torch.finfo(x.dtype).eps)
            torch.testing.assert_close(result, expected, rtol=8 * eps, atol=8 * eps)


def test_out_and_in_place() -> None:
    x = numbers(4, 6)
    with bt.invariant(report=True) as context:
        out = torch.empty(6, 4).T
        assert torch.softmax(x, -1, out=out) is out and out.stride() == (1, 4)
        same(out.contiguous(), bt.scaled_softmax(x))
        itself = x.clone()
        same(torch.log_softmax(itself, -1, out=itself), bt.log_softmax(x))
        y = x.clone()
        assert F.silu(y, inplace=True) is y
        same(y, silu_of_rows(x))
        same(F.gelu(torch.tensor(2.0)), bt.bias_gelu(torch.tensor([2.0]), approximate="none")[0])
    assert not context.passed


def test_derivatives_and_transforms() -> None:
    x, t = numbers(3, 9, dtype=torch.float64), numbers(3, 9, dtype=torch.float64, seed=1)
    labels = torch.tensor([0, 8, 2])

    def whole(x: Tensor) -> Tensor:
        y = F.softmax(x, -1) * F.silu(x) + F.gelu(x) + F.layer_norm(x, (9,))
        y = y + F.rms_norm(x, (9,)) * x.mean(-1, keepdim=True) + x.log_softmax(0)
        return y * F.cross_entropy(x, labels, label_smoothing=0.1) + x.logsumexp(-1)[:, None]

    scalar = lambda x: (whole(x) * t).sum()  # noqa: E731
    hidden = numbers(2, 3, 9, dtype=torch.float64, seed=4)
    with bt.invariant(report=True) as context:
        assert torch.autograd.gradcheck(whole, x.clone().requires_grad_())
        assert torch.autograd.gradgradcheck(whole, x.clone().requires_grad_())
        results = {
            "jvp": torch.func.jvp(whole, (x,), (t,))[1],
            "grad": torch.func.grad(scalar)(x),
            "hessian": torch.func.hessian(scalar)(x),
            "vmap": torch.func.vmap(whole)(hidden),
            "vmap of grad": torch.func.vmap(torch.func.grad(scalar))(hidden),
        }
    assert not {name for name, _ in context.passed} - {"sum"}
    plain = {
        "jvp": torch.func.jvp(whole, (x,), (t,))[1],
        "grad": torch.func.grad(scalar)(x),
        "hessian": torch.func.hessian(scalar)(x),
        "vmap": torch.stack([whole(each) for each in hidden]),
        "vmap of grad": torch.stack([torch.func.grad(scalar)(each) for each in hidden]),
    }
    for name, expected in plain.items():
        torch.testing.assert_close(results[name], expected, rtol=1e-9, atol=1e-9, msg=name)


def test_in_place_of_a_recorded_tensor() -> None:
    x = numbers(3, 9, dtype=torch.float64)
    function = lambda x: F.silu(x * x, inplace=True) * x  # noqa: E731
    with bt.invariant(report=True) as context:
        assert torch.autograd.gradcheck(function, x.clone().requires_grad_())
    assert context.caught["silu"]


def test_the_context_ends_and_holds_for_its_thread() -> None:
    x = numbers(1000, 33)
    plain, by_bridge = torch.softmax(x, -1), bt.scaled_softmax(x)
    assert not torch.equal(plain, by_bridge)
    elsewhere: list[Tensor] = []
    with bt.invariant():
        thread = threading.Thread(target=lambda: elsewhere.append(torch.softmax(x, -1)))
        thread.start()
        thread.join()
        assert torch.equal(torch.softmax(x, -1), by_bridge)
    assert torch.equal(elsewhere[0], plain)
    assert torch.equal(torch.softmax(x, -1), plain)
    with pytest.raises(ZeroDivisionError), bt.invariant():
        raise ZeroDivisionError
    assert torch.equal(torch.softmax(x, -1), plain)


def test_nested_contexts_and_other_modes() -> None:
    x = numbers(1000, 33)
    by_bridge = bt.scaled_softmax(x)
    outer, inner = bt.invariant(report=True), bt.invariant(report=True)
    with outer, torch.device("cpu"), bt.invariant(), inner:
        assert torch.equal(torch.softmax(x, -1), by_bridge)
        assert torch.equal(F.cross_entropy(x, torch.arange(1000) % 33), bt.cross_entropy(x, torch.arange(1000) % 33))
        F.gelu(x.to("meta"))
        assert torch.zeros(2).device.type == "cpu"
        with outer:  # once more
            assert torch.equal(torch.softmax(x, -1), by_bridge)
    assert inner.caught == {"softmax": 2, "cross_entropy": 1}
    assert outer.caught == {"softmax": 2, "cross_entropy": 1}
    assert inner.passed == outer.passed == {
        ("gelu", "the device is neither a CPU nor a CUDA GPU"): 1
    }


def test_decorator() -> None:
    x = numbers(1000, 33)
    context = bt.invariant(report=True)

    @context
    def function(x: Tensor, *, scale: float) -> Tensor:
        """The words."""
        return torch.softmax(x * scale, -1)

    assert function.__name__ == "function" and function.__doc__ == "The words."
    assert torch.equal(function(x, scale=2.0), bt.scaled_softmax(x * 2.0))
    assert torch.equal(function(x, scale=2.0), bt.scaled_softmax(x * 2.0))
    assert context.caught == {"softmax": 2}
    with pytest.raises(TypeError, match="is a generator or a coroutine"):

        @bt.invariant()
        def generated() -> Any:
            yield 1

    with pytest.raises(TypeError, match="got int, expected a function"):
        bt.invariant()(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="report is 'yes', expected True or False"):
        bt.invariant(report="yes")  # type: ignore[arg-type]


def test_a_lazy_negative() -> None:
    x = torch.complex(numbers(3, 9), numbers(3, 9, seed=1)).conj().imag
    assert x.is_neg()
    with bt.invariant():
        same(x.softmax(-1), bt.scaled_softmax(x.resolve_neg().contiguous()))
        same(F.gelu(x).contiguous(), bt.bias_gelu(x.resolve_neg().contiguous(), approximate="none"))
