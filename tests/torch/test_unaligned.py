"""Memory that does not start at a multiple of an element's size, as in files and messages.

torch accepts it, and so do bridge's ops in both frameworks: the same bits as on aligned memory.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import bridge
import bridge.jax
import bridge.torch as bt
from tests.exchange.values import bits_of
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.test_overrides import DROP_INS, EVERY, FUNCTIONS

DTYPES = [torch.bfloat16, torch.float32, torch.float64]
# torch computes their matrix products, in an order of sums that depends on the alignment.
PRODUCTS = ("LigerMLPFunction", "linear_cross_entropy 0")
CALLS = {f"{name} {i}": FUNCTIONS[name][i] for name, i in EVERY} | DROP_INS


def unaligned_array(values: np.ndarray, offset: int = 1) -> np.ndarray:
    raw = np.zeros(values.nbytes + 16, np.uint8)
    start = -raw.ctypes.data % 16 + offset
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    assert values.dtype.itemsize == 1 or array.ctypes.data % values.dtype.itemsize
    return array


def unaligned(tensor: Tensor) -> Tensor:
    """Returns the same values on NumPy's memory; a leaf if the tensor is a leaf."""
    detached = tensor.detach().contiguous()
    raw = unaligned_array(
        detached.view(torch.int16 if tensor.element_size() == 2 else detached.dtype).numpy()
    )
    moved = bridge.to_torch(raw).view(tensor.dtype)
    assert moved.data_ptr() == raw.ctypes.data
    return moved.requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_values_and_gradients(draw: Any, call: str, dtype: torch.dtype) -> None:
    """Cotangents may be unaligned too, and autograd may have recorded the call."""
    function = CALLS[call]
    x, bias = draw(4, 5, dtype=dtype), draw(5, dtype=dtype)
    results, gradients = [], []
    for change in (lambda t: t, unaligned):
        torch.manual_seed(3)
        with torch.no_grad():
            results.append(function(change(x), change(bias)))
        leaves = [change(t.clone().requires_grad_()) for t in (x, bias)]
        try:
            torch.manual_seed(3)
            y = function(*leaves)
        except RuntimeError as error:
            if "out=" not in str(error):
                raise
            continue
        if y.requires_grad:
            torch.manual_seed(4)
            g = change(torch.randn(y.shape, dtype=torch.float64).to(y.dtype))
            gradients.append(torch.autograd.grad(y, leaves, g, allow_unused=True))
    compare = assert_close if call in PRODUCTS else assert_same_bits
    compare(results[1], results[0])
    for one, other in zip(*gradients, strict=True) if gradients else ():
        assert (one is None) is (other is None)
        if one is not None:
            compare(other, one)


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "uint16", "uint64"])
def test_labels(draw: Any, name: str) -> None:
    logits = draw(6, 7)
    labels = torch.from_numpy(unaligned_array(np.arange(6).astype(name)))
    aligned = labels.clone()
    for function in (bt.token_log_probs, bt.cross_entropy):
        assert_same_bits(function(logits, labels), function(logits, aligned))
    labels.copy_(torch.tensor([0, 1, 2, 3, 9, 5]).to(labels.dtype))
    with pytest.raises(ValueError, match="labels"):
        bt.cross_entropy(logits, labels)


def test_seeds(draw: Any) -> None:
    x = draw(4, 5)
    seed = torch.from_numpy(unaligned_array(np.array(2**40 + 3)))
    y = bt.bias_dropout_add(x, p=0.5, seed=seed, offset=seed)
    assert_same_bits(y, bt.bias_dropout_add(x, p=0.5, seed=2**40 + 3, offset=2**40 + 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out(draw: Any, dtype: torch.dtype) -> None:
    x = draw(4, 5, dtype=dtype)
    for function in (bt.rms_norm, bt.scaled_softmax, bt.bias_gelu, bt.log_softmax):
        expected = function(x)
        out = unaligned(x)
        version = out._version
        assert function(x, out=out) is out
        assert_same_bits(out, expected)
        assert out._version > version
        own = unaligned(x)
        assert_same_bits(function(own, out=own), expected)
    own, bias = unaligned(x), draw(5, dtype=dtype)
    assert bt.bias_gelu_(own, bias) is own
    assert_same_bits(own, bt.bias_gelu(x, bias))


def test_logits_that_are_overwritten(draw: Any) -> None:
    x, labels = draw(4, 5), torch.arange(4)
    gradients = []
    for change in (lambda t: t, unaligned):
        leaf = change(x.clone().requires_grad_())
        bt.cross_entropy(leaf, labels).backward()
        gradients.append(leaf.grad)
    assert_same_bits(*gradients)
    leaf = unaligned(x.clone().requires_grad_())
    loss = bt.cross_entropy(leaf, labels, overwrite_logits=True)
    assert_same_bits(torch.autograd.grad(loss, leaf)[0], gradients[0])


def test_transforms(draw: Any) -> None:
    x, t = draw(3, 4, 5), draw(3, 4, 5)
    for function in (bt.rms_norm, bt.scaled_softmax):
        moved = [unaligned(each) for each in (x, t)]
        assert_same_bits(
            torch.func.vmap(torch.func.jvp, (None, 0, 0))(function, (moved[0],), (moved[1],))[1],
            torch.func.vmap(torch.func.jvp, (None, 0, 0))(function, (x,), (t,))[1],
        )
        with forward_ad.dual_level():
            one, other = (
                forward_ad.unpack_dual(function(forward_ad.make_dual(*pair))).tangent
                for pair in ((x, t), moved)
            )
        assert one is not None
        assert other is not None
        assert_same_bits(other, one)
        compiled = torch.compile(function, backend="aot_eager")
        assert_same_bits(compiled(moved[0]), function(x))


def test_what_torch_reads_from_a_file() -> None:
    """Sensors, safetensors and messages have a header of any length before the numbers."""
    values = np.linspace(-2, 2, 24, dtype=np.float32)
    message = bytearray(b"header!" + values.tobytes())
    x = torch.frombuffer(message, dtype=torch.float32, offset=7).view(4, 6)
    assert x.data_ptr() % 4
    y = torch.from_numpy(values).view(4, 6)
    assert_same_bits(bt.layer_norm(x), bt.layer_norm(y))
    assert bits_of(bridge.to_jax(x)) == values.tobytes()
    with pytest.raises(BufferError, match="no multiple of 64 bytes"):
        bridge.to_jax(x, copy=False)
    assert_same_bits(bt.from_jax(lambda x: x * 2)(x), y * 2)


def test_in_jax(rng: np.random.Generator) -> None:
    """NumPy's arrays are arguments of ops and of functions of the other framework."""
    values = rng.standard_normal((4, 6)).astype(np.float32)
    x = unaligned_array(values)
    for function in (bridge.jax.rms_norm, bridge.jax.scaled_softmax, bridge.jax.bias_gelu):
        for f in (function, jax.jit(function)):
            assert bits_of(f(x)) == bits_of(f(values))
        assert bits_of(function(x)) == bits_of(getattr(bt, function.__name__)(bridge.to_torch(x)))
    g = bridge.jax.from_torch(torch.sin)
    for f in (g, jax.jit(g), jax.grad(lambda x: g(x).sum())):
        assert bits_of(f(x)) == bits_of(f(values))
