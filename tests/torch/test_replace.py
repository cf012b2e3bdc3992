"""`bridge.torch.replace` computes the modules of torch.nn by ops of bridge."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import bridge.torch as bt


class Block(nn.Module):
    """A residual block with modules of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
        self.norm = nn.GroupNorm(2, 4)
        self.batch_norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.0)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.head = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.RMSNorm(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x + self.norm(self.conv(x)))
        y: torch.Tensor = self.head(self.up(x).movedim(1, -1))
        return y


EXPECTED = {
    "conv": "conv2d",
    "norm": "group_norm",
    "batch_norm": "batch_norm",
    "up": "conv_transpose2d",
    "head.0": "linear",
    "head.1": "bias_gelu",
    "head.2": "layer_norm",
    "head.3": "rms_norm",
}


def test_a_tree_of_modules() -> None:
    model, x = Block(), torch.randn(2, 4, 5, 5)
    original, keys = copy.deepcopy(model), list(model.state_dict())
    parameters = list(model.parameters())
    replaced = bt.replace(model)
    assert replaced.done == EXPECTED
    assert replaced.left == {"dropout": "bridge has no form of Dropout"}
    assert "1 × conv2d" in str(replaced)
    assert list(model.state_dict()) == keys
    assert all(one is two for one, two in zip(parameters, model.parameters(), strict=True))
    assert isinstance(model.conv, nn.Conv2d)
    torch.testing.assert_close(model(x), original(x), rtol=1e-4, atol=1e-5)
    y = model.conv(x)
    padded = nn.functional.pad(x, (1, 1, 1, 1), mode="circular")
    assert torch.equal(y, bt.conv2d(padded, model.conv.weight, model.conv.bias))
    again = bt.replace(model)
    assert again.before == EXPECTED
    assert not again.done
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    replaced.undo()
    assert type(model.conv) is nn.Conv2d
    assert torch.equal(model(x), original(x))


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv1d(3, 4, 3), (2, 3, 9)),
        (nn.Conv3d(3, 4, 2, groups=1), (2, 3, 4, 4, 4)),
        (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 9)),
        (nn.ConvTranspose3d(3, 4, 2), (2, 3, 4, 4, 4)),
        (nn.GELU("tanh"), (3, 7)),
        (nn.Softmax(1), (3, 7, 2)),
        (nn.LogSoftmax(-1), (3, 7)),
        (nn.LayerNorm(7, elementwise_affine=False), (3, 7)),
        (nn.RMSNorm(7), (3, 7)),
        (nn.GroupNorm(2, 4), (3, 4, 5)),
        (nn.Linear(7, 3, bias=False), (3, 7)),
        (nn.BatchNorm1d(3), (4, 3)),
        (nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)),
        (nn.BatchNorm3d(3, affine=False, track_running_stats=False), (2, 3, 2, 2, 3)),
        (nn.MaxPool1d(3, 2, ceil_mode=True), (2, 3, 8)),
        (nn.MaxPool2d(3, 2, 1), (3, 8, 7)),
        (nn.MaxPool3d(2), (2, 3, 4, 4, 4)),
        (nn.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 3, 8)),
        (nn.AvgPool2d(3, divisor_override=5), (2, 3, 8, 7)),
        (nn.AdaptiveAvgPool2d((1, None)), (3, 8, 7)),
        (nn.AdaptiveAvgPool3d(1), (2, 3, 4, 4, 4)),
        (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (2, 3, 4, 5)),
        (nn.SiLU(), (3, 7)),
        (nn.Sigmoid(), (3, 7)),
        (nn.Tanh(), (3, 7)),
        (nn.Mish(), (2, 3, 7)),
        (nn.Hardswish(), (3, 7)),
        (nn.LeakyReLU(0.3), (3, 7)),
        (nn.ELU(0.7), (3, 7)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_values_and_gradients(layer: Any, x: Any) -> None:
    given = torch.randn(x, requires_grad=True)
    original = copy.deepcopy(layer)
    layer = copy.deepcopy(layer)
    assert list(bt.replace(layer).done) == [""]
    y, expected = layer(given), original(given)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    g = torch.randn_like(y)
    pairs = (
        torch.autograd.grad(z, [given, *own.parameters()], g)
        for z, own in ((y, layer), (expected, original))
    )
    for one, two in zip(*pairs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_a_loss() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    original = copy.deepcopy(loss)
    assert bt.replace(loss).done == {"": "cross_entropy"}
    logits, labels = torch.randn(3, 5, 4), torch.randint(5, (3, 4))
    torch.testing.assert_close(loss(logits, labels), original(logits, labels))
    weights = torch.softmax(torch.randn(3, 5), -1)
    assert torch.equal(loss(logits[..., 0], weights), original(logits[..., 0], weights))


class Own(nn.Conv2d):
    """A convolution that computes something else."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.LayerNorm((2, 3)), "normalized_shape is [2, 3], expected one dimension"),
        (nn.SELU(), "bridge has no form of SELU"),
        (nn.MSELoss(), "bridge has no form of MSELoss"),
        (nn.BatchNorm2d(2, eps=0.0), "eps is 0.0, expected a positive number"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d has no sizes yet"),
        (nn.CrossEntropyLoss(torch.ones(3)), "weight is given, expected None"),
        (Own(2, 2, 1), "its class Own computes with weight itself"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1)), "its weight is computed from"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_modules_that_stay(layer: Any, why: str) -> None:
    replaced = bt.replace(layer)
    assert not replaced.done
    assert replaced.left[""].startswith(why)


def test_modules_that_move_numbers_are_not_reported() -> None:
    own = bt.Linear(2, 2), bt.BatchNorm2d(2)
    model = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Identity(), *own)
    replaced = bt.replace(model)
    assert not replaced.done
    assert not replaced.left


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False, "kdim": 4, "vdim": 6}])
def test_attention(batch_first: bool, options: dict[str, Any]) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)
    original = copy.deepcopy(layer)
    replaced = bt.replace(layer)
    assert replaced.done == {"": "attention"}
    assert not replaced.left
    sizes = 8, options.get("kdim", 8), options.get("vdim", 8)
    given = [torch.randn(3, 5, size, requires_grad=True) for size in sizes]
    images, keys = (3, 5) if batch_first else (5, 3)
    padding = torch.zeros(images, keys, dtype=torch.bool)
    padding[0, 2:] = True
    causal = torch.ones(keys, keys).triu(1).bool()
    for named in (
        {},
        {"need_weights": False},
        {"key_padding_mask": padding},
        {"attn_mask": causal, "average_attn_weights": False},
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": torch.randn(keys, keys)},
    ):
        pairs = []
        for own in (layer, original):
            y, weights = own(*given, **named)
            g = torch.arange(y.numel()).reshape(y.shape).sin()
            operands = [*given, *own.parameters()]
            found = torch.autograd.grad(y, operands, g)
            pairs.append((y, *([] if weights is None else [weights]), *found))
        for one, two in zip(*pairs, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layer(*(x[0] for x in given)), original(*(x[0] for x in given)), rtol=1e-4, atol=1e-5
    )
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given)[0], layer(*given)[0])


def test_attention_that_stays() -> None:
    replaced = bt.replace(nn.MultiheadAttention(8, 2, dropout=0.1))
    assert "dropout is 0.1, expected 0" in replaced.left[""]
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    assert "set_fastpath_enabled(False)" in bt.replace(layer).left[""]
    assert isinstance(layer.self_attn, nn.MultiheadAttention)


def test_activations_in_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(inplace=True))
    bt.replace(model)
    x = torch.randn(3, 4)
    given = x.clone()
    y = model[1](given)
    assert y.data_ptr() == given.data_ptr()
    torch.testing.assert_close(y, nn.functional.silu(x))
    model(x).sum().backward()
    assert model[0].weight.grad is not None


def test_running_statistics() -> None:
    layer, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5)
    original = copy.deepcopy(layer)
    bt.replace(layer)
    for module in (layer, original):
        module(x)
    for name, buffer in original.named_buffers():
        torch.testing.assert_close(dict(layer.named_buffers())[name], buffer)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"replace: model has type int, expected a torch\.nn\.Mod"):
        bt.replace(3)  # type: ignore[arg-type]
