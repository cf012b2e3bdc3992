"""batch_norm: against torch's own in float64, in both layouts, with both rules of statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bridge.jax
import bridge.torch
from tests.catalogue.formulas import assert_near_and_same_bits, assert_transforms, drawn
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, numpy_dtype
from tests.vision.torch_samples import samples_of

# Shapes with the channels second.
SHAPES = [(4, 3, 5, 7), (33, 2), (2, 4, 3), (1, 2, 3, 2, 2), (17, 1, 9), (300, 3)]


def run(ops: Any, training: bool, x: Any, *a: Any, last: bool = False, **options: Any) -> Any:
    """Calls batch_norm on x `[n, c, ...]`, or `[n, ..., c]` with `last`; returns y alone."""
    given = [*((None, None) if training else ()), *a]
    mean, variance, weight, bias = [*given, *[None] * (4 - len(given))]
    vectors = {"weight": weight, "bias": bias}
    if ops is bridge.jax:
        axis = -1 if last else 1
        found = ops.batch_norm(
            x, mean, variance, **vectors, training=training, eps=1e-3, axis=axis, **options
        )
        return found[0] if training else found
    x = x.movedim(-1, 1) if last else x
    y = ops.batch_norm(x, mean, variance, **vectors, training=training, eps=1e-3, **options)
    return y.movedim(1, -1) if last else y


def training(last: bool) -> Any:
    def call(ops: Any, x: Any, weight: Any = None, bias: Any = None) -> Any:
        return run(ops, True, x, weight, bias, last=last)

    return call


def evaluation(last: bool) -> Any:
    def call(ops: Any, x: Any, mean: Any, root: Any, weight: Any = None, bias: Any = None) -> Any:
        # A variance must not be negative, and numbers are drawn with both signs.
        return run(ops, False, x, mean, root * root, weight, bias, last=last)

    return call


def plain(last: bool, is_training: bool) -> Any:
    def formula(x: Any, *a: Any) -> Any:
        x = x.movedim(-1, 1) if last else x
        each = (1, -1, *[1] * (x.ndim - 2))
        dims = [d for d in range(x.ndim) if d != 1]
        mean, variance = x.mean(dims), None
        if is_training:
            variance = ((x - mean.reshape(each)) ** 2).mean(dims)
        else:
            mean, variance, a = a[0], a[1] * a[1], a[2:]
        y = (x - mean.reshape(each)) / torch.sqrt(variance.reshape(each) + 1e-3)
        y = y * a[0].reshape(each) if len(a) > 0 else y
        y = y + a[1].reshape(each) if len(a) > 1 else y
        return y.movedim(1, -1) if last else y

    return formula


def laid(shape: Any, last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if last else tuple(shape)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_training(shape: Any, last: bool, dtype: str, rng: Any) -> None:
    own, c = laid(shape, last), shape[1:2]
    x, weight, bias, g = drawn(rng, (own, c, c, own), dtype)
    for operands in ((x, weight, bias), (x, weight), (x,)):
        formula = plain(last, True)
        assert_near_and_same_bits(training(last), formula, operands, g, units=60.0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_evaluation(shape: Any, last: bool, dtype: str, rng: Any) -> None:
    own, c = laid(shape, last), shape[1:2]
    x, mean, root, weight, bias, g = drawn(rng, (own, c, c, c, c, own), dtype)
    root = np.abs(root) + root.dtype.type(0.5)
    for operands in ((x, mean, root, weight, bias), (x, mean, root)):
        formula = plain(last, False)
        assert_near_and_same_bits(evaluation(last), formula, operands, g, units=90.0)


def test_dtypes_may_differ(rng: Any) -> None:
    """Running statistics do not decide the dtype of the result."""
    x, vector = (a.astype(np.float32) for a in drawn(rng, ((5, 3, 2), (3,)), "float32"))
    for ops, array in ((bridge.torch, torch.tensor), (bridge.jax, jnp.asarray)):
        given = array(x), array(vector), array(vector * vector)
        half = (
            (given[0].to(torch.bfloat16),)
            if ops is bridge.torch
            else (given[0].astype("bfloat16"),)
        )
        y = run(ops, False, *half, *given[1:])
        assert str(y.dtype).removeprefix("torch.") == "bfloat16"
        y = run(ops, False, *half, *given[1:], given[1])
        assert str(y.dtype).removeprefix("torch.") == "float32"


@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (2, 3, 2, 3, 4)], ids=str)
def test_the_layout_changes_no_bit_and_stays(shape: Any, rng: Any) -> None:
    x, g = (torch.from_numpy(a) for a in drawn(rng, (shape, shape), "float32"))
    made = []
    channels_last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    for order in (torch.contiguous_format, channels_last):
        leaf = x.contiguous(memory_format=order).requires_grad_()
        y = bridge.torch.batch_norm(leaf, None, None, training=True)
        assert y.is_contiguous(memory_format=order)
        made.append((y, *torch.autograd.grad(y, leaf, g)))
    strided = x.mT.contiguous().mT
    made.append((bridge.torch.batch_norm(strided, None, None, training=True), made[0][1]))
    for other in made[1:]:
        assert all(map(torch.equal, made[0], other))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads: int, rng: Any) -> None:
    (x,) = (torch.from_numpy(a) for a in drawn(rng, ((9, 3, 40, 41),), "float32"))
    found = bridge.torch.batch_norm(x, None, None, training=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(found, bridge.torch.batch_norm(x, None, None, training=True))
    finally:
        torch.set_num_threads(before)


def test_a_large_mean_loses_no_variance(rng: Any) -> None:
    """E[x²] − E[x]² would have no correct digit."""
    x = (rng.normal(size=(400, 2)) + 3000).astype(np.float32)
    found = np.asarray(bridge.jax.batch_norm(x, training=True)[0])
    right = x.astype(np.float64) - x.astype(np.float64).mean(0)
    right = right / np.sqrt((right * right).mean(0) + 1e-5)
    np.testing.assert_allclose(found, right, atol=1e-3)


@pytest.mark.parametrize("momentum", [0.1, 0.75])
def test_running_statistics(momentum: float, rng: Any) -> None:
    """torch divides by n − 1, Flax by n; momentum weighs the batch in torch, the old in Flax."""
    x, mean, variance = drawn(rng, ((6, 3, 2), (3,), (3,)), "float64")
    x32, mean, variance = (a.astype(np.float32) for a in (x, mean, variance * variance))
    rows = x32.astype(np.float64).transpose(1, 0, 2).reshape(3, -1)
    own = torch.from_numpy(mean.copy()), torch.from_numpy(variance.copy())
    bridge.torch.batch_norm(torch.from_numpy(x32), *own, training=True, momentum=momentum)
    _, *flax = bridge.jax.batch_norm(x32, mean, variance, training=True, momentum=momentum, axis=1)
    for found, keep, less in ((own, 1 - momentum, 1), (flax, momentum, 0)):
        batch = rows.mean(1), rows.var(1, ddof=less)
        for new, old, value in zip(found, (mean, variance), batch, strict=True):
            right = keep * old + (1 - keep) * value
            np.testing.assert_allclose(np.asarray(new), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", [False, True])
def test_derivatives_and_transforms(last: bool) -> None:
    shape = (3, 4, 2) if last else (3, 2, 4)
    assert_transforms(training(last), (shape, (2,), (2,)), (False, False, False))

    def given(ops: Any, x: Any, mean: Any, root: Any, *a: Any) -> Any:
        # One rounding: XLA would contract a product and a sum, under jit alone.
        return run(ops, False, x, mean, abs(root) + 0.5, *a, last=last)

    assert_transforms(given, (shape, (2,), (2,), (2,), (2,)), (False,) * 5)


@pytest.mark.parametrize("last", [False, True])
def test_vmap(last: bool, rng: Any) -> None:
    shape = (3, 4, 2) if last else (3, 2, 4)
    x, weight, g = drawn(rng, ((5, *shape), (5, 2), (5, *shape)), "float32")
    for dims in ((0, 0), (0, None)):
        own = weight if dims[1] == 0 else weight[0]

        def of_torch(x: Any, w: Any, g: Any) -> Any:
            y, pull = torch.func.vjp(lambda x, w: training(last)(bridge.torch, x, w), x, w)
            return y, *pull(g)

        def of_jax(x: Any, w: Any, g: Any) -> Any:
            y, pull = jax.vjp(lambda x, w: training(last)(bridge.jax, x, w), x, w)
            return y, *pull(g)

        tensors = [torch.from_numpy(a) for a in (x, own, g)]
        found = torch.func.vmap(of_torch, (*dims, 0))(*tensors)
        others = jax.vmap(of_jax, (*dims, 0))(x, own, g)
        for i in range(5):
            w = tensors[1][i] if dims[1] == 0 else tensors[1]
            for both, right in zip(
                zip(found, others, strict=True),
                of_torch(tensors[0][i], w, tensors[2][i]),
                strict=True,
            ):
                assert all(np.array_equal(np.asarray(each[i]), right) for each in both)


def test_compiled_training_step(rng: Any) -> None:
    (x,) = (torch.from_numpy(a) for a in drawn(rng, ((4, 3, 5),), "float32"))
    made = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        layer = bridge.torch.BatchNorm1d(3)
        step = wrap(lambda x, layer=layer: layer(x))
        leaf = x.clone().requires_grad_()
        for _ in range(2):
            y = step(leaf)
            (y * y * y).sum().backward()
        layer.eval()
        made.append((y, leaf.grad, layer.weight.grad, *layer.buffers(), step(leaf)))
    assert all(map(torch.equal, *made))


def test_exported(rng: Any) -> None:
    (x,) = (torch.from_numpy(a) for a in drawn(rng, ((4, 3, 5, 5),), "float32"))
    layer = bridge.torch.BatchNorm2d(3).eval()
    layer.running_mean += 1.0
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), layer(x))

    def scanned(x: Any) -> Any:
        def body(statistics: Any, x: Any) -> Any:
            y, *new = bridge.jax.batch_norm(x, *statistics, training=True, axis=1)
            return tuple(new), y

        return jax.lax.scan(body, (jnp.zeros(3), jnp.ones(3)), x)

    (mean, variance), y = jax.jit(scanned)(jnp.asarray(x.numpy())[None].repeat(2, 0))
    assert np.array_equal(y[0], bridge.torch.batch_norm(x, None, None, training=True))
    assert not np.array_equal(mean, variance)


def test_samples_of_torch() -> None:
    """The samples with which torch tests its own batch_norm."""
    tried = 0
    for sample in samples_of("nn.functional.batch_norm"):
        if sample.input.ndim < 2:  # torch takes images without channels
            continue
        made = []
        for function in (F.batch_norm, bridge.torch.batch_norm):
            given = [a.clone() if isinstance(a, torch.Tensor) else a for a in sample.args]
            found = function(sample.input, *given, **sample.kwargs)
            made.append([found, *(a for a in given if isinstance(a, torch.Tensor))])
        for right, own in zip(*made, strict=True):
            torch.testing.assert_close(own, right, equal_nan=True)
        tried += 1
    assert tried > 5


def test_no_rows_and_no_channels() -> None:
    for shape in ((0, 3, 2), (2, 3, 0), (2, 0, 3)):
        c = shape[1]
        x, mean = torch.ones(shape, requires_grad=True), torch.full((c,), 0.5)
        weight = torch.ones(c, requires_grad=True)
        y = bridge.torch.batch_norm(x, mean, mean.clone(), weight, training=True)
        assert y.shape == shape
        dx, dw = torch.autograd.grad(y.sum(), (x, weight))
        assert dx.shape == shape
        assert torch.equal(dw, torch.zeros(c))
        assert torch.equal(mean, torch.full((c,), 0.5))
        found, *new = bridge.jax.batch_norm(
            jnp.ones(shape), jnp.full(c, 0.5), jnp.full(c, 0.5), training=True, axis=1
        )
        assert found.shape == shape
        assert np.array_equal(new[0], np.full(c, 0.5, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_stay_in_their_channel(value: float, rng: Any) -> None:
    (x,) = drawn(rng, ((4, 3, 5),), "float32")
    x[1, 2, 3] = value
    found = bridge.torch.batch_norm(torch.from_numpy(x), None, None, training=True)
    assert torch.isnan(found[:, 2]).all()
    assert torch.isfinite(found[:, :2]).all()
    equal = bridge.torch.batch_norm(torch.full((4, 3), 7.0), None, None, None, torch.ones(3), True)
    assert torch.equal(equal, torch.ones(4, 3))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_modules_of_torch(momentum: Any, tracks: bool, affine: bool, rng: Any) -> None:
    for name, shape in (
        ("BatchNorm1d", (4, 3)),
        ("BatchNorm2d", (2, 3, 4, 2)),
        ("BatchNorm3d", (2, 3, 2, 2, 2)),
    ):
        options = {"momentum": momentum, "track_running_stats": tracks, "affine": affine}
        theirs = getattr(torch.nn, name)(3, **options)
        ours = getattr(bridge.torch, name)(3, **options)
        ours.load_state_dict(theirs.state_dict())
        for _ in range(3):
            (x,) = (torch.from_numpy(a) for a in drawn(rng, (shape,), "float32"))
            torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_the_module_of_flax(rng: Any) -> None:
    nnx = pytest.importorskip("flax.nnx")
    import bridge.jax.nnx

    options = {"axis": 1, "momentum": 0.8, "use_fast_variance": False}
    theirs = nnx.BatchNorm(3, **options, rngs=nnx.Rngs(0))
    ours = bridge.jax.nnx.BatchNorm(3, **options, rngs=nnx.Rngs(0))
    for _ in range(2):
        (x,) = drawn(rng, ((4, 3, 5),), "float32")
        np.testing.assert_allclose(ours(x), theirs(x), atol=1e-5)
    for one, other in ((ours.mean, theirs.mean), (ours.var, theirs.var)):
        np.testing.assert_allclose(one[...], other[...], atol=1e-6)
    np.testing.assert_allclose(ours(x, True), theirs(x, True), atol=1e-5)
    with pytest.raises(ValueError, match="BatchNorm: mask is given, expected None"):
        ours(x, mask=x > 0)


REFUSED: dict[str, Refusal] = {
    "one dimension": (
        lambda f, a: f(a(8), None, None, training=True),
        ValueError,
        r"input has shape \[8\], expected at least two dimensions",
    ),
    "weight": (
        lambda f, a: f(a(2, 8), None, None, a(3), training=True),
        ValueError,
        r"weight has shape \[3\], expected \[8\]",
    ),
    "running statistics": (
        lambda f, a: f(a(2, 8), a(8), a(8, 1), training=True),
        ValueError,
        r"running_var has shape \[8, 1\], expected \[8\]",
    ),
    "one statistic": (
        lambda f, a: f(a(2, 8), a(8), None, training=True),
        ValueError,
        "running_var is None, expected both running statistics or neither",
    ),
    "no statistics": (
        lambda f, a: f(a(2, 8), None, None),
        ValueError,
        "running_mean is None, expected running statistics unless training",
    ),
    "eps": (
        lambda f, a: f(a(2, 8), None, None, training=True, eps=0.0),
        ValueError,
        r"eps is 0\.0, expected",
    ),
    "momentum": (
        lambda f, a: f(a(2, 8), None, None, training=True, momentum="half"),
        TypeError,
        "momentum has type str, expected a number",
    ),
    "integers": (
        lambda f, a: f(a(2, 8, dtype="int32"), None, None, training=True),
        TypeError,
        "input has dtype int32, expected one of float16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    run, kind, words = REFUSED[case]
    refusal = (lambda module, make: run(module.batch_norm, make), kind, words)
    assert_refused(refusal, "batch_norm: ")


def test_one_value_for_each_channel() -> None:
    with pytest.raises(ValueError, match=r"input has shape \[1, 3\], expected more than one row"):
        bridge.torch.batch_norm(torch.ones(1, 3), None, None, training=True)
    with pytest.raises(ValueError, match="axis is 2, expected -2 to 1"):
        bridge.jax.batch_norm(jnp.ones((2, 3)), training=True, axis=2)


def test_mixed_dtypes(rng: Any) -> None:
    x, weight, bias = drawn(rng, ((3, 4, 5), (4,), (4,)), "float64")
    kinds = ("bfloat16", "float32", "float16")
    operands = [
        a.astype(numpy_dtype(kind)) for a, kind in zip((x, weight, bias), kinds, strict=True)
    ]
    (g,) = drawn(rng, ((3, 4, 5),), "float32")
    assert_near_and_same_bits(training(False), plain(False, True), operands, g, units=60.0)
