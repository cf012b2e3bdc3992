"""A hand-written, wrong custom call: an error of XLA with the reason, never a crash."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge.jax
from bridge.catalogue.bias_dropout_add import bias_dropout_add
from bridge.lang.bytecode import words_of
from bridge.ops.traced import traced
from tests.jax.subprocess_run import run

Array = tuple[tuple[int, ...], str]

X = ((4, 3), "float32")
BIAS = ((3,), "float32")
MASK = ((1, 3), "bool")
SEED = ((2,), "uint32")
WIDE = np.asarray([0, 1, 2, 3], np.int64)
NAN, INFINITY = float("nan"), float("inf")


def attributes(count: int, slots: list[int], *own: float) -> dict[str, Any]:
    return {
        "attributes": np.asarray(own, np.float64),
        "count": np.int32(count),
        "slots": np.asarray(slots, np.int32),
        "outputs": np.int32(1),
    }


# The dropout of x, bias, residual and seed.
DROPOUT = traced(bias_dropout_add.declaration, (True, True, True, True, False), 0.5)
CODE = np.frombuffer(words_of(DROPOUT.program), np.int32)

# Operands, results and attributes of a correct call of each op.
GOOD: dict[str, tuple[list[Array], list[Array], dict[str, Any]]] = {
    "program": (
        [X, BIAS, X, SEED],
        [X],
        {**attributes(4, [0, 1, 2, 3], 0, 0), "code": CODE},
    ),
}


def own(op: str, index: int, value: float) -> dict[str, Any]:
    """Returns the attributes of the op with another value at one index."""
    values = GOOD[op][2]["attributes"].copy()
    values[index] = value
    return {"attributes": values}


def changed(place: int, word: int) -> Any:
    """Returns the bytecode of the program with another word at one index."""
    words = CODE.copy()
    words[place] = word
    return words


# Op, name, operands and results (None: the correct ones), changed attributes (None: left out), and
# a part of the message.
Case = tuple[str, str, list[Array] | None, list[Array] | None, dict[str, Any], str]

# Cases for every op, with arrays of a program.
CALL = [
    ("too few slots", None, None, {"slots": [0]}, "slots has 1 entries for 4 buffers"),
    ("too many slots", None, None, {"slots": [0, 1, 2, 3, 4]}, "slots has 5 entries for 4 buffers"),
    ("no slots", None, None, {"slots": []}, "slots has 0 entries for 4 buffers"),
    ("slot out of range", None, None, {"slots": [0, 1, 2, 4]}, "the entry 4, which is out of"),
    ("slot < 0", None, None, {"slots": [0, 1, 2, -1]}, "the entry -1, which is out of range"),
    ("slot twice", [X, X], None, {"slots": [0, 0]}, "the entry 0, which is out of range or given"),
    ("no input", [BIAS], None, {"slots": [1]}, "1 operands and 1 results, expected 4 and 1"),
    ("no operands", [], None, {"slots": []}, "0 operands and 1 results, expected 4 and 1"),
    ("no places", [], None, {"slots": [], "count": 0}, "0 operands, expected 1 to 64"),
    ("too many places", None, None, {"count": 65}, "count is 65, expected 1 to 64"),
    ("count < 0", None, None, {"count": -1}, "count is -1, expected 1 to 64"),
    ("count huge", None, None, {"count": 2**31 - 1}, "count is 2147483647"),
    ("outputs = 0", None, None, {"outputs": 0}, "outputs is 0"),
    ("outputs < 0", None, None, {"outputs": -1}, "outputs is -1"),
    ("a result too few", None, None, {"outputs": 3}, "outputs is 3 for 1 result buffers"),
    ("a result too many", None, [X, BIAS], {}, "outputs is 1 for 2 result buffers"),
    ("no results", None, [], {}, "outputs is 1 for 0 result buffers"),
    ("no attributes", None, None, {"attributes": np.zeros(0)}, "0 attributes, expected 2"),
    ("too few", None, None, {"attributes": np.zeros(1)}, "1 attributes, expected 2"),
    ("too many", None, None, {"attributes": np.zeros(99)}, "99 attributes, expected 2"),
    # XLA itself finds these before it calls the handler.
    *(
        (f"no {name}", None, None, {name: None}, "Wrong number of attributes: expected 5")
        for name in GOOD["program"][2]
    ),
    ("an attribute more", None, None, {"speed": 1}, "Wrong number of attributes"),
    ("misspelt", None, None, {"count": None, "cuont": 4}, "Attribute name mismatch"),
    ("count as a string", None, None, {"count": "six"}, "expected scalar but got string"),
    ("count as a float", None, None, {"count": 4.0}, "expected S32 but got F64"),
    ("count of 64 bits", None, None, {"count": np.int64(4)}, "expected S32 but got S64"),
    ("slots of 64 bits", None, None, {"slots": WIDE}, "expected S32 but got S64"),
    ("slots as one number", None, None, {"slots": 0}, "expected array but got scalar"),
    (
        "attributes of 32 bits",
        None,
        None,
        {"attributes": np.zeros(2, np.float32)},
        "expected F64 but got F32",
    ),
]

PROGRAM = [
    ("no words", None, None, {"code": CODE[:0]}, "its bytecode cannot be read: it is shorter"),
    ("words too few", None, None, {"code": CODE[:-1]}, "bytecode cannot be read: its instructions"),
    ("another version", None, None, {"code": changed(0, -1)}, "but this bridge reads versions"),
    (
        "threshold of no constant",
        None,
        None,
        {"code": changed(-43, 9)},
        "there is no such constant",
    ),
    ("batch_ndim > ndim", None, None, own("program", 0, 3), "batch_ndim is 3, expected a whole"),
    ("batch_ndim < 0", None, None, own("program", 0, -1), "batch_ndim is -1"),
    ("half a batch_ndim", None, None, own("program", 0, 0.5), "batch_ndim is 0.5"),
    ("batch_ndim huge", None, None, own("program", 0, 2.0**40), "batch_ndim is 10995116"),
    ("bias too short", [X, ((2,), "float32"), X, SEED], None, {}, "operand 1 has shape [2]"),
    ("bias of two dimensions", [X, X, X, SEED], None, {}, "operand 1 has shape [4, 3]"),
    ("bias 0-dimensional", [X, ((), "float32"), X, SEED], None, {}, "operand 1 has shape []"),
    ("complex bias", [X, ((3,), "complex64"), X, SEED], None, {}, "the dtype of an operand (1)"),
    ("integer input", [((4, 3), "int64"), BIAS, X, SEED], None, {}, "the dtype of an operand (0)"),
    ("result too short", None, [((4, 2), "float32")], {}, "result 0 has shape [4, 2]"),
    ("result of other rank", None, [((12,), "float32")], {}, "result 0 has shape [12]"),
    ("bool result", None, [((4, 3), "bool")], {}, "the dtype of a result (0)"),
    ("fp8 result", None, [((4, 3), "float8_e4m3b11fnuz")], {}, "the dtype of a result (0)"),
    ("a result more", None, [X, BIAS], {"outputs": 3}, "4 operands and 2 results, expected"),
    ("index_cols < 0", None, None, own("program", 1, -1), "index_cols is -1"),
    ("index_cols infinite", None, None, own("program", 1, INFINITY), "index_cols is inf"),
    ("index_cols NaN", None, None, own("program", 1, NAN), "index_cols is nan"),
    ("seed of 32 bits", [X, BIAS, X, ((), "uint32")], None, {}, "operand 3 has shape []"),
    (
        "float seed",
        [X, BIAS, X, ((), "float32")],
        None,
        {},
        "operand 3 has dtype float32, expected",
    ),
    ("seeds", [X, BIAS, X, ((4,), "int64")], None, {}, "operand 3 has shape [4], which does not"),
    (
        "seeds for other batches",
        [X, ((4, 3), "float32"), X, ((3, 2), "uint32")],
        None,
        own("program", 0, 1),
        "operand 3 has shape [3, 2], which does not fit",
    ),
    ("residual of other shape", [X, BIAS, BIAS, SEED], None, {}, "operand 2 has shape [3]"),
    ("bool residual", [X, BIAS, ((4, 3), "bool"), SEED], None, {}, "the dtype of an operand (2)"),
]

CASES: list[Case] = [(op, *case) for op, cases in (("program", CALL + PROGRAM),) for case in cases]


def attribute(value: Any) -> Any:
    if isinstance(value, list):
        return np.asarray(value, np.int32)
    return np.int32(value) if type(value) is int else value


def malformed(case: Any) -> str:
    """Runs the call and returns XLA's message, or an empty string."""
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
    """The call is correct before a case changes it."""
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
