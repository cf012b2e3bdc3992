"""Ops of segments: words for ends that do not fit, NaN where they are traced, and refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import lang as bl
from tests.declared.segments import segment_softmax

MAKERS = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
WRONG = {
    "begins with 1, expected 0": [1, 12],
    "has 4 after 5": [0, 5, 4, 12],
    "ends with 5, expected 12": [0, 5],
    "ends with 13, expected 12": [0, 13],
    r"has shape \[0\]": [],
    r"has shape \[1, 2\]": [[0, 12]],
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("words", WRONG)
def test_ends_that_do_not_fit(words: str, make: Any) -> None:
    ends = np.array(WRONG[words], np.int32)
    with pytest.raises(ValueError, match=f"segment_softmax: cu_seqlens {words}"):
        segment_softmax(make(np.zeros((2, 12), np.float32)), make(ends))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_longest_segment_that_does_not_fit(make: Any) -> None:
    x, ends = make(np.zeros(12, np.float32)), make(np.array([0, 3, 12]))
    with pytest.raises(ValueError, match="segment 1 with 9 tokens, expected at most 7, max_seqlen"):
        segment_softmax(x, ends, max_seqlen=7)
    with pytest.raises(TypeError, match="max_seqlen has type float"):
        segment_softmax(x, ends, max_seqlen=7.0)


@pytest.mark.parametrize("words", list(WRONG)[:4])
def test_traced_ends_that_do_not_fit_give_nan(words: str) -> None:
    x, ends = np.zeros(12, np.float32), np.array(WRONG[words], np.int32)
    assert np.isnan(jax.jit(segment_softmax)(x, ends)).all()
    with torch.device("cpu"):
        y = torch.func.vmap(segment_softmax)(torch.tensor(x)[None], torch.tensor(ends)[None])
    assert y.isnan().all()


def test_a_traced_segment_that_is_too_long_gives_nan() -> None:
    x, ends = np.zeros(12, np.float32), np.array([0, 2, 11, 12])
    y = jax.jit(lambda x, e: segment_softmax(x, e, max_seqlen=7))(x, ends)
    assert np.array_equal(y[:2], [0.5, 0.5])
    assert np.isnan(y[2:11]).all()
    assert y[11] == 1.0


def test_refusals_of_declarations() -> None:
    with pytest.raises(bl.DeclarationError, match="column_sum"):

        @bridge.op
        def f(x: bridge.Full, cu_seqlens: bridge.Segments):
            return bl.column_sum(x)

    with pytest.raises(bl.DeclarationError, match="Halves, which has no segments"):

        @bridge.op
        def g(x: bridge.Halves, cu_seqlens: bridge.Segments):
            return x

    with pytest.raises(bl.DeclarationError, match=r"add an operand .* bridge\.Positions"):

        @bridge.op
        def h(x: bridge.Full, table: bridge.PerPosition):
            return x * table

    with pytest.raises(bl.DeclarationError, match="dropout_keep"):

        @bridge.op
        def k(x: bridge.Full, seed: bl.Integer, cu_seqlens: bridge.Segments):
            return bl.where(bl.dropout_keep(0.5, seed), x, 0.0)


def test_check_asks_for_the_op_of_rows() -> None:
    with pytest.raises(TypeError, match="is an op of segments"):
        bridge.check(segment_softmax, np.zeros(4), np.array([0, 4]), quiet=True)


def test_batches_of_ends_and_compiled_calls() -> None:
    rng = np.random.default_rng(0)
    x, ends = (
        rng.normal(size=(2, 140)).astype(np.float32),
        np.array([[0, 5, 40, 140], [0, 1, 2, 140]]),
    )
    each = np.stack([segment_softmax(a, e) for a, e in zip(x, ends, strict=True)])
    y = torch.func.vmap(segment_softmax)(torch.tensor(x), torch.tensor(ends))
    assert np.array_equal(y, each)
    assert np.array_equal(jax.vmap(segment_softmax)(x, ends), each)
    compiled = torch.compile(segment_softmax.torch, fullgraph=True, backend="aot_eager")
    tensor, g = torch.tensor(x[0], requires_grad=True), torch.tensor(x[1])
    compiled(tensor, torch.tensor(ends[0])).backward(g)
    eager = torch.tensor(x[0], requires_grad=True)
    segment_softmax(eager, torch.tensor(ends[0])).backward(g)
    assert torch.equal(tensor.grad, eager.grad)
