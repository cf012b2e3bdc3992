"""Convolutions with the arguments, modules and tools of torch."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import bridge.torch as bt
from tests.convolution.cases import CASES, close, drawn, in_torch, same, to_torch

NAMES = [f"{kind}{dims}d" for kind in ("conv", "conv_transpose") for dims in (1, 2, 3)]


def opinfo(name: str) -> Any:
    """Returns torch's samples for a function."""
    if "expecttest" not in sys.modules:  # torch imports it and uses a class of it
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = object
        sys.modules["expecttest"] = stand_in
    database = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    return next(op for op in database.op_db if op.name == f"nn.functional.{name}")


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_torch(name: str) -> None:
    """Values, gradients and strides are those of torch on its own samples."""
    ours, theirs = getattr(bt, name), getattr(torch.nn.functional, name)
    samples = list(opinfo(name).sample_inputs("cpu", torch.float64, requires_grad=True))
    assert samples
    for sample in samples:
        operands = [sample.input, *(t for t in sample.args if isinstance(t, torch.Tensor))]
        expected = theirs(sample.input, *sample.args, **sample.kwargs)
        found = ours(sample.input, *sample.args, **sample.kwargs)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
        g = torch.randn_like(expected)
        pairs = (torch.autograd.grad(y, operands, g) for y in (found, expected))
        for one, two in zip(*pairs, strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES[:3])
def test_wrong_samples_of_torch(name: str) -> None:
    for sample in opinfo(name).error_inputs("cpu"):
        given = sample.sample_input
        with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
            getattr(bt, name)(given.input, *given.args, **given.kwargs)


