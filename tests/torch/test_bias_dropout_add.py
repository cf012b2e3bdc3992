"""bias_dropout_add: its masks, their seeds, and the absence of stored masks."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch.autograd import grad
from torch.func import vmap
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from bridge.catalogue.bias_dropout_add import bias_dropout_add as declared
from bridge.ops import PROGRAM
from bridge.torch import BiasDropoutAdd, bias_dropout_add
from bridge.torch._adapter.kernels import spec_of
from tests.torch.cases import kept
from tests.torch.expected import DTYPES, assert_close, assert_same_bits


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1.0, 0.0, 1e-12])
def test_masks_are_philox(p: float) -> None:
    ones = torch.ones(7, 131)
    for seed, offset in ((0, 0), (1234, 0), (-1, 2**64 - 1), (2**63, 5), (2**64 - 1, -3)):
        y = bias_dropout_add(ones, p=p, seed=seed, offset=offset)
        assert torch.equal(y != 0, kept((7, 131), p, seed, offset % 2**64))
        assert not y.any() or y.max() == np.float32(1.0 / (1.0 - p))


def test_integers_of_every_kind_are_the_same_seed() -> None:
    ones = torch.ones(300)
    expected = bias_dropout_add(ones, seed=77, offset=5)
    kinds = (torch.int8, torch.int16, torch.int32, torch.int64)
    for dtype in (*kinds, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        seed, offset = torch.tensor(77, dtype=dtype), torch.tensor(5, dtype=dtype)
        assert_same_bits(bias_dropout_add(ones, seed=seed, offset=offset), expected)
    assert_same_bits(bias_dropout_add(ones, seed=np.int32(77), offset=np.uint8(5)), expected)
    large = torch.tensor(2**64 - 9, dtype=torch.uint64)
    assert_same_bits(bias_dropout_add(ones, seed=large), bias_dropout_add(ones, seed=-9))


def test_a_seed_tensor_is_read_when_the_kernel_runs() -> None:
    ones, seed = torch.ones(100), torch.tensor(1)
    first = bias_dropout_add(ones, seed=seed)
    seed.fill_(2)
    assert_same_bits(bias_dropout_add(ones, seed=seed), bias_dropout_add(ones, seed=2))
    assert not torch.equal(first, bias_dropout_add(ones, seed=seed))


def test_a_seed_changed_before_the_backward_pass_is_noticed() -> None:
    x, seed = torch.ones(10, requires_grad=True), torch.tensor(1)
    y = bias_dropout_add(x, seed=seed)
    seed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_generators(draw: Any) -> None:
    ones = torch.ones(200)
    torch.manual_seed(5)
    first, second = bias_dropout_add(ones), bias_dropout_add(ones)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert_same_bits(bias_dropout_add(ones), first)
    state = torch.get_rng_state()
    one = torch.Generator().manual_seed(9)
    third = bias_dropout_add(ones, seed=one)
    assert not torch.equal(third, bias_dropout_add(ones, seed=one))
    assert_same_bits(bias_dropout_add(ones, seed=one.manual_seed(9)), third)
    for needs_none in ({"training": False}, {"p": 0.0}):
        assert_same_bits(bias_dropout_add(ones, **needs_none), ones)
    assert torch.equal(torch.get_rng_state(), state)


def test_share_of_kept_elements() -> None:
    """An 8-bit threshold would be off by 0.26 % at p = 0.1; 0.15 % are five deviations here."""
    y = bias_dropout_add(torch.ones(1_000_000), p=0.1, seed=3)
    assert abs((y != 0).double().mean() - 0.9) < 0.0015


@pytest.mark.parametrize("training", [True, False])
def test_mixed_dtypes(draw: Any, training: bool) -> None:
    """The result has the residual's dtype if given, else x's; each gradient its input's dtype."""
    for a in DTYPES:
        for b in DTYPES:
            x, bias = draw(9, 5, dtype=a, grad=True), draw(5, dtype=b, grad=True)
            residual = draw(9, 5, dtype=b, grad=True)
            keep = kept((9, 5), 0.25, 3).double() / 0.75 if training else torch.ones(9, 5)
            total = x.double() + bias.double()
            for inputs, expected in (
                ((x, bias, residual), residual.double() + total * keep),
                ((x, bias), total * keep),
                ((x, None, residual), residual.double() + x.double() * keep),
            ):
                y = bias_dropout_add(*inputs, p=0.25, seed=3, training=training)
                assert y.dtype == (b if len(inputs) == 3 else a)
                assert_close(y, expected, ulps=2)
                g = draw(9, 5, dtype=y.dtype)
                present = [i for i in inputs if i is not None]
                gradients = grad(y, present, g)
                assert [t.dtype for t in gradients] == [i.dtype for i in present]
                exact = grad(expected, present, g.double(), retain_graph=True)
                for one, other in zip(gradients, exact, strict=True):
                    assert_close(one, other, ulps=2)


