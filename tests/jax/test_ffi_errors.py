"""A custom call written by hand and wrong: an error of XLA that says why, never a crash."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge.jax
from tests.jax.subprocess_run import run

Array = tuple[tuple[int, ...], str]

X = ((4, 3), "float32")
BIAS = ((3,), "float32")
MASK = ((1, 3), "bool")
SEED = ((2,), "uint32")
WIDE = np.asarray([0, 1], np.int64)
NAN, INFINITY = float("nan"), float("inf")


def attributes(count: int, slots: list[int], *own: float) -> dict[str, Any]:
    return {
        "attributes": np.asarray(own, np.float64),
        "count": np.int32(count),
        "slots": np.asarray(slots, np.int32),
        "outputs": np.int32(1),
    }


# Of each op these make a call that is right: operands, results, attributes.
GOOD: dict[str, tuple[list[Array], list[Array], dict[str, Any]]] = {
    "bias_gelu": ([X, BIAS], [X], attributes(2, [0, 1], 0, 0, 0)),
    "softmax": ([X, MASK], [X], attributes(2, [0, 1], 0.5, 0)),
    "softmax_derivative": ([X, X], [X], attributes(3, [0, 1], 0.5, 0, 3)),
    "bias_dropout_add": ([X, BIAS, X, SEED], [X], attributes(6, [0, 1, 2, 3], 2**31, 2.0, 0, 0)),
}


def own(op: str, index: int, value: float) -> dict[str, Any]:
    """The attributes of the op with another value at one place."""
    values = GOOD[op][2]["attributes"].copy()
    values[index] = value
    return {"attributes": values}


# Op, name, operands and results (None: the right ones), changed attributes (None: left out), a part
# of the message.
Case = tuple[str, str, list[Array] | None, list[Array] | None, dict[str, Any], str]

# This holds for every op: the arrays are bias_gelu's.
CALL = [
    ("too few slots", None, None, {"slots": [0]}, "slots has 1 entries for 2 buffers"),
    ("too many slots", None, None, {"slots": [0, 1, 2]}, "slots has 3 entries for 2 buffers"),
    ("no slots", None, None, {"slots": []}, "slots has 0 entries for 2 buffers"),
    ("slot out of range", None, None, {"slots": [0, 2]}, "the entry 2, which is out of range"),
    ("slot < 0", None, None, {"slots": [0, -1]}, "the entry -1, which is out of range"),
    ("slot twice", [X, X], None, {"slots": [0, 0]}, "the entry 0, which is out of range or given"),
    ("no input", [BIAS], None, {"slots": [1]}, "the input is missing"),
    ("no operands", [], None, {"slots": []}, "the input is missing"),
    ("no places", [], None, {"slots": [], "count": 0}, "0 operands, expected 2 to 14"),
    ("a place too few", [X], None, {"slots": [0], "count": 1}, "1 operands, expected 2 to 14"),
    ("an odd place", None, None, {"count": 3}, "3 operands, expected pairs"),
    ("too many places", None, None, {"count": 15}, "count is 15, expected 2 to 14"),
    ("count < 0", None, None, {"count": -1}, "count is -1, expected 2 to 14"),
    ("count huge", None, None, {"count": 2**31 - 1}, "count is 2147483647"),
    ("outputs = 0", None, None, {"outputs": 0}, "outputs is 0"),
    ("outputs = 4", None, None, {"outputs": 4}, "outputs is 4"),
    ("outputs < 0", None, None, {"outputs": -1}, "outputs is -1"),
    ("a result too few", None, None, {"outputs": 3}, "outputs is 3 for 1 result buffers"),
    ("a result too many", None, [X, BIAS], {}, "outputs is 1 for 2 result buffers"),
    ("no results", None, [], {}, "outputs is 1 for 0 result buffers"),
    ("no attributes", None, None, {"attributes": np.zeros(0)}, "0 attributes, expected 3"),
    ("too few", None, None, {"attributes": np.zeros(2)}, "2 attributes, expected 3"),
    ("too many", None, None, {"attributes": np.zeros(99)}, "99 attributes, expected 3"),
    # XLA itself finds this before it calls the handler.
    *(
        (f"no {name}", None, None, {name: None}, "Wrong number of attributes: expected 4")
        for name in GOOD["bias_gelu"][2]
    ),
    ("an attribute more", None, None, {"speed": 1}, "Wrong number of attributes"),
    ("misspelt", None, None, {"count": None, "cuont": 2}, "Attribute name mismatch"),
    ("count as a string", None, None, {"count": "two"}, "expected scalar but got string"),
    ("count as a float", None, None, {"count": 2.0}, "expected S32 but got F64"),
    ("count of 64 bits", None, None, {"count": np.int64(2)}, "expected S32 but got S64"),
    ("slots of 64 bits", None, None, {"slots": WIDE}, "expected S32 but got S64"),
    ("slots as one number", None, None, {"slots": 0}, "expected array but got scalar"),
    (
        "attributes of 32 bits",
        None,
        None,
        {"attributes": np.zeros(3, np.float32)},
        "expected F64 but got F32",
    ),
]

GELU = [
    ("no such form", None, None, own("bias_gelu", 0, 3), "form is 3, expected 0 (tanh)"),
    ("negative form", None, None, own("bias_gelu", 0, -1), "form is -1"),
    ("half a form", None, None, own("bias_gelu", 0, 0.5), "form is 0.5, expected a whole number"),
    ("form NaN", None, None, own("bias_gelu", 0, NAN), "form is nan, expected a whole number"),
    ("order too high", None, None, own("bias_gelu", 1, 9), "order is 9, expected 0 to 8"),
    ("negative order", None, None, own("bias_gelu", 1, -1), "order is -1"),
    ("order infinite", None, None, own("bias_gelu", 1, INFINITY), "order is inf, expected a whole"),
    ("batch_ndim = ndim", None, None, own("bias_gelu", 2, 2), "batch_ndim is 2"),
    ("batch_ndim < 0", None, None, own("bias_gelu", 2, -1), "batch_ndim is -1"),
    ("batch_ndim huge", None, None, own("bias_gelu", 2, 2.0**40), "batch_ndim is 1099511627776"),
    ("factor that is absent", None, None, {"count": 4}, "factor[0] has neither full nor row"),
    ("bias too short", [X, ((2,), "float32")], None, {}, "row vector of the input has shape [2]"),
    ("bias of two dimensions", [X, X], None, {}, "row vector of the input has shape [4, 3]"),
    ("bias 0-dimensional", [X, ((), "float32")], None, {}, "row vector of the input has shape []"),
    ("result too short", None, [((4, 2), "float32")], {}, "the output has shape [4, 2]"),
    ("result of other rank", None, [((12,), "float32")], {}, "the output has shape [12]"),
    ("sums too long", [X], [((4,), "float32")], {"slots": [0], "outputs": 2}, "column-sum output"),
    (
        "factor of other shape",
        [X, ((3, 4), "float32")],
        None,
        {"slots": [0, 2], "count": 4},
        "factor 0 has shape [3, 4]",
    ),
    ("integer input", [((4, 3), "int64"), BIAS], None, {}, "the input has dtype int64"),
    ("complex bias", [X, ((3,), "complex64")], None, {}, "row vector of the input has dtype"),
    ("bool result", None, [((4, 3), "bool")], {}, "the output has dtype bool, expected float16"),
    ("fp8 result", None, [((4, 3), "float8_e4m3fn")], {}, "the output has dtype"),
]

SOFTMAX = [
    ("scale infinite", None, None, own("softmax", 0, INFINITY), "scale is inf, expected a finite"),
    ("scale NaN", None, None, own("softmax", 0, NAN), "scale is nan, expected a finite"),
    ("causal 2", None, None, own("softmax", 1, 2), "causal is 2, expected a whole number from 0"),
    ("causal NaN", None, None, own("softmax", 1, NAN), "causal is nan"),
    ("no x", [MASK], None, {"slots": [1]}, "x is missing"),
    ("x 0-dimensional", [((), "float32")], None, {"slots": [0]}, "x has shape []"),
    (
        "causal with one dimension",
        [BIAS],
        [BIAS],
        {"slots": [0], **own("softmax", 1, 1)},
        "x has shape [3], expected at least two dimensions",
    ),
    ("integer x", [((4, 3), "int64"), MASK], None, {}, "x has dtype int64"),
    ("float mask", [X, X], None, {}, "mask has dtype float32, expected bool or uint8"),
    ("mask of int8", [X, ((4, 3), "int8")], None, {}, "mask has dtype int8, expected bool"),
    ("mask too long", [X, ((4,), "bool")], None, {}, "mask has shape [4], expected one that"),
    ("mask empty", [X, ((0, 3), "bool")], None, {}, "mask has shape [0, 3], expected one that"),
    ("mask of more dimensions", [X, ((1, 1, 3), "bool")], None, {}, "mask has shape [1, 1, 3]"),
    ("result of other dtype", None, [((4, 3), "float64")], {}, "y has dtype float64, expected"),
    ("result of other shape", None, [((3, 4), "float32")], {}, "y has shape [3, 4], expected"),
]

DERIVATIVE = [
    ("no terms", None, None, own("softmax_derivative", 2, 0), "terms is 0, expected a whole"),
    ("terms past the last", None, None, own("softmax_derivative", 2, 16), "terms is 16"),
    ("terms without w", None, None, own("softmax_derivative", 2, 7), "expected 3 where w is"),
    ("scale infinite", None, None, own("softmax_derivative", 0, -INFINITY), "scale is -inf"),
    ("no v", [X], None, {"slots": [0]}, "v is missing"),
    ("no u", [X], None, {"slots": [1]}, "u is missing"),
    ("v of other shape", [X, BIAS], None, {}, "v has shape [3], expected [4, 3], that of u"),
    ("w of other dtype", [X, X, MASK], None, {"slots": [0, 1, 2]}, "w has dtype bool, expected"),
]

DROPOUT = [
    ("threshold too high", None, None, own("bias_dropout_add", 0, 2.0**32 + 1), "threshold is 42"),
    ("threshold < 0", None, None, own("bias_dropout_add", 0, -1), "threshold is -1, expected"),
    ("half a threshold", None, None, own("bias_dropout_add", 0, 0.5), "threshold is 0.5"),
    ("factor infinite", None, None, own("bias_dropout_add", 1, INFINITY), "factor is inf"),
    ("batch_ndim = ndim", None, None, own("bias_dropout_add", 2, 2), "batch_ndim is 2; x has"),
    ("index_cols < 0", None, None, own("bias_dropout_add", 3, -1), "index_cols is -1"),
    ("index_cols NaN", None, None, own("bias_dropout_add", 3, NAN), "index_cols is nan"),
    ("seed of 32 bits", [X, BIAS, X, ((), "uint32")], None, {}, "seed has shape []"),
    ("float seed", [X, BIAS, X, ((), "float32")], None, {}, "seed has dtype float32, expected int"),
    ("seeds", [X, BIAS, X, ((4,), "int64")], None, {}, "seed has shape [4], which does not fit"),
    (
        "seeds for other batches",
        [X, ((4, 3), "float32"), X, ((3, 2), "uint32")],
        None,
        own("bias_dropout_add", 2, 1),
        "seed has shape [3, 2], which does not fit",
    ),
    (
        "sums with a residual",
        None,
        [X, BIAS],
        {"outputs": 3},
        "residual",
    ),
    ("residual of other shape", [X, BIAS, BIAS, SEED], None, {}, "residual has shape [3]"),
    ("bool residual", [X, BIAS, ((4, 3), "bool"), SEED], None, {}, "residual has dtype bool"),
]

CASES: list[Case] = [
    (op, *case)
    for op, cases in (
        ("bias_gelu", CALL + GELU),
        ("softmax", SOFTMAX),
        ("softmax_derivative", DERIVATIVE),
        ("bias_dropout_add", DROPOUT),
    )
    for case in cases
]


def attribute(value: Any) -> Any:
    if isinstance(value, list):
        return np.asarray(value, np.int32)
    return np.int32(value) if type(value) is int else value


def malformed(case: Any) -> str:
    """Runs the call and returns what XLA says of it, or an empty string."""
    op, _, operands, results, changes, _ = case
    good_operands, good_results, good = GOOD[op]
    attributes = {**good, **{name: attribute(value) for name, value in changes.items()}}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    results = good_results if results is None else results
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    call = jax.ffi.ffi_call(f"bridge_{op}", types, has_side_effect=True)
    with jax.enable_x64(True):
        operands = good_operands if operands is None else operands
        arrays = [jnp.ones(shape, dtype) for shape, dtype in operands]
        try:
            jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*arrays))
        except jax.errors.JaxRuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_malformed_call(case: Any) -> None:
    message = malformed(case)
    assert case[-1] in message
    assert "INVALID_ARGUMENT" in message


@pytest.mark.parametrize("op", GOOD)
def test_well_formed_call_passes(op: str) -> None:
    """What the cases change is right to begin with."""
    assert malformed((op, "good", None, None, {}, "")) == ""


@pytest.mark.long
def test_all_in_one_process_that_lives_on() -> None:
    code = """
import json
from tests.jax import test_ffi_errors as errors
messages = [errors.malformed(case) for case in errors.CASES]
import jax.numpy as jnp
from bridge.jax import bias_gelu
assert float(bias_gelu(jnp.ones(3)).sum()) > 2.5
print(json.dumps(messages))
"""
    messages = json.loads(run(code))
    assert len(messages) == len(CASES)
    assert all(case[-1] in message for case, message in zip(CASES, messages, strict=True))


def test_an_error_leaves_the_next_call_alone() -> None:
    assert malformed(CASES[0])
    np.testing.assert_allclose(bridge.jax.bias_gelu(jnp.ones(3)), 0.841192, rtol=1e-5)