MODULES: list[Any] = [
    (torch.nn.Conv2d, (4, 6, 3), {"padding": 1, "groups": 2}),
    (torch.nn.Conv2d, (4, 6, (3, 2)), {"stride": (2, 1), "dilation": 2, "bias": False}),
    (torch.nn.Conv2d, (4, 6, 4), {"padding": "same"}),
    (torch.nn.Conv2d, (4, 6, 4), {"padding": "same", "padding_mode": "reflect"}),
    (torch.nn.Conv2d, (4, 6, 3), {"padding": (1, 2), "padding_mode": "circular"}),
    (torch.nn.Conv2d, (4, 6, 3), {"padding": 2, "padding_mode": "replicate"}),
    (torch.nn.Conv1d, (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}),
    (torch.nn.Conv3d, (4, 6, 2), {"padding": "valid"}),
    (torch.nn.ConvTranspose1d, (4, 6, 3), {"stride": 2}),
    (torch.nn.ConvTranspose2d, (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    (torch.nn.ConvTranspose3d, (4, 6, 2), {"groups": 2, "bias": False}),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("number", range(len(MODULES)))
def test_modules(number: int) -> None:
    kind, arguments, keywords = MODULES[number]
    torch.manual_seed(0)
    original = kind(*arguments, **keywords)
    torch.manual_seed(0)
    ours = getattr(bt, kind.__name__)(*arguments, **keywords)
    assert isinstance(ours, kind)
    assert ours.state_dict().keys() == original.state_dict().keys()
    assert all(map(torch.equal, ours.parameters(), original.parameters()))
    assert repr(ours) == repr(original)
    x = torch.randn(2, 4, *(7,) * (ours.weight.ndim - 2))
    torch.testing.assert_close(ours(x), original(x))
    torch.testing.assert_close(ours(x[0]), original(x[0]))
    same(copy.deepcopy(ours)(x), ours(x))
    if "Transpose" in kind.__name__:
        size = [s + (s > 14) for s in original(x).shape[2:]]
        torch.testing.assert_close(ours(x, size), original(x, size))
        with pytest.raises(ValueError, match=f"{kind.__name__}: output_size is "):
            ours(x, [1] * len(size))


def test_compiled_and_exported() -> None:
    model = torch.nn.Sequential(
        bt.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect"),
        bt.Conv2d(8, 8, 3, padding="same", groups=8),
        bt.ConvTranspose2d(8, 4, 2, stride=2),
    )
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for memory in (torch.contiguous_format, torch.channels_last):
        given = x.clone(memory_format=memory).requires_grad_()
        leaves = [given, *model.parameters()]
        same(compiled(given), model(given))
        assert compiled(given).stride() == model(given).stride()
        pairs = (torch.autograd.grad(f(given).square().sum(), leaves) for f in (compiled, model))
        for one, two in zip(*pairs, strict=True):
            same(one, two)
    sizes = {0: torch.export.Dim("n", min=2, max=64)}
    exported = torch.export.export(model, (x,), dynamic_shapes=(sizes,)).module()
    other = torch.randn(5, 3, 8, 8)
    same(exported(other), model(other))


def test_the_ops_schema() -> None:
    x, w, bias = torch.randn(2, 4, 5, 6), torch.randn(6, 2, 3, 2), torch.randn(6)
    given = [t.requires_grad_() for t in (x, w, bias)]
    lists = [3, 5], [2, 1], [1, 0], [1, 1]
    op = torch.ops.bridge.convolution.default
    torch.library.opcheck(op, (*given, "forward", "float32", *lists, 2, "portable"))


def test_meta_tensors_have_shapes_and_strides() -> None:
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    w = torch.randn(3, 4, 3, 3)
    y, z = bt.conv2d(x, w), bt.conv2d(x.to("meta"), w.to("meta"))
    assert (y.shape, y.stride(), y.dtype) == (z.shape, z.stride(), z.dtype)


def test_autocast_casts_the_operands() -> None:
    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y = bt.conv2d(x, w)
    assert y.dtype == torch.bfloat16
    same(y, bt.conv2d(x.bfloat16(), w.bfloat16()))


def test_conv_transpose_is_the_gradient(rng: np.random.Generator) -> None:
    case = CASES["groups"]
    x, w, bias, g = (to_torch(each, "float32") for each in drawn(rng, case))
    x.requires_grad_()
    y = torch.utils.checkpoint.checkpoint(in_torch, case, x, w, bias, use_reentrant=False)
    dx = torch.autograd.grad(y, x, g)[0]
    same(dx, bt.conv_transpose2d(g, w, None, 1, (1, 0), groups=4))
    close(dx, torch.nn.functional.conv_transpose2d(g, w, None, 1, (1, 0), 0, 4), "float32")


WRONG: list[Any] = [
    ((2, 3, 8), (4, 3, 3, 3), {}, "input has 2 channels, expected 3 in each of 1 groups"),
    ((8, 8), (4, 3, 3, 3), {}, "input has shape [8, 8], expected [n, channels, h, w] or"),
    ((2, 3, 8, 8), (4, 3, 3), {}, "weight has shape [4, 3, 3], expected 4 dimensions"),
    ((2, 3, 8, 8), (4, 2, 3, 3), {}, "input has 3 channels, expected 2 in each of 1 groups"),
    ((2, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "groups is 2, expected a divisor of 3"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"bias": (3,)}, "bias has shape [3], expected [4]"),
    ((2, 3, 2, 8), (4, 3, 3, 3), {}, "expected sizes of at least [3, 3]"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"stride": 0}, "stride is 0, expected an integer of at least 1"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": (1, 1, 1)}, "padding is (1, 1, 1), expected"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": "full"}, "padding is 'full', expected 'same'"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"padding": "same", "stride": 2}, "padding is 'same' with stride"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"groups": 0}, "groups is 0, expected a positive integer"),
    ((2, 3, 8, 8), (4, 3, 3, 3), {"bits": "fast"}, "bits is 'fast', expected one of 'portable'"),
    (
        (2, 3, 8, 8),
        (4, 3, 3, 3),
        {"bits": "device"},
        "bits is 'device' with input of float32, weight of float32 and a result of float32",
    ),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(number: int) -> None:
    x, w, keywords, words = WRONG[number]
    if "bias" in keywords:
        keywords = {**keywords, "bias": torch.zeros(keywords["bias"])}
    with pytest.raises(ValueError, match=r"^conv2d: ") as caught:
        bt.conv2d(torch.zeros(x), torch.zeros(w), **keywords)
    assert words in str(caught.value)


def test_other_wrong_arguments() -> None:
    x, w = torch.zeros(2, 3, 8, 8), torch.zeros(3, 4, 3, 3)
    with pytest.raises(TypeError, match=r"conv2d: stride is 1\.5, expected an integer"):
        bt.conv2d(x, x, stride=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="conv2d: weight has dtype int64, expected one of float16"):
        bt.conv2d(x, torch.zeros(4, 3, 3, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="conv2d: input has type list"):
        bt.conv2d([1.0], w)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"conv_transpose2d: output_padding is \[1, 1\]"):
        bt.conv_transpose2d(x, w, output_padding=1)
    with pytest.raises(ValueError, match="conv_transpose2d: input has 4 channels, expected 3"):
        bt.conv_transpose2d(torch.zeros(2, 4, 8, 8), w)
    with pytest.raises(ValueError, match=r"conv_transpose2d: .*expected positive sizes"):
        bt.conv_transpose2d(x, w, padding=9)
    lists = [3, 5], [2, 1], [1, 0], [1, 1]
    with pytest.raises(ValueError, match="convolution: operands of shapes"):
        torch.ops.bridge.convolution(x, w, None, "forward", "float32", *lists, 1)
