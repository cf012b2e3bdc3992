"""linear_cross_entropy: the results of the plain form, in less memory, under every transform."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.utils.checkpoint

import bridge.jax
import bridge.torch
from bridge.ops.linear_losses import chunk_rows
from tests.catalogue.refusals import Refusal, assert_refused
from tests.catalogue.test_cross_entropy import reference
from tests.catalogue.test_log_probs import wide
from tests.frameworks import EPSILON, FRAMEWORKS, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)


@each
@pytest.mark.sampled(24)
@pytest.mark.parametrize("chunk", [None, 1, 20, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_values_and_gradients(
    own: Any, chunk: Any, reduction: str, has_bias: bool, dtype: str, rng: Any
) -> None:
    rows, features, columns = (3, 11), 16, 70
    kind = numpy_dtype(dtype)
    hidden = rng.normal(size=(*rows, features)).astype(kind)
    weight = rng.normal(size=(columns, features)).astype(kind)
    bias = rng.normal(size=columns).astype(kind)
    labels = rng.integers(0, columns, rows)
    labels[1, 3] = -100
    g = rng.normal(size=rows if reduction == "none" else ()).astype(wide(dtype))
    arrays = [hidden, weight, bias][: 2 + has_bias]

    def run(hidden: Any, weight: Any, bias: Any = None) -> Any:
        return own.ops.linear_cross_entropy(
            hidden,
            weight,
            own.array(labels),
            bias=bias,
            chunk=chunk,
            reduction=reduction,
            label_smoothing=0.1,
        )

    value, *gradients = own.vjp(run, arrays, g)
    h, w, b = (np.asarray(a, np.float64) for a in (hidden, weight, bias))
    logits = h @ w.T + (b if has_bias else 0.0)
    expected, d = reference(logits, labels, g, reduction, label_smoothing=0.1)
    wanted = [d @ w, np.einsum("rtc,rtf->cf", d, h), d.sum((0, 1))]
    unit = EPSILON[dtype]
    terms = labels.size if reduction == "sum" else 1
    largest = np.max(np.abs(logits))
    np.testing.assert_allclose(value, expected, rtol=0, atol=4 * unit * largest * terms)
    for found, like, of_it in zip(gradients, arrays, wanted, strict=False):
        assert found.dtype == like.dtype
        np.testing.assert_allclose(
            found.astype(float), of_it, rtol=0, atol=60 * unit * np.max(np.abs(of_it))
        )


# torch.compile itself instantiates torch's class of Functions.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_torchs_transforms(reduction: str) -> None:
    torch.manual_seed(0)
    h, w, b = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((5, 3), (4, 3), (4,))
    )
    labels = torch.tensor([0, 1, 3, -100, 2])

    def f(h: Any, w: Any, b: Any) -> Any:
        return bridge.torch.linear_cross_entropy(
            h, w, labels, bias=b, chunk=2, reduction=reduction, z_loss=0.1
        )

    assert torch.autograd.gradcheck(f, (h, w, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (h, w, b))
    loss = f(h, w, b).sum()
    first = torch.autograd.grad(loss, (h, w), retain_graph=True)
    for a, c in zip(torch.autograd.grad(loss, (h, w)), first, strict=True):
        assert torch.equal(a, c)
    found = torch.func.grad(lambda h: f(h, w, b).sum())(h)
    torch.testing.assert_close(found, first[0])
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(h, w, b).sum(), (h, w))
    torch.testing.assert_close(found, first)


def _gradients(f: Any, *operands: Any, scale: float = 1.0) -> list[Any]:
    given = [operand.detach().clone().requires_grad_() for operand in operands]
    return [g.double() / scale for g in torch.autograd.grad(f(*given) * scale, given)]


def _distance(found: Any, expected: Any) -> float:
    return float((found - expected).norm() / expected.norm())


@each
def test_small_shares_in_float16(own: Any, rng: Any) -> None:
    """A row's share of a mean over many rows underflows in float16, so it is applied at the end."""
    rows, features, columns = 4000, 8, 2000
    hidden = rng.normal(size=(rows, features)).astype(np.float16)
    weight = (0.05 * rng.normal(size=(columns, features))).astype(np.float16)
    labels = rng.integers(0, columns, rows)
    scale = np.float32(2**16)
    _, *found = own.vjp(
        lambda h, w: own.ops.linear_cross_entropy(h, w, own.array(labels)), (hidden, weight), scale
    )
    h, w = hidden.astype(float), weight.astype(float)
    _, d = reference(h @ w.T, labels, np.ones(()), "mean")
    for gradient, expected in zip(found, (d @ w, d.T @ h), strict=True):
        off = np.linalg.norm(gradient.astype(float) / scale - expected)
        assert off < 2e-3 * np.linalg.norm(expected)


