"""cross_entropy against float64, with every option, in both frameworks with the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.catalogue.test_log_probs import wide
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
SHAPES = [(3, 5), (2, 3, 64), (17, 1000), (7,), (2, 5000), (0, 4), (4, 1)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 1e-2, "softcap": 5.0},
    {"label_smoothing": 1.0, "ignore_index": 0},
]


def drawn(rng: np.random.Generator, shape: Any, dtype: str, ignored: int) -> tuple[Any, Any]:
    """Returns logits, and labels of which a few are ignored."""
    x = (rng.normal(size=shape) * 4).astype(numpy_dtype(dtype))
    labels = rng.integers(0, shape[-1], shape[:-1])
    return x, np.where(rng.random(shape[:-1]) < 0.2, ignored, labels)


def reference(
    x: Any,
    labels: Any,
    g: Any,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> tuple[Any, Any]:
    """Returns the loss and its gradient for the cotangent g, in float64."""
    x = np.asarray(x, np.float64)
    s = x if softcap is None else softcap * np.tanh(x / softcap)
    largest = s.max(-1, keepdims=True)
    lse = np.log(np.exp(s - largest).sum(-1, keepdims=True)) + largest
    is_kept = labels != ignore_index
    target = (1 - label_smoothing) * (np.arange(x.shape[-1]) == labels[..., None])
    target = target + label_smoothing / max(x.shape[-1], 1)
    losses = lse[..., 0] - (target * s).sum(-1) + z_loss * lse[..., 0] ** 2
    losses = np.where(is_kept, losses, 0.0)
    scale = {"mean": 1 / max(is_kept.sum(), 1), "sum": 1.0, "none": 1.0}[reduction]
    slope = 1.0 if softcap is None else 1 - np.tanh(x / softcap) ** 2
    ds = np.exp(s - lse) * (1 + 2 * z_loss * lse) - target
    each_g = np.broadcast_to(np.asarray(g, np.float64) * scale, labels.shape) * is_kept
    total = losses if reduction == "none" else losses.sum() * scale
    return total, ds * slope * each_g[..., None]


@each
@pytest.mark.sampled(60)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, reduction: str, options: Any, shape: Any, dtype: str, rng: Any
) -> None:
    x, labels = drawn(rng, shape, dtype, options.get("ignore_index", -100))
    g = rng.normal(size=labels.shape if reduction == "none" else ()).astype(wide(dtype))
    options = {"reduction": reduction, **options}
    expected, gradient = reference(x, labels, g, **options)
    found, dx = own.vjp(lambda x: own.ops.cross_entropy(x, own.array(labels), **options), [x], g)
    assert (found.dtype, dx.dtype) == (wide(dtype), x.dtype)
    unit, rows = EPSILON[wide(dtype)], max(labels.size, 1)
    # The error of a sum is the sum of its rows' errors, each a few units of lse.
    terms = rows if reduction == "sum" else 1
    np.testing.assert_allclose(found, expected, rtol=8 * unit, atol=60 * unit * terms)
    largest = np.max(np.abs(gradient), initial=np.max(np.abs(g), initial=0) / rows)
    tolerance = (EPSILON[dtype] + 60 * unit) * largest
    np.testing.assert_allclose(dx.astype(float), gradient, rtol=0, atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_in_both_and_over_the_logits(dtype: str, reduction: str, rng: Any) -> None:
    x, labels = drawn(rng, (33, 1300), dtype, -100)
    g = rng.normal(size=labels.shape if reduction == "none" else ()).astype(wide(dtype))
    options: Any = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": 1e-3}
    both = [
        own.vjp(
            partial(lambda own, x: own.ops.cross_entropy(x, own.array(labels), **options), own),
            [x],
            g,
        )
        for own in FRAMEWORKS
    ]
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
    own = FRAMEWORKS[0]
    leaf = own.array(x).clone().requires_grad_()
    logits = leaf * 1
    loss = own.ops.cross_entropy(logits, own.array(labels), overwrite_logits=True, **options)
    (dx,) = torch.autograd.grad(loss, leaf, own.array(g))
    np.testing.assert_array_equal(bits(own.numpy(dx)), bits(both[0][1]))
    np.testing.assert_array_equal(bits(own.numpy(logits)), bits(both[0][1]))


def test_overwriting_is_a_change_in_place() -> None:
    """A later reader of the logits gets an error; second order and layouts without rows work."""
    torch.manual_seed(0)
    labels = torch.tensor([0, 2])
    leaf = torch.randn(2, 3, requires_grad=True)
    logits = leaf * 1
    squares = (logits * logits).sum()
    bridge.torch.cross_entropy(logits, labels, overwrite_logits=True).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()
    wide_leaf = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)

    def transposed(x: Any) -> Any:
        return bridge.torch.cross_entropy(x.t() * 1, labels, overwrite_logits=True)

    assert torch.autograd.gradcheck(transposed, (wide_leaf,))
    assert torch.autograd.gradgradcheck(transposed, (wide_leaf,))
    plain = bridge.torch.cross_entropy(wide_leaf.t(), labels)
    (a,) = torch.autograd.grad(plain, wide_leaf)
    (b,) = torch.autograd.grad(
        bridge.torch.cross_entropy((wide_leaf * 1).t(), labels, overwrite_logits=True), wide_leaf
    )
    assert torch.equal(a, b)


def test_what_nothing_is_written_over() -> None:
    """Logits whose rows share memory are not overwritten; recomputed logits of a checkpoint are."""
    labels = torch.tensor([0, 2])
    leaf = torch.randn(1, 3, requires_grad=True)

    def own(x: Any, overwrite: bool = True) -> Any:
        return bridge.torch.cross_entropy(x, labels, overwrite_logits=overwrite)

    (expected,) = torch.autograd.grad(own(leaf.expand(2, 3), False), leaf)
    (found,) = torch.autograd.grad(own(leaf.expand(2, 3)), leaf)
    assert torch.equal(found, expected)
    checkpoint = torch.utils.checkpoint.checkpoint
    again = checkpoint(lambda x: own(x.expand(2, 3) * 1), leaf, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again, leaf)[0], expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_in_batches_overwrite_nothing(reduction: str) -> None:
    labels, leaf = torch.tensor([1, 2]), torch.randn(2, 4, requires_grad=True)
    g = torch.randn(3, *([2] if reduction == "none" else []))
    logits = leaf * 1
    before = logits.detach().clone()

    def batches(overwrite: bool) -> Any:
        loss = bridge.torch.cross_entropy(
            logits, labels, reduction=reduction, overwrite_logits=overwrite
        )

        def pull(g: Any) -> Any:
            return torch.autograd.grad(loss, leaf, g, retain_graph=True)[0]

        old = torch.autograd.grad(loss, leaf, g, is_grads_batched=True, retain_graph=True)[0]
        return torch.stack([old, torch.func.vmap(pull)(g)])

    assert torch.equal(batches(True), batches(False))
    assert torch.equal(logits, before)


@each
def test_exact_cases(own: Any) -> None:
    call = partial(own.call, own.ops.cross_entropy)
    x = np.float32([[1.0, 2.0], [3.0, -np.inf]])
    ignored = np.array([-100, -100])
    for reduction in ("sum", "mean"):
        f = partial(own.ops.cross_entropy, reduction=reduction)
        for rows in (0, 2):
            found = own.call(f, x[:rows], ignored[:rows])
            np.testing.assert_array_equal(bits(found), bits(np.float32(0.0)))
    _, dx = own.vjp(
        lambda x: own.ops.cross_entropy(x, own.array(ignored)), [x], np.ones((), np.float32)
    )
    np.testing.assert_array_equal(dx, np.zeros_like(x))
    np.testing.assert_array_equal(call(np.float32([[5.0], [-7.0]]), np.array([0, 0])), 0.0)
    none = partial(own.ops.cross_entropy, reduction="none")
    found = own.call(none, x[[1, 1, 0]], np.array([0, 1, 1]))
    np.testing.assert_array_equal(found[:2], [0.0, np.inf])
    inf, nan = np.float32([[np.inf, 0.0]]), np.float32([[np.nan, 0.0]])
    assert np.isnan(own.call(none, nan, np.array([1]))).all()
    assert own.call(none, inf, np.array([1])) == np.inf


@each
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_row_that_does_not_count_has_no_gradient_whatever_it_has(own: Any, options: Any) -> None:
    """First and second derivatives of ignored rows are 0, also with infinities and NaN."""
    inf, nan = np.inf, np.nan
    rows = [[inf, 0, 1], [nan, inf, 1], [-inf] * 3, [nan] * 3, [1, -inf, inf], [6e4, -6e4, 0]]
    x, ignored = np.array([*rows, [1, 2, 3]], np.float32), options.get("ignore_index", -100)
    labels = own.array(np.array([ignored] * len(rows) + [1]))

    def loss(x: Any) -> Any:
        return own.ops.cross_entropy(x, labels, reduction="sum", **options)

    found = [own.vjp(loss, [x], np.ones((), np.float32))[1]]
    if own.name == "torch":
        t = torch.tensor(x, requires_grad=True)
        (d,) = torch.autograd.grad(loss(t), t, create_graph=True)
        found.append(torch.autograd.grad(d.square().sum(), t)[0].numpy())
    else:
        slope = jax.grad(loss)
        found.append(np.asarray(jax.jit(jax.grad(lambda x: (slope(x) ** 2).sum()))(jnp.array(x))))
    for each in found:
        np.testing.assert_array_equal(each[:-1], 0)
        assert np.isfinite(each[-1]).all()


@each
def test_an_ignored_row_that_overflows_does_not_reach_the_weight(own: Any, rng: Any) -> None:
    hidden, weight = (rng.normal(size=shape).astype(np.float16) for shape in ((4, 8), (11, 8)))
    hidden[0] = 6e4
    labels = own.array(np.array([-100, 1, 2, 3]))
    *_, dh, dw = own.vjp(
        lambda h, w: own.ops.linear_cross_entropy(h, w, labels),
        [hidden, weight],
        np.ones((), np.float32),
    )
    np.testing.assert_array_equal(dh[0], 0)
    assert np.isfinite(dw.astype(np.float32)).all()


def test_a_label_out_of_range_has_no_gradient() -> None:
    x = jnp.array([[np.inf, 0.0, 1.0], [1.0, 2.0, 3.0]])
    dx = jax.grad(lambda x: jnp.nansum(jax.jit(bridge.jax.token_log_probs)(x, jnp.array([9, 1]))))(
        x
    )
    np.testing.assert_array_equal(dx[0], 0)


def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(rng: Any) -> None:
    x, labels = drawn(rng, (64, 333), "float32", -1)
    none = partial(bridge.torch.cross_entropy, reduction="none", label_smoothing=0.1)
    whole = none(torch.tensor(x), torch.tensor(labels), ignore_index=-1)
    for row in (0, 17, 63):
        alone = none(torch.tensor(x[row]), torch.tensor(labels[row]), ignore_index=-1)
        assert torch.equal(alone, whole[row])


def test_a_label_out_of_range(rng: Any) -> None:
    x, labels = rng.normal(size=(4, 9)).astype("float32"), np.array([0, 9, -100, 8])
    t, j = torch.tensor(x), jnp.asarray(x)
    words = "cross_entropy: labels has 9, expected numbers of columns, from 0 to 8"
    for call in (
        lambda: bridge.torch.cross_entropy(t, torch.tensor(labels)),
        lambda: bridge.jax.cross_entropy(j, labels),
        lambda: bridge.torch.linear_cross_entropy(t, t.new_ones(9, 9), torch.tensor(labels)),
        lambda: bridge.jax.linear_cross_entropy(j, jnp.ones((9, 9)), labels),
    ):
        with pytest.raises(ValueError, match=words.removeprefix("cross_entropy")):
            call()
    torch._dynamo.reset()
    none = partial(bridge.torch.cross_entropy, reduction="none")
    compiled = torch.compile(none, fullgraph=True, backend="aot_eager")
    for found in (
        compiled(t, torch.tensor(labels)).numpy(),
        np.asarray(jax.jit(partial(bridge.jax.cross_entropy, reduction="none"))(j, labels)),
    ):
        np.testing.assert_array_equal(np.isnan(found), [False, True, False, False])
    with pytest.raises(ValueError, match="labels has 0, expected numbers of columns, of which"):
        bridge.torch.cross_entropy(t[:, :0], torch.tensor(labels))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16"])
def test_labels_of_any_dtype_that_lie_apart(dtype: str) -> None:
    x = torch.zeros(3, 9)
    for last, ignored in ((8, -100), (8, 1), (9, -100), (9, 9), (100, 100)):
        labels = torch.tensor([0, 77, 1, 77, last, 77], dtype=getattr(torch, dtype))
        for each in (labels[::2], labels[::2].contiguous()):
            call = partial(bridge.torch.cross_entropy, x, each, ignore_index=ignored)
            if last < 9 or last == ignored:
                assert call().isfinite()
                continue
            with pytest.raises(ValueError, match=f"labels has {last}, expected numbers of columns"):
                call()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_is_one_node_of_the_graph(reduction: str) -> None:
    x = torch.randn(4, 5, requires_grad=True)
    labels = torch.tensor([0, -100, 2, 4])

    def derivatives(loss: torch.Tensor) -> list[torch.Tensor]:
        (g,) = torch.autograd.grad(3 * loss, x, create_graph=True)
        (second,) = torch.autograd.grad((g * g).sum(), x, retain_graph=True)
        (plain,) = torch.autograd.grad(3 * loss, x)
        return [loss, g, second, plain]

    # An equal number that is another object counts as a new one.
    once = float("0.125")
    calls = [
        bridge.torch.cross_entropy(x, labels, reduction=reduction, z_loss=z)
        for z in (once, once, float("0.125"))
    ]
    following = [call.grad_fn.next_functions[0][0] for call in calls]  # type: ignore[union-attr]
    is_one = [type(node).__name__ == "AccumulateGrad" for node in following]
    assert is_one == [False, True, False]
    first, *others = map(derivatives, calls)
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_of_second_order_and_transforms(reduction: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -100, 2])
    f = partial(
        bridge.torch.cross_entropy,
        labels=labels,
        reduction=reduction,
        label_smoothing=0.1,
        z_loss=0.1,
        softcap=2.0,
    )
    assert torch.autograd.gradcheck(f, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (x,))
    several = torch.randn(4, 3, 5)
    looped = torch.stack([f(each) for each in several])
    assert torch.equal(torch.func.vmap(f)(several), looped)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(several[0]), f(several[0]))
    with jax.enable_x64(True):
        found = jax.vmap(
            jax.jit(partial(bridge.jax.cross_entropy, labels=labels.numpy(), reduction=reduction))
        )(jnp.asarray(several.numpy()))
        plain = partial(bridge.torch.cross_entropy, labels=labels, reduction=reduction)
        assert np.array_equal(found, torch.stack([plain(each) for each in several]).numpy())


@each
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(0, 5), (0, 3, 5), (0, 0, 5), (2, 0, 5)], ids=str)
def test_batches_of_nothing(own: Any, shape: Any, reduction: str) -> None:
    x, labels = np.zeros(shape, np.float32), np.zeros(shape[:-1], np.int32)
    vmap, grad = (torch.func.vmap, torch.func.grad) if own.name == "torch" else (jax.vmap, jax.grad)
    arrays, weight = [own.array(x), own.array(labels)], own.array(np.zeros((7, 5), np.float32))

    def linear(x: Any, labels: Any) -> Any:
        return own.ops.linear_cross_entropy(x, weight, labels, reduction=reduction)

    losses = [partial(own.ops.cross_entropy, reduction=reduction)]
    losses += [linear] if len(shape) == 3 else []
    for loss in losses:
        result = labels.shape if reduction == "none" else shape[:1]
        found = own.numpy(vmap(loss)(*arrays))
        assert (found.shape, found.dtype) == (result, "float32")
        dx = own.numpy(vmap(grad(lambda *of, loss=loss: loss(*of).sum()))(*arrays))
        assert (dx.shape, dx.dtype) == (shape, "float32")


@each
@pytest.mark.parametrize("shape", [(0, 3, 0), (2, 3, 0)], ids=str)
def test_labels_of_rows_without_columns_in_vmap(own: Any, shape: Any) -> None:
    """No label is in range; only the caller of vmap knows if there is a row."""
    x, labels = own.array(np.zeros(shape, np.float32)), own.array(np.array([0, 1, 2], np.int32))
    weight = own.array(np.zeros((0, 0), np.float32))
    vmap = torch.func.vmap if own.name == "torch" else jax.vmap
    for function in (
        lambda x: own.ops.cross_entropy(x, labels, reduction="none"),
        lambda x: own.ops.token_log_probs(x, labels),
        lambda x: own.ops.linear_cross_entropy(x, weight, labels, reduction="none"),
    ):
        found = own.numpy(vmap(function)(x))
        np.testing.assert_array_equal(found, np.full(shape[:-1], np.nan, np.float32))
    with pytest.raises(ValueError, match="labels has 0"):
        own.ops.cross_entropy(own.array(np.zeros((3, 0), np.float32)), labels)


UPPER = 2**64 - 100  # -100 if it is read as a signed number


@pytest.mark.parametrize("ignored", [-100, -1, 2**63 - 1])
def test_the_upper_half_of_uint64_is_neither_a_column_nor_ignored(ignored: int) -> None:
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    labels = np.array([1, UPPER, 2**64 - 1], np.uint64)
    words = f"labels has {2**64 - 1}|labels has {UPPER}"
    of = {"reduction": "none", "ignore_index": ignored}
    given = torch.tensor(labels)
    expected = bridge.torch.cross_entropy(x, torch.tensor([1, 0, 0]), reduction="none")[0]
    for call in (
        lambda: bridge.torch.cross_entropy(x, given, **of),
        lambda: bridge.torch.linear_cross_entropy(x, weight, given, **of),
        lambda: bridge.torch.token_log_probs(x, given),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    found = torch.func.vmap(partial(bridge.torch.cross_entropy, **of))(x, given)
    assert torch.equal(found.isnan(), torch.tensor([False, True, True]))
    assert found[0] == expected
    with jax.enable_x64(True):
        jx, jw = jnp.asarray(x.numpy()), jnp.asarray(weight.numpy())
        for given in (labels, jnp.asarray(labels)):
            with pytest.raises(ValueError, match=words):
                bridge.jax.cross_entropy(jx, given, **of)
            with pytest.raises(ValueError, match=words):
                bridge.jax.linear_cross_entropy(jx, jw, given, **of)
        for found in (
            jax.jit(partial(bridge.jax.cross_entropy, **of))(jx, labels),
            jax.jit(partial(bridge.jax.linear_cross_entropy, **of))(jx, jw, labels),
        ):
            np.testing.assert_array_equal(np.isnan(found), [False, True, True])


@pytest.mark.parametrize("ignored", [-(2**40), 2**31, 2**63 - 1])
def test_an_ignore_index_past_what_jax_leaves_of_labels(ignored: int) -> None:
    """It is refused: JAX would change such a label to another number."""
    x, weight, labels = jnp.ones((2, 5)), jnp.ones((7, 5)), np.array([1, ignored])
    words = (
        f"ignore_index is {ignored}, expected an integer from -2147483648 to 2147483647: while jax"
    )
    with pytest.raises(ValueError, match=f"^cross_entropy: {words}"):
        bridge.jax.cross_entropy(x, labels, ignore_index=ignored)
    words = f"labels has {ignored}, expected integers from -2147483648 to 2147483647: while jax"
    with pytest.raises(ValueError, match=f"^linear_cross_entropy: {words}"):
        bridge.jax.linear_cross_entropy(x, weight, labels, ignore_index=ignored)
    with jax.enable_x64(True):
        for found in (
            bridge.jax.cross_entropy(x, labels, ignore_index=ignored),
            bridge.jax.linear_cross_entropy(x, weight, labels, ignore_index=ignored),
        ):
            assert np.isfinite(found)
    if ignored == 2**31:  # uint32 has this number
        for found in (
            bridge.jax.cross_entropy(x, labels.astype(np.uint32), ignore_index=ignored),
            bridge.jax.linear_cross_entropy(
                x, weight, labels.astype(np.uint32), ignore_index=ignored
            ),
        ):
            assert np.isfinite(found)


def test_an_axis_of_vmap_is_no_mesh_axis() -> None:
    x, labels = jnp.ones((4, 2, 3)), jnp.zeros(2, int)
    with pytest.raises(ValueError, match="axis_name is 'i', expected the name of a mesh axis"):
        jax.vmap(lambda x: bridge.jax.cross_entropy(x, labels, axis_name="i"), axis_name="i")(x)


def test_axis_name_and_group_that_are_none() -> None:
    x, labels = jnp.ones((2, 3)), jnp.zeros(2, int)
    with pytest.raises(ValueError, match="axis_name is 'model', expected the name of a mesh axis"):
        bridge.jax.cross_entropy(x, labels, axis_name="model")
    with pytest.raises(TypeError, match="group has type str"):
        bridge.torch.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1]), group="model")


def test_module() -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(4, 7, 5, 3), torch.randint(0, 7, (4, 5, 3))
    for options in ({}, {"reduction": "none"}, {"label_smoothing": 0.2, "ignore_index": 3}):
        own = bridge.torch.CrossEntropyLoss(**options)
        original = torch.nn.CrossEntropyLoss(**options)
        torch.testing.assert_close(own(x, labels), original(x, labels))
        torch.testing.assert_close(
            own(x[:, :, 0, 0], labels[:, 0, 0]), original(x[:, :, 0, 0], labels[:, 0, 0])
        )
        assert own.state_dict() == original.state_dict()
    with pytest.raises(ValueError, match="weight is given, expected None"):
        bridge.torch.CrossEntropyLoss(torch.ones(7))


REFUSED: dict[str, Refusal] = {
    "reduction": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), reduction="average"),
        ValueError,
        "reduction is 'average', expected one of mean, sum, none",
    ),
    "smoothing": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), label_smoothing=1.5),
        ValueError,
        "label_smoothing is 1.5, expected a number from 0 to 1",
    ),
    "z_loss": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), z_loss=float("nan")),
        ValueError,
        "z_loss is nan, expected a number from 0 to 3",
    ),
    "large z_loss": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), z_loss=1e39),
        ValueError,
        r"z_loss is 1e\+39, expected a number from 0 to 3",
    ),
    "softcap": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), softcap=0),
        ValueError,
        r"softcap is 0.0, expected a number from 1.2e-38 to 3.4e\+38 or None",
    ),
    "small softcap": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), softcap=1e-39),
        ValueError,
        "softcap is 1e-39, expected a number from",
    ),
    "wide ignore_index": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), ignore_index=2**63),
        ValueError,
        "ignore_index is 9223372036854775808, expected an integer of 64 bits",
    ),
    "ignore_index": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2, dtype="int32"), ignore_index=1.0),
        TypeError,
        "ignore_index has type float",
    ),
    "floating labels": (
        lambda m, a: m.cross_entropy(a(2, 3), a(2)),
        TypeError,
        "labels has dtype float32, expected one of int8",
    ),
    "shape": (
        lambda m, a: m.cross_entropy(a(2, 3), a(3, dtype="int32")),
        ValueError,
        r"labels has shape \[3\], expected \[2\]",
    ),
    "no dimension": (
        lambda m, a: m.cross_entropy(a(), a(dtype="int32")),
        ValueError,
        "logits is 0-dimensional",
    ),
    "integers": (
        lambda m, a: m.cross_entropy(a(2, 3, dtype="int32"), a(2, dtype="int32")),
        TypeError,
        "logits has dtype int32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "cross_entropy: ")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_second_derivatives_of_certain_rows_have_the_same_zeros(reduction: str, rng: Any) -> None:
    x = (rng.normal(size=(5, 33)) * 1e4).astype(np.float32)
    labels, v = rng.integers(0, 33, 5), rng.normal(size=x.shape).astype(np.float32)
    options = {"reduction": reduction, "z_loss": 1e-3, "label_smoothing": 0.1}

    def loss(x: Any) -> Any:
        return bridge.jax.cross_entropy(x, jnp.asarray(labels), **options)

    expected = bits(np.asarray(jax.vjp(jax.grad(loss), jnp.asarray(x))[1](jnp.asarray(v))[0]))
    assert np.any(expected)
    leaf = torch.tensor(x, requires_grad=True)
    for _ in range(2):  # the first call of an op and later ones are different graphs
        value = bridge.torch.cross_entropy(leaf, torch.tensor(labels), **options)
        (first,) = torch.autograd.grad(value, leaf, create_graph=True)
        (second,) = torch.autograd.grad(first, leaf, torch.tensor(v))
        np.testing.assert_array_equal(bits(second.numpy()), expected)


NUMBERS: dict[str, Any] = {
    "cross_entropy": lambda m, x, n: m.cross_entropy(x, torch.tensor([0, 2]), z_loss=n, softcap=n),
    "log_softmax": lambda m, x, n: m.log_softmax(x, n),
    "logsumexp": lambda m, x, n: m.logsumexp(x, n),
    "rms_norm": lambda m, x, n: m.rms_norm(x, x[0], eps=n, offset=n),
    "layer_norm": lambda m, x, n: m.layer_norm(x, eps=n),
    "glu": lambda m, x, n: m.glu(x, x, activation="relu", limit=n, linear_offset=n),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_change_from_one_compiled_call_to_the_next(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.randn(2, 4)
    compiled = torch.compile(
        lambda x, number: NUMBERS[name](bridge.torch, x, number),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for number in (0.5, 0.25, 0.75):
        assert torch.equal(compiled(x, number), NUMBERS[name](bridge.torch, x, number))


@each
@pytest.mark.parametrize("columns", [2**24 + 1, 2**24 + 3])
def test_the_last_label_of_a_row_longer_than_float32_counts(own: Any, columns: int) -> None:
    """Float32 has no 2^24 + 1, and rounds 2^24 + 3 to another number of columns."""
    x = np.zeros((1, columns), np.float32)
    x[0, -1] = 20.0
    logits, last = own.array(x), own.array(np.array([columns - 1], np.int32))
    expected = np.log(np.exp(20.0) + columns - 1) - 20.0
    assert float(own.ops.cross_entropy(logits, last)) == pytest.approx(expected, rel=1e-5)
    assert float(own.ops.token_log_probs(logits, last)[0]) == pytest.approx(-expected, rel=1e-5)
    with pytest.raises(ValueError, match="expected numbers of columns"):
        own.ops.cross_entropy(logits, last + 1)