def test_no_mask_is_kept(draw: Any) -> None:
    """The graph saves one number for 100 × 100 elements; the residual's gradient is g itself."""
    x, bias, residual = draw(100, 100, grad=True), draw(100, grad=True), draw(100, 100, grad=True)
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = bias_dropout_add(x * 1.0, bias, residual, p=0.4, seed=8)
    assert sum(saved) <= 2
    g = draw(100, 100)
    dx, dbias, dresidual = grad(y, (x, bias, residual), g)
    assert dresidual.data_ptr() == g.data_ptr()
    keep = kept((100, 100), 0.4, 8)
    assert torch.equal(dx != 0, keep)
    assert_close(dx, g * keep / 0.6)
    assert_close(dbias, (g * keep / 0.6).sum(0), ulps=16)


def test_only_what_is_needed(draw: Any) -> None:
    x, bias, residual = draw(4, 3), draw(3), draw(4, 3)
    g = draw(4, 3)
    for wanted in range(1, 8):
        leaves = [
            t.detach().requires_grad_(bool(wanted >> i & 1))
            for i, t in enumerate((x, bias, residual))
        ]
        y = bias_dropout_add(*leaves, p=0.4, seed=8)
        gradients = grad(y, [leaf for leaf in leaves if leaf.requires_grad], g)
        keep = kept((4, 3), 0.4, 8).double() / 0.6
        expected = [e for i, e in enumerate((g * keep, (g * keep).sum(0), g)) if wanted >> i & 1]
        for one, other in zip(gradients, expected, strict=True):
            assert_close(one, other)


def test_dropped_elements_are_zero_whatever_they_hold() -> None:
    x = torch.tensor([float("nan"), float("inf"), -1.0, 2.0] * 20)
    y = bias_dropout_add(x, p=0.5, seed=4)
    keep = kept((80,), 0.5, 4)
    assert not y[~keep].any()
    assert torch.equal(y[keep].isfinite(), x[keep].isfinite())


def test_vmap_is_a_loop_over_the_function(draw: Any) -> None:
    x, seeds = draw(3, 4, 5), torch.arange(3)
    same = vmap(lambda x: bias_dropout_add(x, p=0.4, seed=7))(x)
    own = vmap(lambda x, s: bias_dropout_add(x, p=0.4, seed=s))(x, seeds)
    alone = vmap(lambda s: bias_dropout_add(x[0], p=0.4, seed=s))(seeds)
    offsets = vmap(lambda o: bias_dropout_add(x[0], p=0.4, seed=7, offset=o))(seeds.int())
    for i in range(3):
        assert_same_bits(same[i], bias_dropout_add(x[i], p=0.4, seed=7))
        assert_same_bits(own[i], bias_dropout_add(x[i], p=0.4, seed=i))
        assert_same_bits(alone[i], bias_dropout_add(x[0], p=0.4, seed=i))
        assert_same_bits(offsets[i], bias_dropout_add(x[0], p=0.4, seed=7, offset=i))
    grid = torch.arange(6).reshape(3, 2)
    nested = vmap(vmap(lambda x, s: bias_dropout_add(x, p=0.4, seed=s), in_dims=(None, 0)))(x, grid)
    assert_same_bits(nested[2, 1], bias_dropout_add(x[2], p=0.4, seed=5))


