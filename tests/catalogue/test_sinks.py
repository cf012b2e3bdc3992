"""The sink of the softmax functions, against long double with one more column; the drop-ins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax
import bridge.torch
from bridge.torch.megatron import FusedScaleMaskSoftmax, SoftmaxOne
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, Torch, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
SHAPES = [(2, 3, 5, 7), (3, 4, 64), (1, 2, 3, 1), (2, 3, 1300), (2, 2, 0, 4), (2, 2, 3, 0)]


@dataclass(frozen=True)
class Kind:
    """One of the functions, with a mask if it takes one; `hidden` returns the hidden elements."""

    name: str
    hidden: Callable[[tuple[int, ...]], Any]

    def __str__(self) -> str:
        return self.name

    def of(self, own: Any, shape: tuple[int, ...], scale: float) -> Callable[..., Any]:
        """Returns the function of a sink and of x with this shape."""
        function = getattr(own.ops, self.name)
        if self.name != "scaled_masked_softmax":
            return lambda x, sink: function(x, scale, sink=sink)
        mask = own.array(mask_of(shape))
        return lambda x, sink: function(x, mask, scale, sink=sink)


def mask_of(shape: tuple[int, ...]) -> Any:
    """Returns a mask for all heads; its first row is hidden as a whole."""
    mask = np.random.default_rng(0).random((1, *shape[-2:])) < 0.4
    mask[:, :1] = True
    return mask


KINDS = [
    Kind("scaled_softmax", lambda shape: np.zeros(shape, bool)),
    Kind("scaled_masked_softmax", lambda shape: np.broadcast_to(mask_of(shape), shape)),
    Kind(
        "scaled_causal_softmax",
        lambda shape: (
            ~np.broadcast_to(np.tri(*shape[-2:], shape[-1] - shape[-2], dtype=bool), shape)
        ),
    ),
]
every = pytest.mark.parametrize("kind", KINDS, ids=str)


def reference(x: Any, sink: Any, scale: float, hidden: Any) -> Any:
    """Returns the softmax with one more column, in long double; hidden elements are 0."""
    with np.errstate(all="ignore"):
        s = np.where(hidden, -np.inf, np.longdouble(scale) * np.asarray(x, np.longdouble))
        one = np.broadcast_to(np.asarray(sink, np.longdouble), (*s.shape[:-1], 1))
        wide = np.concatenate([s, one], -1)
        largest = wide.max(-1, keepdims=True)
        powers = np.exp(wide - np.where(largest == -np.inf, 0, largest))
        total = powers.sum(-1, keepdims=True)
        y = np.where(total == 0, 0, powers / total)
    y[..., :-1][hidden] = 0
    return y


def draw(rng: np.random.Generator, shape: Any, dtype: str, size: float = 4.0) -> Any:
    return (rng.normal(size=shape) * size).astype(numpy_dtype(dtype))


def of_heads(sink: Any) -> Any:
    return np.asarray(sink)[:, None, None]


def assert_units(found: Any, expected: Any, units: float) -> None:
    """Compares within `units` units in the last place of each expected number."""
    dtype = "bfloat16" if found.dtype == numpy_dtype("bfloat16") else found.dtype.name
    least = {"float16": -14, "float64": -1022}.get(dtype, -126)
    with np.errstate(divide="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(expected))), least)
    unit = np.exp2(exponent) * EPSILON[dtype]
    error = np.abs(found.astype(np.longdouble) - expected)
    assert np.max(error / unit, initial=0) <= units


@each
@pytest.mark.parametrize(("kind", "scale"), [*zip(KINDS, (1.0, -2.0, 0.3), strict=True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, kind: Kind, scale: float, shape: Any, dtype: str, rng: Any
) -> None:
    x, g, sink = draw(rng, shape, dtype), draw(rng, shape, dtype), draw(rng, shape[-3], dtype)
    y, dx, dsink = own.vjp(kind.of(own, shape, scale), [x, sink], g)
    assert (y.dtype, dx.dtype, dsink.dtype) == (x.dtype, x.dtype, sink.dtype)
    assert dsink.shape == sink.shape
    hidden = kind.hidden(shape)
    expected = reference(x, of_heads(sink), scale, hidden)
    own_y, share = expected[..., :-1], expected[..., -1]
    assert not y[hidden].any()
    assert not dx[hidden].any()
    assert_units(y, own_y, 0.51 if dtype in ("float16", "bfloat16") else 6)
    wide_g = g.astype(np.longdouble)
    mean = (wide_g * own_y).sum(-1)
    unit = EPSILON["float64" if dtype == "float64" else "float32"]
    size = abs(scale) * own_y * (abs(wide_g) + (abs(wide_g) * own_y).sum(-1, keepdims=True))
    error = np.abs(dx - scale * own_y * (wide_g - mean[..., None]))
    assert np.all(error <= EPSILON[dtype] * np.abs(dx.astype(float)) + 16 * unit * size + 1e-7)
    others = tuple(i for i in range(mean.ndim) if i != mean.ndim - 2)
    error = np.abs(dsink + (share * mean).sum(others))
    size = (share * (abs(wide_g) * own_y).sum(-1)).sum(others)
    assert np.all(error <= EPSILON[dtype] * np.abs(dsink.astype(float)) + 16 * unit * size + 1e-7)


@every
@pytest.mark.parametrize(
    "dtypes",
    [*((dtype, dtype) for dtype in DTYPES), ("bfloat16", "float32"), ("float32", "float64")],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 2, 3, 1100)], ids=str)
def test_same_bits_in_both_frameworks(kind: Kind, dtypes: Any, shape: Any, rng: Any) -> None:
    """The bits agree to the second order, also in forward mode."""
    shapes = (shape, (shape[-3],))
    arguments, tangents, directions = (
        [draw(rng, *each) for each in zip(shapes, dtypes, strict=True)] for _ in range(3)
    )
    g = draw(rng, shape, dtypes[0])
    found = [
        own.everything(kind.of(own, shape, 0.3), arguments, g, tangents, directions).arrays()
        for own in FRAMEWORKS
    ]
    assert found[0][0].dtype == arguments[0].dtype
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(bits(ours), bits(theirs))


@each
@pytest.mark.parametrize("size", [0.1, 30.0, 1e5])
def test_accurate_for_scores_and_sinks_of_any_size(own: Any, size: float, rng: Any) -> None:
    """The rounding of an exponent is never visible, also for small scores beside large ones."""
    for scale in (1.0, 0.1118, 3.7):
        x = draw(rng, (40, 3, 2, 50), "float32", size) + np.float32(size)
        sink = ((draw(rng, 3, "float32", 2) + size) * scale).astype(np.float32)
        y = own.call(partial(own.ops.scaled_softmax, scale=scale, sink=own.array(sink)), x)
        expected = reference(x, of_heads(sink), scale, np.zeros(x.shape, bool))[..., :-1]
        assert_units(y, expected, 6)


@each
@every
@pytest.mark.parametrize("scale", [0.7, -1.0])
def test_tangents_have_no_rounding_of_what_cancels(
    own: Any, kind: Kind, scale: float, rng: Any
) -> None:
    """The sink takes nearly all, and one tangent dwarfs the others, whose digits must survive."""
    x, t = draw(rng, (1, 2, 6, 6), "float32", 1), draw(rng, (1, 2, 6, 6), "float32", 1)
    sink, t_sink = np.float32([15, 20]), np.float32([1e-3, -0.5])
    hidden = kind.hidden(x.shape)
    largest = np.argmax(np.where(hidden, -np.inf, scale * x), -1)[..., None]
    np.put_along_axis(t, largest, np.float32(1e4), -1)
    run = kind.of(own, x.shape, scale)
    _, tangent = own.jvp(run, [x, sink], [t, t_sink])
    y = reference(x, of_heads(sink), scale, hidden)
    moved = np.longdouble(scale) * t
    mean = (y[..., :-1] * moved).sum(-1, keepdims=True) + y[..., -1:] * of_heads(t_sink)
    expected = y[..., :-1] * (moved - mean)
    size = y[..., :-1] * (np.abs(moved) + np.abs(mean) + 1)
    assert np.max(np.abs(tangent - expected) / np.where(hidden, 1, size)) < 1e-6


@each
def test_zero_is_off_by_one_and_minus_infinity_is_no_sink(own: Any, rng: Any) -> None:
    x = draw(rng, (2, 3, 4, 9), "float32")
    off_by_one = np.exp(x.astype(float)) / (1 + np.exp(x.astype(float)).sum(-1, keepdims=True))
    assert_units(own.call(lambda x: own.ops.scaled_softmax(x, sink=0.0), x), off_by_one, 6)
    for kind in KINDS:
        y = own.call(partial(kind.of(own, x.shape, 0.7), sink=-math.inf), x)
        expected = reference(x, -np.inf, 0.7, kind.hidden(x.shape))[..., :-1]
        assert_units(y, expected, 6)


@each
@pytest.mark.parametrize("sink", [0.0, 200.0, -3e38, 3e38, -np.inf, np.inf, np.nan])
def test_special_rows(own: Any, sink: float) -> None:
    inf, nan = np.inf, np.nan
    x = np.float32(
        [[0, nan, 1], [-inf, -inf, 3], [inf, 0, 1], [7, 0, -inf], [-inf] * 3, [3e38, 2e38, -3e38]]
    )
    hidden = np.array([[0, 1, 0]] * 5 + [[1, 1, 1]], bool)
    for scale in (1.0, -4.0, 0.1, 0.0, 1e300):
        for mask in (hidden, np.zeros_like(hidden)):
            run = partial(own.ops.scaled_masked_softmax, scale=scale, sink=sink)
            y = own.call(run, x, mask)
            expected = reference(x, np.float32(sink), scale, mask)[..., :-1].astype(np.float32)
            np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-38)
            assert np.all(bits(y)[mask] == 0)


@each
def test_rows_of_nothing_have_no_gradient(own: Any) -> None:
    x, mask = np.full((1, 3, 4), np.nan, np.float32), np.ones((1, 3, 4), bool)
    x[0, 2], mask[0, 2] = -np.inf, False
    g = np.full_like(x, np.inf)
    g[0, 2] = 1
    for sink in (np.float32([0]), np.float32([-np.inf])):
        for found in own.vjp(
            lambda x, s: own.ops.scaled_masked_softmax(x, own.array(mask), sink=s), [x, sink], g
        ):
            assert not found.any()


@each
@pytest.mark.parametrize("scale", [1.0, 0.3, -1.0])
def test_derivatives_stay_finite(own: Any, scale: float, rng: Any) -> None:
    """Derivatives to the second order are finite with hidden NaN, empty rows and extreme sinks."""
    x = draw(rng, (1, 4, 3, 5), "float32")
    mask = np.zeros(x.shape, bool)
    mask[..., 1], mask[:, :, 0] = True, True
    x[mask], x[..., 2] = np.nan, -np.inf * np.sign(scale)
    sink = np.float32([-1000, 1000, 0, -np.inf])
    t, u, g = (draw(rng, x.shape, "float32") for _ in range(3))
    ts = draw(rng, 4, "float32")
    run = partial(own.ops.scaled_masked_softmax, mask=own.array(mask), scale=scale)
    found = own.everything(lambda x, s: run(x, sink=s), [x, sink], g, [t, ts], [u, ts])
    for array in found.arrays():
        assert np.isfinite(array).all()


@each
def test_a_sink_of_any_shape_that_broadcasts(own: Any, rng: Any) -> None:
    x, g = (draw(rng, (2, 3, 4, 5), "float32") for _ in range(2))
    whole = draw(rng, (2, 3, 4, 1), "float32")
    for shape in ((), (1,), (3,), (3, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (4, 1), (2, 3, 4, 1)):
        sink = whole.reshape(-1)[: math.prod(shape)].reshape(shape)
        spread = np.broadcast_to(of_heads(sink) if shape == (3,) else sink, whole.shape)
        y, dx, dsink = own.vjp(lambda x, s: own.ops.scaled_softmax(x, sink=s), [x, sink], g)
        expected = own.vjp(lambda x, s: own.ops.scaled_softmax(x, sink=s), [x, spread.copy()], g)
        np.testing.assert_array_equal(bits(y), bits(expected[0]))
        np.testing.assert_array_equal(bits(dx), bits(expected[1]))
        assert dsink.shape == shape
        axes = tuple(i for i, size in enumerate((1,) * (4 - sink.ndim) + shape) if size == 1)
        axes = (0, 2, 3) if shape == (3,) else axes
        total = expected[2].sum(axes, keepdims=True).reshape(shape)
        np.testing.assert_allclose(dsink, total, rtol=1e-4, atol=1e-5)
    number = own.call(lambda x: own.ops.scaled_softmax(x, sink=0.1), x.astype("bfloat16"))
    same = own.call(
        lambda x, s: own.ops.scaled_softmax(x, sink=s), x.astype("bfloat16"), np.float32([0.1])
    )
    np.testing.assert_array_equal(bits(number), bits(same))  # it is not rounded


def test_gradients_of_a_sink_in_16_bits_are_summed_in_float32() -> None:
    x, sink = np.zeros((600, 1, 2, 3), np.float32), torch.zeros(1, dtype=torch.bfloat16)
    sink.requires_grad_()
    bridge.torch.scaled_softmax(Torch().array(x), sink=sink).sum().backward()
    assert sink.grad is not None
    assert sink.grad.item() == torch.tensor(-1200 * 3 / 16).bfloat16().item()


@each
def test_forward_mode_where_all_logits_are_equal(own: Any) -> None:
    x, sink = np.zeros((1, 2, 3), np.float32), np.zeros(1, np.float32)
    t, ts = np.float32([[[1, 2, 5], [0, 0, 0]]]), np.float32([1])
    _, tangent = own.jvp(lambda x, s: own.ops.scaled_softmax(x, sink=s), [x, sink], [t, ts])
    expected = 0.25 * (t - 0.25 * (t.sum(-1, keepdims=True) + ts))
    np.testing.assert_allclose(tangent, expected, rtol=1e-6)


@every
def test_derivatives_of_second_order_and_forward_mode(kind: Kind) -> None:
    torch.manual_seed(0)
    shapes = ((2, 2, 3, 4), (2,))
    x, sink = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes)
    run = kind.of(Torch(), shapes[0], 0.7)
    assert torch.autograd.gradcheck(run, (x, sink), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x, sink))


@every
def test_transforms(kind: Kind, rng: Any) -> None:
    x, sink, g = (draw(rng, s, "float32") for s in ((4, 2, 6, 8), (2,), (4, 2, 6, 8)))

    in_torch, in_jax = (kind.of(own, x.shape, 0.3) for own in FRAMEWORKS)

    def same(found: Any, expected: Any) -> None:
        np.testing.assert_array_equal(bits(np.asarray(found)), bits(np.asarray(expected)))

    tx, ts = torch.tensor(x), torch.tensor(sink)
    expected = in_torch(tx, ts)
    torch._dynamo.reset()
    same(torch.compile(in_torch, fullgraph=True, backend="aot_eager")(tx, ts), expected)
    same(torch.func.vmap(in_torch, (0, None))(tx, ts), expected)
    same(torch.func.vmap(in_torch, (None, 0))(tx, torch.stack([ts, ts + 1]))[0], expected)
    same(in_torch(tx.mT.contiguous().mT, ts.expand(3, 2)[1]), expected)
    jx, js = jnp.asarray(x), jnp.asarray(sink)
    same(jax.jit(in_jax)(jx, js), expected)
    same(jax.vmap(in_jax, (0, None))(jx, js), expected)
    same(jax.vmap(in_jax, (None, 0))(jx, jnp.stack([js, js + 1]))[0], expected)
    for row in (0, 3):  # each by itself
        same(in_torch(tx[row : row + 1], ts), expected[row : row + 1])
    assert "concatenate" not in str(jax.make_jaxpr(in_jax)(jx, js))

    def both(x: Any, s: Any) -> Any:
        y, pull = jax.vjp(in_jax, x, s)
        return y, *pull(jnp.asarray(g))

    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    for of_x, of_sink in (
        (P("a", "b"), P("b")),
        (P("a", None, "b"), P()),
        (
            P(
                "a",
            ),
            P(),
        ),
    ):
        placed = (
            jax.device_put(jx, NamedSharding(mesh, of_x)),
            jax.device_put(js, NamedSharding(mesh, of_sink)),
        )
        for found, whole in zip(jax.jit(both)(*placed), jax.jit(both)(jx, js), strict=True):
            same(found, whole)


def test_a_compiled_call_takes_other_sizes_and_numbers() -> None:
    torch._dynamo.reset()

    def run(x: Any, scale: float, sink: float) -> Any:
        return bridge.torch.scaled_causal_softmax(x, scale, sink=sink)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for queries, scale in ((3, 0.5), (4, 1.0), (2, 2.0)):
        x = torch.randn(2, queries, 5)
        assert torch.equal(compiled(x, scale, scale), run(x, scale, scale))


def test_a_number_beyond_float32_is_infinite() -> None:
    x = torch.zeros(2, 3)
    assert torch.equal(bridge.torch.scaled_softmax(x, sink=-1e39), bridge.torch.scaled_softmax(x))
    assert bridge.torch.scaled_softmax(x, sink=1e39).isnan().all()
    assert not bridge.torch.scaled_softmax(x.double(), sink=1e39).any()


def test_out() -> None:
    x, sink = torch.randn(2, 3, 8), torch.randn(2)
    expected = bridge.torch.scaled_causal_softmax(x, sink=sink)
    out = torch.empty_like(x)
    assert bridge.torch.scaled_causal_softmax(x, sink=sink, out=out) is out
    assert torch.equal(out, expected)
    bridge.torch.scaled_causal_softmax(x, sink=sink, out=x)
    assert torch.equal(x, expected)


def test_overrides_are_told_of_the_function() -> None:
    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            return function, args, kwargs

    x, sink = torch.zeros(2, 3), torch.zeros(1).as_subclass(Told)
    found = bridge.torch.scaled_softmax(x, 0.5, sink=sink)
    assert found == (bridge.torch.scaled_softmax, (x, 0.5), {"sink": sink, "out": None})


REFUSED: dict[str, Refusal] = {
    "shape": (
        lambda m, a: m.scaled_softmax(a(2, 3, 4, 5), sink=a(4)),
        ValueError,
        r"scaled_softmax: sink has shape \[4\], expected \[3\], one for each head, or one that "
        r"broadcasts to \[2, 3, 4, 1\]: x has shape \[2, 3, 4, 5\]",
    ),
    "no heads": (
        lambda m, a: m.scaled_causal_softmax(a(4, 5), sink=a(4)),
        ValueError,
        r"sink has shape \[4\], expected one that broadcasts to \[4, 1\]",
    ),
    "a column": (
        lambda m, a: m.scaled_softmax(a(3, 4, 5), sink=a(3, 4, 5)),
        ValueError,
        r"sink has shape \[3, 4, 5\], expected \[3\], one for each head",
    ),
    "dtype": (
        lambda m, a: m.scaled_masked_softmax(a(2, 3), a(2, 3) > 0, sink=a(1, dtype="int32")),
        TypeError,
        "scaled_masked_softmax: sink has dtype int32, expected one of float16",
    ),
    "scale": (
        lambda m, a: m.scaled_softmax(a(2, 3), float("nan"), sink=0.0),
        ValueError,
        "scale is nan, expected a finite number",
    ),
    "x": (lambda m, a: m.scaled_causal_softmax(a(3), sink=0.0), ValueError, r"x has shape \[3\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "scaled_")


@pytest.mark.parametrize("module", [bridge.torch, bridge.jax], ids=lambda m: m.__name__)
@pytest.mark.parametrize("sink", ["0", True, 1j, object()], ids=lambda sink: type(sink).__name__)
def test_a_sink_that_is_nothing(module: Any, sink: Any) -> None:
    x = torch.ones(2, 3) if module is bridge.torch else jnp.ones((2, 3))
    with pytest.raises(TypeError, match=f"sink has type {type(sink).__name__}, expected"):
        module.scaled_softmax(x, sink=sink)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_one_is_the_original_in_float64(dtype: str, rng: Any) -> None:
    """`SoftmaxOne` of Megatron-LM's fused_softmax.py, which concatenates."""
    x = Torch().array(draw(rng, (2, 3, 4, 5), dtype))
    learned = torch.nn.Parameter(Torch().array(draw(rng, 3, dtype)))
    for layer in (SoftmaxOne(-1, learned), SoftmaxOne(denominator_offset=learned.detach())):
        y = layer(x)
        assert y.dtype == x.dtype
        expected = reference(
            x.double().numpy(), of_heads(learned.detach().double()), 1.0, np.zeros(x.shape, bool)
        )
        assert_units(Torch().numpy(y), expected[..., :-1], 0.51 if x.element_size() == 2 else 6)
    assert list(dict(SoftmaxOne(-1, learned).named_parameters())) == ["denominator_offset"]
    SoftmaxOne(-1, learned)(x).float().square().sum().backward()
    assert learned.grad is not None
    assert learned.grad.dtype == learned.dtype
    assert torch.equal(SoftmaxOne()(x), bridge.torch.scaled_softmax(x, sink=1.0))
    assert torch.equal(SoftmaxOne(None, torch.tensor([0, 1, 2]))(x)[:, 1], SoftmaxOne()(x)[:, 1])


def test_softmax_one_compiles() -> None:
    layer, x = SoftmaxOne(-1, torch.nn.Parameter(torch.randn(3))), torch.randn(2, 3, 4, 5)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_what_softmax_one_refuses() -> None:
    with pytest.raises(ValueError, match="SoftmaxOne: dim is 1, expected None or -1"):
        SoftmaxOne(1)
    with pytest.raises(ValueError, match=r"SoftmaxOne: denominator_offset has shape \[4\]"):
        SoftmaxOne(-1, torch.zeros(4))(torch.zeros(2, 3, 4, 5))
    with pytest.raises(TypeError, match="SoftmaxOne: denominator_offset has type str"):
        SoftmaxOne(-1, "1")(torch.zeros(2, 3, 4, 5))  # type: ignore[arg-type]


def test_the_module_has_the_bits_of_the_function(rng: Any) -> None:
    x, sink = Torch().array(draw(rng, (2, 3, 4, 6), "bfloat16")), torch.randn(3)
    layer = FusedScaleMaskSoftmax(False, True, "causal", True, None, True, 0.3)
    expected = bridge.torch.scaled_causal_softmax(x, 0.3, sink=sink)
    assert torch.equal(layer(x, None, sink), expected)
