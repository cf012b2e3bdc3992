"""The modes and hooks of autograd in a training loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import grad
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from bridge.torch import bias_gelu
from tests.torch.expected import assert_close, assert_same_bits, gelu


def test_inference_mode_and_no_grad(draw: Any) -> None:
    x, bias = draw(4, 3, grad=True), draw(3, grad=True)
    expected = bias_gelu(x, bias)
    with torch.inference_mode():
        y = bias_gelu(x, bias)
    assert y.is_inference()
    with torch.no_grad():
        z = bias_gelu(x, bias)
    assert not z.requires_grad
    assert_same_bits(y, expected)
    assert_same_bits(z, expected)


def test_autocast(draw: Any) -> None:
    """The bfloat16 of a linear layer plus a float32 bias gives float32, like F.gelu(x + bias)."""
    linear = torch.nn.Linear(6, 5, bias=False)
    x = draw(4, 6, dtype=torch.float32)
    bias = draw(5, dtype=torch.float32, grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = linear(x)
        y = bias_gelu(h, bias)
        assert (h.dtype, y.dtype) == (torch.bfloat16, torch.float32)
    y.sum().backward()
    assert (linear.weight.grad.dtype, bias.grad.dtype) == (torch.float32, torch.float32)
    assert_close(bias.grad, gelu(h, bias, "tanh", 1).sum(0), ulps=16)


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant", "selective"])
def test_checkpoint(draw: Any, kind: str) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    expected = grad(bias_gelu(x * 2.0, bias), (x, bias), g)

    def block(x: Any, bias: Any) -> Any:
        return bias_gelu(x * 2.0, bias)

    options: dict[str, Any] = {"use_reentrant": kind == "reentrant"}
    saved: list[Any] = []
    if kind == "selective":

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            saved.append(op)
            ours = op is torch.ops.bridge.program.few
            return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE

        options["context_fn"] = lambda: create_selective_checkpoint_contexts(policy)
    checkpoint(block, x, bias, **options).backward(g)
    assert_same_bits(x.grad, expected[0])
    assert_same_bits(bias.grad, expected[1])
    assert (torch.ops.bridge.program.few in saved) == (kind == "selective")


def test_saved_tensor_hooks(draw: Any) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    expected = grad(bias_gelu(x, bias), (x, bias), g)
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor.shape)
        return tensor.numpy(force=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        y = bias_gelu(x, bias)
    assert packed == [x.shape, bias.shape]
    for one, other in zip(grad(y, (x, bias), g), expected, strict=True):
        assert_same_bits(one, other)


def test_hooks(draw: Any) -> None:
    x, bias, g = draw(4, 3, grad=True), draw(3, grad=True), draw(4, 3)
    y = bias_gelu(x, bias)
    y.register_hook(lambda g: 2 * g)
    bias.register_hook(lambda g: -g)
    called: list[int] = []
    y.grad_fn.register_hook(lambda inputs, outputs: called.append(len(outputs)))
    y.backward(g)
    expected = gelu(x, bias, "tanh", 1, 2 * g)
    assert_close(x.grad, expected)
    assert_close(bias.grad, -expected.sum(0), ulps=16)
    assert called


def test_anomaly_mode(draw: Any) -> None:
    x, g = draw(4, 3, grad=True), draw(4, 3)
    with torch.autograd.detect_anomaly(check_nan=True):
        y = bias_gelu(x)
        y.backward(g)
        assert_close(x.grad, gelu(x, None, "tanh", 1, g))
        z = bias_gelu(x)
        with pytest.raises(RuntimeError, match="returned nan values"):
            z.backward(g * torch.nan)


test_anomaly_mode = pytest.mark.filterwarnings("ignore:Anomaly", "ignore:Error detected")(
    test_anomaly_mode
)


def test_graph_is_freed(draw: Any) -> None:
    """No reference cycle keeps tensors alive after their graph is gone."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        x = draw(4, 3, grad=True)
        h = x * 1.0
        alive = weakref.ref(h)
        y = bias_gelu(h)
        del h
        assert alive() is not None
        y.backward(draw(4, 3))
        del y
        assert alive() is None
    finally:
        gc.enable()