def test_randomness_of_vmap() -> None:
    ones = torch.ones(3, 200)
    same = vmap(bias_dropout_add, randomness="same")(ones)
    different = vmap(bias_dropout_add, randomness="different")(ones)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(bias_dropout_add)(ones)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_seed_again(draw: Any, reentrant: bool) -> None:
    x, g = draw(50, 7, grad=True), draw(50, 7)
    y = checkpoint(lambda x: bias_dropout_add(x * 1.0), x, use_reentrant=reentrant)
    y.backward(g)
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_refuses_a_generator(draw: Any, reentrant: bool) -> None:
    """A checkpoint does not restore it: the gradient would belong to another mask."""
    x, generator = draw(50, 7, grad=True), torch.Generator()
    y = checkpoint(lambda x: bias_dropout_add(x * 1.0, seed=generator), x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="bias_dropout_add: seed is a generator"):
        y.sum().backward()


@pytest.mark.usefixtures("fresh_compiler")
def test_seeds_under_compile(draw: Any) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def layer(x: Any, bias: Any, residual: Any, seed: Any) -> Any:
        return bias_dropout_add(x, bias, residual, p=0.3, seed=seed)

    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for rows, seed in ((4, 1), (6, 2), (9, 2**40)):
        x, bias, residual = draw(rows, 3, grad=True), draw(3, grad=True), draw(rows, 3, grad=True)
        tensor = torch.tensor(seed)
        y, expected = compiled(x, bias, residual, tensor), layer(x, bias, residual, seed)
        assert_same_bits(y, expected)
        g = draw(rows, 3)
        pairs = (grad(out, (x, bias, residual), g) for out in (y, expected))
        for one, other in zip(*pairs, strict=True):
            assert_same_bits(one, other)
    assert counter.frame_count == 1
    for seed in (3, 4, -1, 2**63 + 5):
        assert_same_bits(compiled(x, bias, residual, seed), layer(x, bias, residual, seed))
    torch.manual_seed(0)
    y = compiled(x, bias, residual, None)
    torch.manual_seed(0)
    assert_same_bits(y, layer(x, bias, residual, None))


def test_opcheck(draw: Any) -> None:
    x, bias, residual = (draw(*s, dtype=torch.float32, grad=True) for s in ((4, 3), (3,), (4, 3)))
    given = (x, bias, residual, torch.tensor(5), torch.tensor(2))
    params = declared.entry("torch").prepare(*given)
    opcheck(torch.ops.bridge.program.few, given, asdict(params))
    specs = [spec_of(operand) for operand in given]
    wanted = (True, True, False, False, False)
    ((call, _),) = PROGRAM.vjp(given, (None,), (x,), wanted, specs, params)
    opcheck(torch.ops.bridge.program_2.few, call.operands, asdict(call.params))


def test_module(draw: Any) -> None:
    layer = BiasDropoutAdd(0.25)
    x, bias, residual = draw(6, 5), draw(5), draw(6, 5)
    y = layer(x, bias, residual, seed=3)
    assert_same_bits(y, bias_dropout_add(x, bias, residual, p=0.25, seed=3))
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same_bits(clone(x, bias, residual, seed=3), y)
        assert not torch.equal(layer(x), clone(x))  # each call draws a new mask
    assert_close(layer.eval()(x, bias, residual), residual + (x + bias))
    assert repr(layer) == "BiasDropoutAdd(p=0.25)"
    with pytest.raises(ValueError, match=r"p is 1\.5, expected a probability"):
        BiasDropoutAdd(1.5)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (5, 1)])
