"""The collectives in docs/sharding.md for every op and split dimension, against XLA's programs."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import bridge.jax as bj
from tests.jax.collectives import collectives_of
from tests.jax.test_sharded_jit import assert_same_bits
from tests.jax.test_sharding import make_mesh
from tests.split_forms import (
    COLUMNS,
    CONSTANTS,
    FORMS,
    PARTS,
    ROWS,
    SHAPES,
    Form,
    drawn,
    listed,
    split_dim,
    transfers,
)

LISTED = listed()
# The public functions of a form, by its first word.
STANDS_FOR = {"glu": {"glu", "swiglu", "geglu", "reglu"}}
STANDS_FOR["a softmax"] = {"scaled_softmax", "scaled_masked_softmax", "scaled_causal_softmax"}
# Ops whose splits have tests and pages of their own.
WITH_PAGES = {"attention", "dot_general", "embedding", "linear", "matmul"}
WITH_PAGES |= {"linear_divergence", "linear_token_log_probs", "moe_combine", "moe_permute"}
WITH_PAGES |= {"moe_router", "seeded_sample", "top_k", "conv_general_dilated", "conv_transpose"}
WITH_PAGES |= {"adaptive_avg_pool", "avg_pool", "batch_norm", "interpolate", "max_pool"}
WITH_PAGES |= {"dequantize", "fake_quantize", "quantize"}
# Functions that only move arrays, or read them.
NO_OPS = {"all_gather", "invariant", "make_viewless", "record", "from_torch", "torch_errors"}


def test_the_page_lists_every_op_once() -> None:
    assert set(LISTED) == {(form, dims) for form in FORMS for dims in ("rows", "columns")}
    named = [form.split(",")[0] for form in FORMS]
    listed = set().union(*(STANDS_FOR.get(name, {name}) for name in named))
    assert listed | NO_OPS | WITH_PAGES >= {*bj.__all__}


def placed(mesh: Any, form: Form, dims: str, rng: np.random.Generator) -> list[Any]:
    dim, axis = (0, "data") if dims == "rows" else (-1, "model")
    arrays = []
    for operand in form.operands:
        own = split_dim(operand, dim)
        spec = P() if own is None else P(*[None] * own, axis)
        arrays.append(jax.device_put(drawn(operand, rng), NamedSharding(mesh, spec)))
    return arrays


def gradients(form: Form) -> Any:
    """Returns the result, and gradients of operands that are no constants."""

    def both(g: Any, *operands: Any) -> Any:
        places = [i for i, each in enumerate(form.operands) if each not in CONSTANTS]

        def run(*own: Any) -> Any:
            given = list(operands)
            for place, array in zip(places, own, strict=True):
                given[place] = array
            return form.function(bj, *given)

        y, pull = jax.vjp(run, *[operands[place] for place in places])
        return y, pull(g)

    return both


def assert_sent(cell: str, sent: Counter[tuple[str, int]], form: Form) -> None:
    """Compares the collectives, (name, bytes of the result), with a cell of the table."""
    expected, found = transfers(cell), {name for name, _ in sent}
    assert found == set(expected), (cell, sent)
    number_a_row = math.prod(ROWS) * PARTS * 4
    for name, amounts in expected.items():
        sizes = [size for (own, size), n in sent.items() if own == name for _ in range(n)]
        if name == "all-gather" and amounts:
            assert sorted(sizes) == sorted(n * number_a_row for n in amounts), (cell, sent)
        elif name == "all-reduce" and amounts:
            assert sizes == [amounts[0] * PARTS * COLUMNS * 4], (cell, sent)
        elif name == "collective-permute":
            part = math.prod(SHAPES[form.operands[0]]) * 4 // PARTS
            # The share of a packed bias, one row among many, is small.
            assert amounts[0] <= sum(sizes) / part < amounts[0] + 0.02, (cell, sent)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("dims", ["rows", "columns"])
@pytest.mark.parametrize("name", FORMS)
def test_the_page_says_what_is_sent(name: str, dims: str, rng: np.random.Generator) -> None:
    form, row, mesh = FORMS[name], LISTED[name, dims], make_mesh()
    operands = placed(mesh, form, dims, rng)

    def function(*operands: Any) -> Any:
        return form.function(bj, *operands)

    y = jax.eval_shape(function, *operands)
    spec = P("data") if dims == "rows" else P(None, None, "model")
    g = jnp.asarray(rng.standard_normal(y.shape), y.dtype)
    is_split = y.ndim == 3 or (y.ndim == 2 and dims == "rows")
    g = jax.device_put(g, NamedSharding(mesh, spec if is_split else P()))
    both = jax.jit(gradients(form))
    forward = sent_by(jax.jit(function).lower(*operands).compile())
    compiled = both.lower(g, *operands).compile()
    assert_sent(row.jax_forward, forward, form)
    if name != "linear_cross_entropy":  # XLA computes its products, so bits may differ
        assert_sent(row.jax_backward, sent_by(compiled) - forward, form)
        whole = [np.asarray(operand) for operand in (g, *operands)]
        assert_same_bits(compiled(g, *operands), both(*whole))
    else:
        allowed = {**transfers(row.jax_forward), **transfers(row.jax_backward)}
        assert {name for name, _ in sent_by(compiled)} == set(allowed)


def sent_by(compiled: Any) -> Counter[tuple[str, int]]:
    found = collectives_of(compiled.as_text())
    return Counter((name, size) for name, sizes in found.items() for size in sizes)


def test_an_axis_name_sends_what_split_columns_send(rng: np.random.Generator) -> None:
    form, mesh = FORMS["cross_entropy"], make_mesh()
    operands = placed(mesh, form, "columns", rng)

    def own(*operands: Any) -> Any:
        return bj.cross_entropy(*operands, reduction="none", axis_name="model")

    specs = (P(None, None, "model"), P())
    mapped = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=P()))
    sent = sent_by(mapped.lower(*operands).compile())
    assert_sent(LISTED["cross_entropy", "columns"].jax_forward, sent, form)