def test_float16_sums_that_overflow_where_their_mean_does_not() -> None:
    hidden, weight = torch.full((6000, 4), 20.0).half(), torch.zeros(3, 4).half()
    labels = torch.zeros(6000, dtype=torch.long)
    (found,) = _gradients(lambda w: bridge.torch.linear_cross_entropy(hidden, w, labels), weight)
    torch.testing.assert_close(
        found[0], torch.full((4,), -20.0 * 2 / 3).double(), rtol=1e-3, atol=0
    )


@each
@pytest.mark.parametrize("size", [3000.0, 1.0, 1e-3, 1e-5])
def test_sums_in_float16_of_large_and_of_small_numbers(own: Any, rng: Any, size: float) -> None:
    """They neither overflow before the division nor lose digits of the result."""
    rows, features, columns = 2048, 16, 24
    hidden = (rng.normal(size=(rows, features)) * size).astype(np.float16)
    weight = (rng.normal(size=(columns, features)) / max(size, 1)).astype(np.float16)
    labels = rng.integers(0, columns, rows)
    scale = np.float32(min(1 / size, 2**10))
    _, *found = own.vjp(
        lambda h, w: own.ops.linear_cross_entropy(
            h, w, own.array(labels), reduction="mean", chunk=rows
        ),
        (hidden, weight),
        scale,
    )
    h, w = hidden.astype(float), weight.astype(float)
    _, d = reference(h @ w.T, labels, np.full((), float(scale)), "mean")
    for gradient, expected in zip(found, (d @ w, d.T @ h), strict=True):
        unit = 2.0**-24  # the smallest number of the dtype
        off = np.abs(gradient.astype(float) - expected)
        assert off.max() < 2e-3 * np.abs(expected).max() + unit