def test_small_shapes(draw: Any, shape: tuple[int, ...]) -> None:
    x, residual = draw(*shape, grad=True), draw(*shape)
    y = bias_dropout_add(x, None, residual, p=0.4, seed=1)
    g = draw(*shape)
    y.backward(g)
    keep = kept(shape, 0.4, 1).double() / 0.6
    torch.testing.assert_close(y, residual + x * keep)
    torch.testing.assert_close(x.grad, g * keep)
    if shape:
        bias = draw(shape[-1], grad=True)
        bias_dropout_add(x, bias, p=0.4, seed=1).backward(g)
        torch.testing.assert_close(
            bias.grad, (g * keep).sum(tuple(range(len(shape) - 1))) if len(shape) > 1 else g * keep
        )


F32 = torch.ones(2, 3)
BAD = {
    "x": ({"x": np.ones(3)}, TypeError, "x has type ndarray, expected torch.Tensor"),
    "integer x": ({"x": F32.int()}, TypeError, "x has dtype int32, expected one of float16,"),
    "bias": ({"bias": torch.ones(2)}, ValueError, "bias has shape [2], expected [3]: x has"),
    "residual": (
        {"residual": torch.ones(3)},
        ValueError,
        "residual has shape [3], expected [2, 3]: x has shape [2, 3]",
    ),
    "p above one": ({"p": 1.5}, ValueError, "p is 1.5, expected a probability, from 0 to 1"),
    "p in evaluation": ({"p": -1, "training": False}, ValueError, "p is -1.0, expected a"),
    "p a string": ({"p": "0.5"}, TypeError, "p has type str, expected a number"),
    "p a truth": ({"p": True}, TypeError, "p has type bool, expected a number"),
    "seed a float": ({"seed": 1.0}, TypeError, "seed has type float, expected an integer"),
    "seed a truth": ({"seed": True}, TypeError, "seed has type bool, expected an integer"),
    "seed too large": (
        {"seed": 2**64},
        ValueError,
        "seed is 18446744073709551616, expected an integer from -2**63 to 2**64 - 1",
    ),
    "float seed": (
        {"seed": torch.tensor(1.0)},
        TypeError,
        "seed has dtype float32, expected an integer dtype",
    ),
    "bool seed": ({"seed": torch.tensor(True)}, TypeError, "seed has dtype bool, expected an"),
    "seeds": (
        {"seed": torch.arange(2)},
        ValueError,
        "seed has shape [2], expected a 0-dimensional array",
    ),
    "seed elsewhere": (
        {"seed": torch.tensor(1, device="meta")},
        ValueError,
        "seed is on meta, expected cpu, where x is",
    ),
    "offset": ({"offset": None}, TypeError, "offset has type NoneType, expected an integer"),
    "generator as offset": (
        {"offset": torch.Generator()},
        TypeError,
        "offset has type Generator, expected an integer",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(what: str) -> None:
    wrong, error, message = BAD[what]
    bias_dropout_add(F32, p=0.5, seed=1)
    for _ in range(2):  # the second call uses the cached plan
        with pytest.raises(error, match=re.escape(f"bias_dropout_add: {message}")):
            bias_dropout_add(**{"x": F32, "p": 0.5, "seed": 1, **wrong})


def test_devices_that_differ() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
        y = bias_dropout_add(x, seed=3, p=0.2)
        assert (y.shape, y.device.type) == (x.shape, "cuda")
        message = "bias_dropout_add: seed is on cpu, expected cuda:0, where x is"
        with pytest.raises(ValueError, match=message):
            bias_dropout_add(x, seed=torch.tensor(3))
        with pytest.raises(ValueError, match="seed is a generator on cpu, expected cuda:0, where"):
            bias_dropout_add(x, seed=torch.Generator())
