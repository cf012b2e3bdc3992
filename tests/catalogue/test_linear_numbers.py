"""linear_token_log_probs and linear_divergence: float64 references, bits, transforms and memory."""

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

import bridge
import bridge.jax
import bridge.torch
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, EPSILON, FRAMEWORKS, bits, numpy_dtype

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
FORMS = ("log_probs", "kl", "js", "tv")
every = pytest.mark.parametrize("form", FORMS)
BETA, TEMPERATURE, COLUMNS = 0.3, 1.3, 31


def drawn(rng: Any, form: str, dtype: str = "float32", rows: Any = (37,), size: int = 9) -> Any:
    """Returns the floating operands and, for log-probabilities, labels."""
    shapes = [(*rows, size), (COLUMNS, size), (COLUMNS,)]
    if form != "log_probs":
        shapes += [(*rows, 5), (COLUMNS, 5), (COLUMNS,)]
    given = [0.7 * rng.standard_normal(shape) for shape in shapes]
    return [x.astype(numpy_dtype(dtype)) for x in given], rng.integers(0, COLUMNS, rows)


def call(m: Any, form: str, given: Any, labels: Any, **options: Any) -> Any:
    if form == "log_probs":
        hidden, weight, bias = given
        options = {"temperature": TEMPERATURE, **options}
        return m.linear_token_log_probs(hidden, weight, labels, bias=bias, **options)
    p, pw, pb, q, qw, qb = given
    options = {"kind": form, "beta": BETA, "temperature": TEMPERATURE, **options}
    return m.linear_divergence(p, pw, q, qw, p_bias=pb, q_bias=qb, **options)


def exact(form: str, given: Any, labels: Any, dtype: str = "float64") -> list[torch.Tensor]:
    """Returns the results in float64 torch, of logits that are rounded to a dtype."""
    logs = []
    for i in range(0, len(given), 3):
        hidden, weight, bias = given[i : i + 3]
        logits = hidden @ weight.T + bias
        rounding = logits.detach().to(getattr(torch, dtype)).double() - logits.detach()
        logs.append(((logits + rounding) / TEMPERATURE).log_softmax(-1))
    if form == "log_probs":
        (log_p,) = logs
        of_labels = log_p.gather(-1, torch.tensor(labels)[..., None])[..., 0]
        return [of_labels, -(log_p.exp() * log_p).sum(-1)]
    log_p, log_q = logs
    p, q = log_p.exp(), log_q.exp()
    if form == "kl":
        return [(p * (log_p - log_q)).sum(-1)]
    if form == "tv":
        return [0.5 * (p - q).abs().sum(-1)]
    m = (BETA * p + (1 - BETA) * q).log()
    return [(BETA * p * (log_p - m) + (1 - BETA) * q * (log_q - m)).sum(-1)]


def all_of(own: Any, form: str, given: Any, labels: Any, g: Any, **options: Any) -> list[Any]:
    """Returns results, and gradients along one cotangent for each."""

    def run(*a: Any) -> Any:
        found = call(own.ops, form, a, own.array(labels), **options)
        return sum((x * own.array(y)).sum() for x, y in zip(_several(found), g, strict=True))

    def one(i: int, *a: Any) -> Any:
        return _several(call(own.ops, form, a, own.array(labels), **options))[i]

    values = [own.call(partial(one, i), *given) for i in range(len(g))]
    _, *gradients = own.vjp(run, given, np.ones((), g[0].dtype))
    return [*values, *gradients]


def _several(found: Any) -> Any:
    return found if isinstance(found, tuple | list) else (found,)


def _cotangents(rng: Any, form: str, dtype: str, rows: Any) -> list[Any]:
    kind = numpy_dtype("float64" if dtype == "float64" else "float32")
    return [rng.standard_normal(rows).astype(kind) for _ in range(1 + (form == "log_probs"))]


