"""Sizes that tracing leaves open: known from an example, or from the data alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import grad
from torch.testing import assert_close

from bridge.torch import (
    BiasDropoutAdd,
    BiasGELU,
    bias_dropout_add,
    bias_gelu,
    megatron,
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)
from tests.torch.expected import assert_same_bits

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def compiled(function: Any, backend: Any = "aot_eager") -> Any:
    return torch.compile(function, fullgraph=True, dynamic=True, backend=backend)


@pytest.mark.parametrize("numbers", [(0, 1, 0.5), (0.5, 1)], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, p: bias_dropout_add(x, p=p, seed=1),
        lambda x, sink: scaled_causal_softmax(x, sink=sink),
        lambda x, sink: scaled_softmax(x, sink=x.shape[-1] + sink),
    ],
)
def test_numbers_that_became_symbols(draw: Any, function: Any, numbers: Any) -> None:
    run, x = compiled(function), draw(3, 8)
    for number in numbers:
        assert_same_bits(run(x, number), function(x, number))


def test_size_computed_from_another(draw: Any) -> None:
    """The batch of x is a quotient, the mask's a separate size: the example shows them equal."""

    def heads(x: Tensor, mask: Tensor) -> Tensor:
        return scaled_masked_softmax(x.view(-1, 4, 17, 17), mask)

    counter = CompileCounterWithBackend("aot_eager")
    dynamic = compiled(heads, counter)
    frames = []
    for batch in (3, 5):
        x, mask = draw(4 * batch, 17, 17, grad=True), draw(batch, 1, 17, 17) > 0
        y, expected = dynamic(x, mask), heads(x, mask)
        assert_same_bits(y, expected)
        g = draw(*y.shape)
        assert_same_bits(grad(y, x, g)[0], grad(expected, x, g)[0])
        frames.append(counter.frame_count)
    assert frames[1:] == frames[:-1]


@pytest.mark.parametrize(
    ("function", "shapes"),
    {
        "bias": (lambda x, b: bias_gelu(x.view(-1, 6), b.view(-1)), ((4, 2, 3), (2, 3))),
        "residual": (
            lambda x, r: bias_dropout_add(x.view(-1, 6), None, r, p=0.5, seed=1),
            ((4, 2, 3), (4, 6)),
        ),
        "cotangent": (
            lambda g, y: scaled_softmax_backward(g.view(-1, 6), y),
            ((4, 2, 3), (4, 6)),
        ),
        "drop-in's cotangent": (
            lambda g, x: megatron.bias_gelu_back(g.view(-1, 6), x[0], x),
            ((4, 2, 3), (4, 6)),
        ),
        "drop-in's residual": (
            lambda x, r: megatron.bias_dropout_add_fused_inference((x.view(-1, 6), r[0]), r, 0.5),
            ((4, 2, 3), (4, 6)),
        ),
        "out": (lambda x, o: scaled_softmax(x.view(-1, 6), out=o), ((4, 2, 3), (4, 6))),
    }.values(),
    ids=["bias", "residual", "cotangent", "drop-in's cotangent", "drop-in's residual", "out"],
)
def test_operands_of_computed_sizes(
    draw: Any, function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    operands = [draw(*shape) for shape in shapes]
    expected = function(*[operand.clone() for operand in operands])
    assert_same_bits(compiled(function)(*operands), expected)


def test_shapes_that_do_not_fit_are_still_named(draw: Any) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match="does not broadcast to x"):
        compiled(scaled_masked_softmax)(draw(3, 5), draw(4, 5) > 0)


class Layer(nn.Module):
    """A layer of BERT, whose attention has batch and heads in one dimension."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width, bias=False)
        self.mixed_bias = nn.Parameter(torch.randn(width))
        self.wide = nn.Linear(width, 2 * width, bias=False)
        self.gelu = BiasGELU(2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.add = BiasDropoutAdd(0.25)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        apart = self.projections(x).view(batch, length, 3 * self.heads, width // self.heads)
        q, k, v = apart.transpose(1, 2).reshape(batch * self.heads * 3, length, -1).chunk(3)
        scores = torch.bmm(q, k.transpose(1, 2)).view(-1, self.heads, length, length)
        weights = scaled_masked_softmax(scores, mask, 0.5).view(-1, length, length)
        mixed = torch.bmm(weights, v).view(batch, self.heads, length, -1).transpose(1, 2)
        mixed = self.mixed(mixed.reshape(batch, length, width))
        x = self.norm(self.add(mixed, self.mixed_bias, x, seed=5))
        return self.norm(self.add(self.narrow(self.gelu(self.wide(x))), residual=x, seed=6))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        mask = hidden[:, None, None, :].expand(-1, 1, hidden.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return x


@pytest.mark.long
def test_encoders_one_after_the_other(draw: Any) -> None:
    for width, heads, layers in ((8, 2, 2), (12, 4, 1)):
        torch._dynamo.reset()
        model = Encoder(width, heads, layers).double()
        counter = CompileCounterWithBackend("aot_eager")
        dynamic = compiled(model, counter)
        frames = []
        for batch, length in ((3, 7), (5, 11), (2, 4)):
            x, hidden = draw(batch, length, width), draw(batch, length) > 0.5
            y, expected = dynamic(x, hidden), model(x, hidden)
            assert_close(y, expected)
            g = draw(*y.shape)
            pairs = (grad(out, tuple(model.parameters()), g) for out in (y, expected))
            for one, other in zip(*pairs, strict=True):
                assert_close(one, other)
            frames.append(counter.frame_count)
        assert frames[1:] == frames[:-1]


def positive(x: Tensor) -> Tensor:
    """Returns rows of x that begin with a positive number; only the data give the count."""
    return x.index_select(0, torch.nonzero(x[:, 0] > 0).squeeze(1))


OF_DATA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bias_gelu": lambda x, b: bias_gelu(positive(x), b),
    "softmax": lambda x, b: scaled_softmax(positive(x), 0.5),
    "causal": lambda x, b: scaled_causal_softmax(positive(x)),
    "mask of one row": lambda x, b: scaled_masked_softmax(positive(x), (b > 0)[None]),
    "mask of the rows": lambda x, b: scaled_masked_softmax(positive(x), positive(x) > 0.5),
    "backward": lambda x, b: scaled_softmax_backward(positive(x), positive(x)),
    "residual": lambda x, b: bias_dropout_add(positive(x), b, positive(x), p=0.5, seed=3),
    "drop-in's bias": lambda x, b: megatron.bias_gelu_impl(positive(x), positive(x)),
    "drop-in's cotangent": lambda x, b: megatron.bias_gelu_back(positive(x), b, positive(x)),
    "drop-in's residual": lambda x, b: megatron.bias_dropout_add_fused_inference(
        (positive(x), b), positive(x), 0.5
    ),
}


@pytest.mark.parametrize("case", OF_DATA)
@pytest.mark.parametrize("strict", [True, False])
def test_export_with_sizes_of_the_data(draw: Any, case: str, strict: bool) -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return OF_DATA[case](x, bias)

    x, bias, other = draw(8, 5), draw(5), draw(8, 5)
    program = torch.export.export(Module(), (x, bias), strict=strict).module()
    for rows in (x, other):
        assert_same_bits(program(rows, bias), OF_DATA[case](rows, bias))
