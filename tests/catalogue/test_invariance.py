"""A row's bits depend on that row alone: the promise of docs/invariance.md for every row op."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bridge.jax
import bridge.torch
from bridge.cli.catalogue import ROW_OPS
from bridge.cli.entries import FIXED, Entry, draw
from tests.frameworks import FRAMEWORKS, bits, numpy_dtype

# The number of different rows, and the shape. Rows exceed a chunk of the column tree, and columns a
# chunk of the row tree. A batch repeats some rows.
ROWS, SHAPE = 131, (131, 1031)
# Functions that are no row ops: they use other rows, an argument's own shape, or the position in
# the whole array.
OTHERS = {
    "attention": "a query sees other rows; tests/attention compares it alone and in a sequence",
    "all_gather": "joins rows of several processes",
    "bias_dropout_add": "a mask is drawn by the place in the whole array",
    "embedding": "its value is a copy, and its gradient a sum over positions",
    "invariant": "a context, with tests of its own",
    "adaptive_avg_pool": "its rows are windows of an image; tests/vision compares images alone",
    "avg_pool": "its rows are windows of an image; tests/vision compares images alone",
    "batch_norm": "its statistics are those of the whole batch; tests/vision has those that run",
    "interpolate": "its rows are axes of an image; tests/vision compares images alone",
    "max_pool": "its rows are windows of an image; tests/vision compares images alone",
    **{
        name: "a product of patches; tests/convolution compares images alone and in a batch"
        for name in (
            *(f"conv{d}d" for d in (1, 2, 3)),
            *(f"conv_transpose{d}d" for d in (1, 2, 3)),
            "conv_general_dilated",
            "conv_transpose",
        )
    },
    "dequantize": "no operands of it are drawn here; tests/catalogue/test_quantization.py",
    "fake_quantize": "blocks need widths of their own; tests/catalogue/test_quantization.py",
    "quantize": "blocks need widths of their own; tests/catalogue/test_quantization.py",
    "linear_divergence": "its matrix products are the framework's own",
    "linear_token_log_probs": "its matrix products are the framework's own",
    "moe_combine": "it reads other rows; tests/choices compares placements",
    "moe_permute": "it moves rows; tests/choices compares placements",
    "moe_router": "its losses are of all rows; tests/choices compares rows alone",
    "replace": "computes nothing",
    "seeded_sample": "draws by a row's offset; tests/choices compares rows alone",
    "top_k": "tests/choices compares rows alone and in a batch",
    "dot_general": "a product; tests/products compares rows alone and in a batch",
    "linear": "a product; tests/products compares rows alone and in a batch",
    "matmul": "a product; tests/products compares rows alone and in a batch",
    "linear_cross_entropy": "its matrix products are the framework's own",
    "make_viewless": "computes nothing",
    "make_viewless_tensor": "computes nothing",
    "scaled_causal_softmax": "what a row sees depends on its place among the queries",
}

each = pytest.mark.parametrize("own", FRAMEWORKS, ids=lambda own: own.name)
every_op = pytest.mark.parametrize("name", ROW_OPS)
DTYPES = ("bfloat16", "float32")


def test_every_public_op_is_here_or_says_why_not() -> None:
    named = {name.partition(" ")[0] for name in ROW_OPS} | {*OTHERS}
    # Functions that write into memory, are a half of another, or repeat another's arithmetic.
    named |= {"bias_gelu_", "scaled_softmax_backward", "glu", "from_torch", "from_jax"}
    named |= {"record"}  # an identity
    for module in (bridge.torch, bridge.jax):
        public = {name for name in module.__all__ if name[0].islower() and name != "nnx"}
        assert public <= named, f"{module.__name__}: {sorted(public - named)}"


def drawn(entry: Entry, dtype: str, rng: Any) -> dict[str, Any]:
    """Returns operands by name, and a cotangent of each result."""
    given = {name: draw(role, SHAPE, numpy_dtype(dtype), rng) for name, role in entry.roles.items()}
    for i, role in enumerate(entry.results):
        of_result = "float32" if role == "per row" else dtype
        given[f"g{i}"] = draw(role, SHAPE, numpy_dtype(of_result), rng)
    return given


def batch_of(entry: Entry, given: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    return {n: array[rows] if entry.has_rows(n) else array for n, array in given.items()}


def of_rows(own: Any, entry: Entry, given: Mapping[str, Any]) -> list[Any]:
    """Returns the bits of the results, and of the gradients of operands with rows."""
    fixed = {name: own.array(given[name]) for name, role in entry.roles.items() if role in FIXED}
    found = []
    for i in range(len(entry.results)):

        def run(*inputs: Any, i: int = i) -> Any:
            results = entry.call(own.ops, fixed | dict(zip(entry.inputs, inputs, strict=True)))
            return results[i] if isinstance(results, tuple) else results

        value, *gradients = own.vjp(run, [given[name] for name in entry.inputs], given[f"g{i}"])
        found.append(value)
        pairs = zip(entry.inputs, gradients, strict=True)
        found += [gradient for name, gradient in pairs if entry.has_rows(name)]
    return [bits(array) for array in found]


def assert_rows(found: list[Any], whole: list[Any], rows: Any) -> None:
    for array, right in zip(found, whole, strict=True):
        np.testing.assert_array_equal(array, right[rows])


@each
@every_op
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_and_in_any_batch(own: Any, name: str, dtype: str, rng: Any) -> None:
    entry = ROW_OPS[name]
    given = drawn(entry, dtype, rng)
    whole = of_rows(own, entry, given)
    sizes = (1, 2, 3, 17, 1000, 4096) if own.name == "torch" else (1, 1000)  # JAX compiles each
    for size in sizes:
        for offset in rng.integers(0, ROWS, 4 if size < 20 else 1):
            rows = (np.arange(size) + offset) % ROWS
            assert_rows(of_rows(own, entry, batch_of(entry, given, rows)), whole, rows)
    rows = rng.permutation(ROWS)
    assert_rows(of_rows(own, entry, batch_of(entry, given, rows)), whole, rows)
    # A row without the batch dimension.
    row = int(rng.integers(0, ROWS))
    assert_rows(of_rows(own, entry, batch_of(entry, given, row)), whole, row)


@every_op
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_and_both_frameworks(name: str, dtype: str, rng: Any) -> None:
    entry = ROW_OPS[name]
    given = drawn(entry, dtype, rng)
    whole = of_rows(FRAMEWORKS[0], entry, given)
    kept = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            assert_rows(of_rows(FRAMEWORKS[0], entry, given), whole, slice(None))
    finally:
        torch.set_num_threads(kept)
    assert_rows(of_rows(FRAMEWORKS[1], entry, given), whole, slice(None))


@every_op
def test_rows_split_over_devices(name: str, rng: Any) -> None:
    entry = ROW_OPS[name]
    rows = np.arange(128)
    given = batch_of(entry, drawn(entry, "float32", rng), rows)
    devices = np.array(jax.devices()[:4])
    if len(devices) < 4:
        pytest.skip("JAX was started with fewer devices")
    run = jax.jit(partial(_results, entry))
    expected = [bits(array) for array in run(given)]
    mesh = Mesh(devices, ("rows",))

    def put(operand: str) -> Any:
        spec = PartitionSpec("rows") if entry.has_rows(operand) else PartitionSpec()
        return jax.device_put(given[operand], NamedSharding(mesh, spec))

    found = run({operand: put(operand) for operand in given})
    for array, right in zip(found, expected, strict=True):
        assert len(array.sharding.device_set) == 4
        np.testing.assert_array_equal(bits(array), right)


def _results(entry: Entry, given: Mapping[str, Any]) -> list[Any]:
    names = [name for name in entry.inputs if entry.has_rows(name)]

    def call(*moved: Any) -> Any:
        results = entry.call(bridge.jax, {**given, **dict(zip(names, moved, strict=True))})
        return results if isinstance(results, tuple) else (results,)

    results, pull = jax.vjp(call, *(given[name] for name in names))
    return [*results, *pull(tuple(given[f"g{i}"] for i in range(len(results))))]


@each
def test_a_row_that_depends_on_its_batch_is_found(own: Any, rng: Any) -> None:
    """The comparison fails for an op that subtracts the mean over the batch."""
    centred = Entry(
        "centred",
        {"x": "full"},
        ("full",),
        lambda ops, p: p["x"] - p["x"].mean(0),
        lambda p: p["x"],
        lambda p: p["x"],
    )
    given = drawn(centred, "float32", rng)
    whole = of_rows(own, centred, given)
    rows = np.arange(17)
    with pytest.raises(AssertionError):
        assert_rows(of_rows(own, centred, batch_of(centred, given, rows)), whole, rows)


def test_gradients_of_weights_depend_on_the_number_of_rows_alone() -> None:
    """They sum over rows, in an order that the number of rows fixes: no promise for parts."""
    torch.manual_seed(0)
    x, weight = torch.randn(300, 64), torch.randn(64, requires_grad=True)
    g = torch.randn(300, 64)
    kept, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = bridge.torch.rms_norm(x, weight)
            found.append(torch.autograd.grad(y, weight, g)[0])
    finally:
        torch.set_num_threads(kept)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    halves = [
        torch.autograd.grad(bridge.torch.rms_norm(x[part], weight), weight, g[part])[0]
        for part in (slice(150), slice(150, None))
    ]
    torch.testing.assert_close(sum(halves), found[0], rtol=1e-5, atol=1e-4)