@each
@every
@pytest.mark.sampled(24)
@pytest.mark.parametrize("word", [None, "portable"])
@pytest.mark.parametrize("rows", [(), (3, 11), (700,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(
    own: Any, form: str, word: str | None, rows: Any, dtype: str, rng: Any
) -> None:
    given, labels = drawn(rng, form, dtype, rows)
    g = _cotangents(rng, form, dtype, rows)
    smooth = [torch.tensor(x.astype(float), requires_grad=True) for x in given]
    results = exact(form, smooth, labels, dtype)
    total = sum((x * torch.tensor(y)).sum() for x, y in zip(results, g, strict=True))
    gradients = torch.autograd.grad(total, smooth)  # type: ignore[arg-type]
    found = all_of(own, form, given, labels, g, bits=word, chunk=256)
    unit = EPSILON[dtype]
    for value, right in zip(found, (*results, *gradients), strict=False):
        right = right.detach().numpy()
        off = np.abs(np.asarray(value, float) - right)
        # Gradients of logits are rounded to the operands' dtype.
        assert off.max(initial=0) <= 60 * unit * max(np.abs(right).max(initial=0), 0.3)
    for x, dx in zip(given, found[len(results) :], strict=True):
        assert dx.dtype == x.dtype


@every
@pytest.mark.sampled(8)
@pytest.mark.parametrize("rows", [(0,), (1,), (5, 7), (600,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_the_same_in_both_frameworks_and_for_any_chunk(
    form: str, rows: Any, dtype: str, rng: Any
) -> None:
    given, labels = drawn(rng, form, dtype, rows)
    g = _cotangents(rng, form, dtype, rows)
    made = [
        all_of(own, form, given, labels, g, bits="portable", chunk=chunk)
        for own in FRAMEWORKS
        for chunk in (None, 1)
    ]
    for other in made[1:]:
        for x, y in zip(made[0], other, strict=True):
            np.testing.assert_array_equal(bits(x), bits(y))


@every
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_have_the_bits_of_the_ops_of_logits(form: str, dtype: str, rng: Any) -> None:
    bt = bridge.torch
    given, labels = drawn(rng, form, dtype, (40,))
    tensors, of_labels = [FRAMEWORKS[0].array(x) for x in given], torch.tensor(labels)
    logits = [bt.linear(*tensors[i : i + 3], bits="portable") for i in range(0, len(given), 3)]
    how = {"bits": "portable", "temperature": 1.0}
    found = _several(call(bt, form, tensors, of_labels, **how))
    expected = {
        "log_probs": lambda x: (bt.token_log_probs(x, of_labels), bt.entropy(x)),
        "kl": lambda x, y: (bt.kl_div(x, y),),
        "js": lambda x, y: (bt.js_div(x, y, beta=BETA),),
        "tv": lambda x, y: (bt.tv_distance(x, y),),
    }[form](*logits)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(bits(x.numpy()), bits(y.numpy()))


@every
@pytest.mark.parametrize("word", [None, "portable"])
def test_second_order_and_forward_mode(form: str, word: str | None, rng: Any) -> None:
    given, labels = drawn(rng, form, "float64", (2,), 3)
    given = [x[:4] if len(x) == COLUMNS else x for x in given]
    labels = labels % 4
    smooth = [torch.tensor(x, requires_grad=True) for x in given]
    run = partial(_apart, bridge.torch, form, torch.tensor(labels), word)
    assert torch.autograd.gradcheck(run, smooth, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, smooth)
    with jax.enable_x64(True):
        arrays = tuple(jnp.asarray(x) for x in given)
        in_jax = partial(_apart, bridge.jax, form, labels, word)
        jax.test_util.check_grads(in_jax, arrays, order=2, rtol=1e-5)


def _apart(m: Any, form: str, labels: Any, word: str | None, *given: Any) -> Any:
    return call(m, form, given, labels, bits=word)


@every
@pytest.mark.parametrize("word", [None, "portable"])
def test_transforms_and_compilers(form: str, word: str | None, rng: Any) -> None:
    given, labels = drawn(rng, form, "float32", (3, 300))
    tensors, arrays = [torch.tensor(x) for x in given], [jnp.asarray(x) for x in given]
    of_labels = torch.tensor(labels)
    run = partial(_apart, bridge.torch, form, of_labels, word)
    in_jax = partial(_apart, bridge.jax, form, labels, word)
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(_Module(run), tuple(tensors)).module()
    whole = run(*tensors)
    same, near = _same, partial(_near, rtol=1e-5, atol=1e-5)
    same(compiled(*tensors), whole)
    same(exported(*tensors), whole)
    in_both = same if word else near
    in_both(jax.jit(in_jax)(*arrays), whole)
    # A batch of rows and of labels, and shared layers.
    dims = [0 if i % 3 == 0 else None for i in range(len(given))]

    def of_one(m: Any, labels: Any, *given: Any) -> Any:
        return call(m, form, given, labels, bits=word)

    in_both(torch.func.vmap(partial(of_one, bridge.torch), (0, *dims))(of_labels, *tensors), whole)
    mapped = jax.vmap(partial(of_one, bridge.jax), (0, *dims))
    in_both(jax.jit(mapped)(jnp.asarray(labels), *arrays), whole)

    def step(_: Any, x: Any) -> Any:
        own = [x[1][i // 3] if i % 3 == 0 else arrays[i] for i in range(len(given))]
        return None, of_one(bridge.jax, x[0], *own)

    scanned = jax.lax.scan(step, None, (jnp.asarray(labels), arrays[::3]))[1]
    in_both(scanned, whole)


class _Module(torch.nn.Module):
    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run = run

    def forward(self, *given: Any) -> Any:
        return self.run(*given)


def _same(found: Any, expected: Any) -> None:
    for x, y in zip(_several(found), _several(expected), strict=True):
        np.testing.assert_array_equal(bits(np.asarray(x)), bits(np.asarray(y)))


def _near(found: Any, expected: Any, **tolerance: Any) -> None:
    for x, y in zip(_several(found), _several(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance)


def test_the_op_in_graphs(rng: Any) -> None:
    given, labels = drawn(rng, "log_probs", rows=(300,))
    smooth = [torch.tensor(x, requires_grad=True) for x in given]
    for name in ("rows", "rows_by_torch"):
        op = getattr(torch.ops.bridge, f"linear_token_log_probs_{name}").default
        torch.library.opcheck(op, (*smooth, torch.tensor(labels), 1.5, 256))
    kl = torch.ops.bridge.linear_kl_rows.default
    given, _ = drawn(rng, "kl", rows=(300,))
    torch.library.opcheck(kl, (*[torch.tensor(x, requires_grad=True) for x in given], 1.5, 256))


@each
def test_one_result_alone_has_its_own_gradient(own: Any, rng: Any) -> None:
    """An entropy of infinite logits does not reach the gradient of the log-probability."""
    given, labels = drawn(rng, "log_probs", rows=(4,))
    given[2][5], labels[:] = -np.inf, 2
    for i in (0, 1):
        _, *found = own.vjp(
            lambda *a, i=i: call(own.ops, "log_probs", a, own.array(labels))[i].sum(),
            given,
            np.ones((), np.float32),
        )
        assert all(np.isfinite(np.asarray(dx)).all() for dx in found)


@each
def test_a_teacher_without_gradients(own: Any, rng: Any) -> None:
    given, _ = drawn(rng, "kl", rows=(300,))

    def run(*student: Any) -> Any:
        teacher = [own.array(x) for x in given[:3]]
        return call(own.ops, "kl", (*teacher, *student), None, bits="portable").sum()

    _, *found = own.vjp(run, given[3:], np.ones((), np.float32))
    every_one = own.vjp(
        lambda *a: call(own.ops, "kl", a, None, bits="portable").sum(),
        given,
        np.ones((), np.float32),
    )
    for x, y in zip(found, every_one[4:], strict=True):
        np.testing.assert_array_equal(bits(x), bits(y))


@each
def test_labels_of_all_kinds(own: Any, rng: Any) -> None:
    given, labels = drawn(rng, "log_probs", rows=(6,))
    expected = own.call(lambda *a: call(own.ops, "log_probs", a, own.array(labels))[0], *given)
    for dtype in (np.uint8, np.int16, np.int32):
        narrow = own.array(labels.astype(dtype))
        found = own.call(lambda *a, n=narrow: call(own.ops, "log_probs", a, n)[0], *given)
        np.testing.assert_array_equal(found, expected)


@each
@every
def test_no_features(own: Any, form: str, rng: Any) -> None:
    given, labels = drawn(rng, form, rows=(3,), size=0)
    given = [x[..., :0] if x.shape[-1] == 5 else x for x in given]
    g = _cotangents(rng, form, "float32", (3,))
    for word in (None, "portable"):
        value, *_, bias = all_of(own, form, given, labels, g, bits=word)
        assert np.isfinite(value).all()
        assert np.isfinite(bias).all()


def test_labels_out_of_range_give_nan_where_they_are_not_seen(rng: Any) -> None:
    given, labels = drawn(rng, "log_probs", rows=(4,))
    labels[1:3] = -1, COLUMNS
    for word in (None, "portable"):
        run = jax.jit(partial(call, bridge.jax, "log_probs", bits=word))
        found, h = run([jnp.asarray(x) for x in given], jnp.asarray(labels))
        np.testing.assert_array_equal(np.isnan(found), [False, True, True, False])
        assert np.isfinite(h).all()


def test_autocast(rng: Any) -> None:
    given, labels = drawn(rng, "log_probs", rows=(6,))
    tensors, of_labels = [torch.tensor(x) for x in given], torch.tensor(labels)
    expected = call(bridge.torch, "log_probs", [x.bfloat16() for x in tensors], of_labels)
    with torch.autocast("cpu", torch.bfloat16):
        _same(call(bridge.torch, "log_probs", tensors, of_labels), expected)


def test_the_backward_pass_stores_the_operands_alone(rng: Any) -> None:
    given, labels = drawn(rng, "log_probs", rows=(600,))
    smooth = [torch.tensor(x, requires_grad=True) for x in given]
    stored: list[torch.Tensor] = []

    def store(x: torch.Tensor) -> torch.Tensor:
        stored.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        call(bridge.torch, "log_probs", smooth, torch.tensor(labels))
    assert max(x.numel() for x in stored) == given[0].size


_MEMORY = """
import sys
import numpy as np
name, form, word = sys.argv[1:]
rows, features, columns = 3072, 16, 32000
rng = np.random.default_rng(0)
given = [rng.normal(size=(n, features)).astype("float32") for n in (rows, columns) * 2]
labels = rng.integers(0, columns, rows)

def run_plain(h, w, q, qw):
    logits = h @ w.T
    if form == "kl":
        return b.kl_div(logits, q @ qw.T).sum()
    return (b.token_log_probs(logits, labels) + b.entropy(logits)).sum()

def run_chunks(h, w, q, qw):
    bits = None if word == "chunks" else word
    if form == "kl":
        return b.linear_divergence(h, w, q, qw, bits=bits).sum()
    log_probs, entropy = b.linear_token_log_probs(h, w, labels, bits=bits)
    return (log_probs + entropy).sum()

run = run_plain if word == "plain" else run_chunks
count = 4 if form == "kl" else 2
if name == "torch":
    import torch, bridge.torch as b
    from tools.bench.in_torch import _peak_cpu
    smooth = [torch.tensor(x).requires_grad_() for x in given]
    labels = torch.tensor(labels)
    print(_peak_cpu(lambda: torch.autograd.grad(run(*smooth), smooth[:count])))
else:
    import jax, jax.numpy as jnp, bridge.jax as b
    arrays, labels = [jnp.asarray(x) for x in given], jnp.asarray(labels)
    made = jax.jit(jax.grad(run, tuple(range(count)))).lower(*arrays).compile()
    print(made.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.processes
@pytest.mark.parametrize("form", ["log_probs", "kl"])
def test_memory_is_a_fifth_of_the_plain_form(form: str) -> None:
    """Counts allocated bytes at 32,000 columns, in the forward and the backward pass."""
    for name in ("torch", "jax"):
        used = {}
        for word in ("plain", "chunks", "portable"):
            given = [sys.executable, "-c", _MEMORY, name, form, word]
            made = subprocess.run(given, capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
            used[word] = float(made.stdout)
        assert used["plain"] > 2 * 3072 * 32000 * 4 * 0.9, (name, used)
        for word in ("chunks", "portable"):
            assert used[word] < used["plain"] / 5, (name, used)


def _log_probs(m: Any, a: Any, **changed: Any) -> Any:
    given = {"hidden": a(2, 3), "weight": a(5, 3), "labels": a(2, dtype="int32"), **changed}
    return m.linear_token_log_probs(**given)


def _divergence(m: Any, a: Any, **changed: Any) -> Any:
    given = {"p_hidden": a(2, 3), "p_weight": a(5, 3), "q_hidden": a(2, 4), "q_weight": a(5, 4)}
    return m.linear_divergence(**{**given, **changed})


REFUSED: dict[str, Refusal] = {
    "weight": (
        lambda m, a: _log_probs(m, a, weight=a(5, 4)),
        ValueError,
        r"linear_token_log_probs: weight has shape \[5, 4\], expected \[columns, 3\]",
    ),
    "labels": (
        lambda m, a: _log_probs(m, a, labels=a(3, dtype="int32")),
        ValueError,
        r"labels has shape \[3\], expected \[2\]",
    ),
    "floating labels": (
        lambda m, a: _log_probs(m, a, labels=a(2)),
        TypeError,
        "labels has dtype float32, expected one of",
    ),
    "label": (
        lambda m, a: _log_probs(m, a, labels=9 * a(2, dtype="int32")),
        ValueError,
        "labels has 9, expected numbers of columns, from 0 to 4",
    ),
    "bias": (
        lambda m, a: _log_probs(m, a, bias=a(4)),
        ValueError,
        r"bias has shape \[4\], expected \[5\]",
    ),
    "dtypes": (
        lambda m, a: _log_probs(m, a, weight=a(5, 3, dtype="bfloat16")),
        TypeError,
        "weight has dtype bfloat16, expected float32, that of hidden",
    ),
    "temperature": (
        lambda m, a: _log_probs(m, a, temperature=0.0),
        ValueError,
        "temperature is 0.0, expected a number from",
    ),
    "chunk": (lambda m, a: _log_probs(m, a, chunk=0), ValueError, "chunk is 0"),
    "bits": (
        lambda m, a: _log_probs(m, a, bits="device"),
        ValueError,
        "bits is 'device', expected",
    ),
    "kind": (
        lambda m, a: _divergence(m, a, kind="chi"),
        ValueError,
        "linear_divergence: kind is 'chi', expected one of",
    ),
    "beta": (lambda m, a: _divergence(m, a, beta=0), ValueError, "beta is 0.0, expected a number"),
    "rows": (
        lambda m, a: _divergence(m, a, q_hidden=a(3, 4)),
        ValueError,
        r"q_hidden has shape \[3, 4\], expected \[2, 4\]: the rows of p_hidden",
    ),
    "columns": (
        lambda m, a: _divergence(m, a, q_weight=a(6, 4)),
        ValueError,
        r"q_weight has shape \[6, 4\], expected \[5, 4\]: the columns of p_weight",
    ),
    "q_weight": (
        lambda m, a: _divergence(m, a, q_weight=a(5, 3)),
        ValueError,
        r"q_weight has shape \[5, 3\], expected \[columns, 4\]",
    ),
    "q_bias": (
        lambda m, a: _divergence(m, a, q_bias=a(3)),
        ValueError,
        r"q_bias has shape \[3\], expected \[5\]",
    ),
    "dtypes of two": (
        lambda m, a: _divergence(m, a, q_hidden=a(2, 4, dtype="float16")),
        TypeError,
        "q_hidden has dtype float16, expected float32, that of p_hidden",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "linear_")