@each
def test_float16_gradients_of_large_weights(own: Any) -> None:
    weight = np.full((64, 2), -60000.0, np.float16)
    weight[0] = 60000.0
    labels = own.array(np.zeros(4, np.int64))
    _, found = own.vjp(
        lambda h: own.ops.linear_cross_entropy(h, own.array(weight), labels),
        (np.zeros((4, 2), np.float16),),
        np.float32(1),
    )
    np.testing.assert_allclose(found.astype(float), -60000 * 63 / 64 / 2, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("form", ["mean", "none", "compiled"])
def test_the_weights_gradient_is_summed_in_float32(form: str) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(4096, 16).bfloat16(), torch.randn(32, 16).bfloat16() / 2
    labels = torch.randint(0, 32, (4096,))

    def f(w: Any) -> Any:
        reduction = "none" if form == "none" else "mean"
        options: Any = {"chunk": 32, "reduction": reduction}
        return bridge.torch.linear_cross_entropy(hidden, w, labels, **options).mean()

    torch._dynamo.reset()
    run = torch.compile(f, fullgraph=True, backend="aot_eager") if form == "compiled" else f
    plain = torch.nn.functional.cross_entropy
    (expected,) = _gradients(lambda w: plain(hidden.double() @ w.T, labels), weight.double())
    assert _distance(_gradients(run, weight)[0], expected) < 3e-3


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_other_numbers_of_rows_share_a_graph() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    torch._dynamo.reset()
    run = torch.compile(bridge.torch.linear_cross_entropy, backend=counter, fullgraph=True)
    for rows in range(300, 306):
        run(torch.randn(rows, 64), weight, torch.zeros(rows, dtype=torch.long)).backward()
    assert counter.frame_count == 2


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast(reduction: str) -> None:
    hidden = torch.randn(5, 8, dtype=torch.bfloat16)
    weight, bias = torch.randn(9, 8), torch.randn(9)
    labels = torch.arange(5)

    def own(w: Any, b: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            options: Any = {"bias": b, "reduction": reduction}
            return bridge.torch.linear_cross_entropy(hidden, w, labels, **options).sum()

    def plain(w: Any, b: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            logits = torch.nn.functional.linear(hidden, w, b)
            return bridge.torch.cross_entropy(logits, labels, reduction=reduction).sum()

    assert own(weight, bias) == plain(weight, bias)
    of_both = [_gradients(f, weight, bias) for f in (own, plain)]
    for found, expected in zip(*of_both, strict=True):
        assert _distance(found, expected) < 1e-2


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_backward_pass_under_autocast_has_the_dtype_of_the_forward_pass(reduction: str) -> None:
    """Also if the gradient is differentiated again, for which the logits are computed again."""
    hidden = torch.randn(5, 8, requires_grad=True)
    loss = bridge.torch.linear_cross_entropy(
        hidden, torch.randn(9, 8), torch.arange(5), reduction=reduction
    ).sum()
    (expected,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(loss, hidden, create_graph=True)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_what_autograd_sees(reduction: str) -> None:
    """Autograd frees memory after the backward pass and refuses changes in place.

    An outer checkpoint computes the call again.
    """
    hidden, labels = torch.randn(6, 8), torch.arange(6)

    def f(w: Any) -> Any:
        return bridge.torch.linear_cross_entropy(hidden, w, labels, reduction=reduction).sum()

    weight = torch.randn(9, 8, requires_grad=True)
    loss = f(weight)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    expected = weight.grad
    weight.grad = None
    torch.utils.checkpoint.checkpoint(f, weight, use_reentrant=False).backward()
    assert torch.equal(weight.grad, expected)
    loss = f(weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_that_hidden_was_computed_from(reduction: str) -> None:
    """Gradients are the same when they are differentiated again, and hooks are called once."""
    torch.manual_seed(3)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 4, 2, 0])
    g = torch.randn(4 if reduction == "none" else (), dtype=torch.float64)
    calls = []
    weight.register_hook(lambda gradient: calls.append(None))

    def derivatives(loss: Any) -> list[torch.Tensor]:
        y = loss(weight[torch.arange(4)].tanh(), weight)
        (first,) = torch.autograd.grad(y, weight, g, create_graph=True)
        assert len(calls) == 1
        (second,) = torch.autograd.grad(first.square().sum(), weight)
        calls.clear()
        return [first, second]

    def plain(hidden: Any, weight: Any) -> Any:
        return torch.nn.functional.cross_entropy(hidden @ weight.T, labels, reduction=reduction)

    def ours(hidden: Any, weight: Any) -> Any:
        return bridge.torch.linear_cross_entropy(hidden, weight, labels, reduction=reduction)

    for found, expected in zip(derivatives(ours), derivatives(plain), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_in_batches(reduction: str) -> None:
    hidden = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def loss(hidden: Any, weight: Any) -> Any:
        labels = torch.tensor([1, 2, 3])
        return bridge.torch.linear_cross_entropy(hidden, weight, labels, reduction=reduction)

    given = hidden, weight
    assert torch.autograd.gradcheck(loss, given, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(loss, given, check_batched_grad=True)


def test_torch_func_in_a_graph() -> None:
    torch._dynamo.reset()
    weight, labels = torch.randn(5, 4), torch.tensor([0, 1, 2])

    def gradient(hidden: Any) -> Any:
        return torch.func.grad(
            lambda h: bridge.torch.linear_cross_entropy(h, weight, labels).square()
        )(hidden)

    hidden = torch.randn(3, 4)
    compiled = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(hidden), gradient(hidden))


@each
def test_no_features(own: Any) -> None:
    none = np.zeros((3, 0), np.float32), np.zeros((5, 0), np.float32)
    labels = own.array(np.zeros(3, np.int32))
    value, dh, _ = own.vjp(
        lambda h, w: own.ops.linear_cross_entropy(h, w, labels), none, np.ones((), np.float32)
    )
    np.testing.assert_allclose(value, np.log(5), rtol=1e-6)
    assert dh.shape == (3, 0)


@pytest.mark.long
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_jaxs_transforms(reduction: str, rng: Any) -> None:
    with jax.enable_x64(True):
        h, w, b = (jnp.asarray(rng.normal(size=shape)) for shape in ((5, 3), (4, 3), (4,)))
        labels = np.array([0, 1, 3, -100, 2])

        def f(h: Any, w: Any, b: Any, chunk: Any = 2) -> Any:
            options: Any = {"reduction": reduction, "z_loss": 0.1, "chunk": chunk}
            return bridge.jax.linear_cross_entropy(h, w, labels, bias=b, **options)

        def plain(h: Any, w: Any, b: Any) -> Any:
            return bridge.jax.cross_entropy(h @ w.T + b, labels, reduction=reduction, z_loss=0.1)

        jax.test_util.check_grads(f, (h, w, b), order=2, rtol=1e-5)
        close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
        batch = jnp.stack([h, 2 * h])
        close(jax.vmap(f, (0, None, None))(batch, w, b)[1], f(2 * h, w, b))

        def step(f: Any, w: Any, h: Any) -> Any:
            return w - jax.grad(lambda w: jnp.sum(f(h, w, b)))(w), None

        close(
            jax.lax.scan(partial(step, f), w, batch)[0],
            jax.lax.scan(partial(step, plain), w, batch)[0],
        )


@each
def test_no_rows(own: Any) -> None:
    none = np.zeros((0, 3), np.float32), np.ones((4, 3), np.float32)
    labels = own.array(np.zeros(0, np.int32))
    value, dh, dw = own.vjp(
        lambda h, w: own.ops.linear_cross_entropy(h, w, labels), none, np.ones((), np.float32)
    )
    assert value == 0.0
    assert dh.shape == (0, 3)
    np.testing.assert_array_equal(dw, np.zeros((4, 3), np.float32))


_MEMORY = """
import sys
import numpy as np

name, form = sys.argv[1:]
rows, features, columns = 2048, 64, 32768
rng = np.random.default_rng(0)
hidden, weight = (rng.normal(size=(n, features)).astype("float32") for n in (rows, columns))
labels = rng.integers(0, columns, rows)

def plain(hidden, weight, labels):
    return b.cross_entropy(hidden @ weight.T, labels)

forms = {
    "plain": plain,
    "chunks": lambda *given: b.linear_cross_entropy(*given),
    "portable": lambda *given: b.linear_cross_entropy(*given, bits="portable"),
}

def megabytes(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

if name == "torch":
    import torch, bridge.torch as b
    hidden, weight = (torch.tensor(each).requires_grad_() for each in (hidden, weight))
    labels = torch.tensor(labels)
    f = forms[form]
    run = lambda *given: torch.autograd.grad(f(*given), given[:2])
else:
    import jax, jax.numpy as jnp, bridge.jax as b
    hidden, weight, labels = map(jnp.asarray, (hidden, weight, labels))
    f = forms[form]
    run = jax.jit(jax.grad(f, (0, 1))).lower(hidden, weight, labels).compile()
    print(run.memory_analysis().temp_size_in_bytes / 2**20)
    sys.exit()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak is that from now on
before = megabytes("VmRSS")
result = run(hidden, weight, labels)
float(result[0][0, 0])
print(megabytes("VmHWM") - before)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak of memory")
def test_memory() -> None:
    """At 32 Ki columns the peak is less than a quarter of the plain form's, in both frameworks.

    By bridge's products it is less than half: logits and their gradient exist at once.
    """
    for name in ("torch", "jax"):
        used = [
            float(
                subprocess.run(
                    [sys.executable, "-c", _MEMORY, name, form],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for form in ("plain", "chunks", "portable")
        ]
        assert used[0] > 200, (name, used)  # megabytes, an array of logits is 256
        assert used[1] < used[0] / 4, (name, used)
        assert used[2] < used[0] / 2, (name, used)


def _call(m: Any, a: Any, **changed: Any) -> Any:
    given = {
        "hidden": a(2, 3),
        "weight": a(5, 3),
        "labels": a(2, dtype="int32"),
        **changed,
    }
    return m.linear_cross_entropy(**given)


REFUSED: dict[str, Refusal] = {
    "weight": (
        lambda m, a: _call(m, a, weight=a(5, 4)),
        ValueError,
        r"weight has shape \[5, 4\], expected \[columns, 3\]",
    ),
    "labels": (
        lambda m, a: _call(m, a, labels=a(3, dtype="int32")),
        ValueError,
        r"labels has shape \[3\], expected \[2\]",
    ),
    "bias": (
        lambda m, a: _call(m, a, bias=a(4)),
        ValueError,
        r"bias has shape \[4\], expected \[5\]",
    ),
    "dtype": (
        lambda m, a: _call(m, a, weight=a(5, 3, dtype="bfloat16")),
        TypeError,
        "weight has dtype bfloat16, expected float32, that of hidden",
    ),
    "bits": (
        lambda m, a: _call(m, a, bits="device"),
        ValueError,
        "bits is 'device', expected one of 'portable'",
    ),
    "chunk": (
        lambda m, a: _call(m, a, chunk=0),
        ValueError,
        "chunk is 0, expected an integer from 1 on",
    ),
    "reduction": (lambda m, a: _call(m, a, reduction=None), ValueError, "reduction is None"),
    "floating labels": (lambda m, a: _call(m, a, labels=a(2)), TypeError, "labels has dtype"),
    "no dimension": (lambda m, a: _call(m, a, hidden=a()), ValueError, "0-dimensional"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "linear_cross_entropy: ")


@pytest.mark.parametrize(
    ("rows", "features", "columns", "expected"),
    [
        (100, 64, 32768, 100),
        (2048, 64, 32768, 256),
        (4096, 64, 32768, 512),
        (4096, 8192, 32768, 1024),  # the memory of hidden
        (5000, 8192, 32768, 2048),
        (0, 64, 32768, 1),
    ],
)
def test_rows_of_a_chunk(rows: int, features: int, columns: int, expected: int) -> None:
    assert chunk_rows(None, rows, features, columns) == expected
    assert chunk_rows(7, rows, features, columns) == min(7, max(rows, 1))
