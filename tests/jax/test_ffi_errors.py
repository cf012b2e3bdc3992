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

GOOD = {
    "form": np.int32(0),
    "order": np.int32(0),
    "batch_ndim": np.int32(0),
    "factors": np.int32(0),
    "slots": np.asarray([0, 1], np.int32),
    "outputs": np.int32(1),
}
X = ((4, 3), "float32")
BIAS = ((3,), "float32")
WIDE = np.asarray([0, 1], np.int64)

# Name, operands, results, changed attributes (None: left out), a part of the message.
CASES: list[tuple[str, list[Any], list[Any], dict[str, Any], str]] = [
    ("no such form", [X, BIAS], [X], {"form": 3}, "form is 3, expected 0 (tanh)"),
    ("negative form", [X, BIAS], [X], {"form": -1}, "form is -1"),
    ("order too high", [X, BIAS], [X], {"order": 9}, "order is 9, expected 0 to 8"),
    ("negative order", [X, BIAS], [X], {"order": -1}, "order is -1"),
    ("batch_ndim = ndim", [X, BIAS], [X], {"batch_ndim": 2}, "batch_ndim is 2"),
    ("batch_ndim < 0", [X, BIAS], [X], {"batch_ndim": -1}, "batch_ndim is -1"),
    ("batch_ndim huge", [X, BIAS], [X], {"batch_ndim": 2**31 - 1}, "batch_ndim is 2147483647"),
    ("too many factors", [X, BIAS], [X], {"factors": 7}, "factors is 7, expected 0 to 6"),
    ("factors < 0", [X, BIAS], [X], {"factors": -1}, "factors is -1"),
    ("factors huge", [X, BIAS], [X], {"factors": 2**31 - 1}, "factors is 2147483647"),
    ("factor that is absent", [X, BIAS], [X], {"factors": 1}, "factor[0] has neither full nor row"),
    ("too few slots", [X, BIAS], [X], {"slots": [0]}, "slots has 1 entries for 2 buffers"),
    ("too many slots", [X, BIAS], [X], {"slots": [0, 1, 2]}, "slots has 3 entries for 2 buffers"),
    ("no slots", [X, BIAS], [X], {"slots": []}, "slots has 0 entries for 2 buffers"),
    ("slot out of range", [X, BIAS], [X], {"slots": [0, 2]}, "the entry 2, which is out of range"),
    ("slot < 0", [X, BIAS], [X], {"slots": [0, -1]}, "the entry -1, which is out of range"),
    ("slot twice", [X, X], [X], {"slots": [0, 0]}, "the entry 0, which is out of range or given"),
    ("no input", [BIAS], [X], {"slots": [1]}, "the input is missing"),
    ("no operands", [], [X], {"slots": []}, "the input is missing"),
    ("outputs = 0", [X, BIAS], [X], {"outputs": 0}, "outputs is 0"),
    ("outputs = 4", [X, BIAS], [X], {"outputs": 4}, "outputs is 4"),
    ("outputs < 0", [X, BIAS], [X], {"outputs": -1}, "outputs is -1"),
    ("a result too few", [X, BIAS], [X], {"outputs": 3}, "outputs is 3 for 1 result buffers"),
    ("a result too many", [X, BIAS], [X, BIAS], {}, "outputs is 1 for 2 result buffers"),
    ("no results", [X, BIAS], [], {}, "outputs is 1 for 0 result buffers"),
    ("bias too short", [X, ((2,), "float32")], [X], {}, "row vector of the input has shape [2]"),
    ("bias of two dimensions", [X, X], [X], {}, "row vector of the input has shape [4, 3]"),
    ("bias 0-dimensional", [X, ((), "float32")], [X], {}, "row vector of the input has shape []"),
    ("result too short", [X, BIAS], [((4, 2), "float32")], {}, "the output has shape [4, 2]"),
    ("result of other rank", [X, BIAS], [((12,), "float32")], {}, "the output has shape [12]"),
    ("sums too long", [X], [((4,), "float32")], {"slots": [0], "outputs": 2}, "column-sum output"),
    (
        "factor of other shape",
        [X, ((3, 4), "float32")],
        [X],
        {"slots": [0, 2], "factors": 1},
        "factor 0 has shape [3, 4]",
    ),
    ("integer input", [((4, 3), "int32"), BIAS], [X], {}, "the input has a dtype"),
    ("complex bias", [X, ((3,), "complex64")], [X], {}, "row vector of the input has a dtype"),
    ("bool result", [X, BIAS], [((4, 3), "bool")], {}, "the output has a dtype"),
    ("fp8 result", [X, BIAS], [((4, 3), "float8_e4m3fn")], {}, "the output has a dtype"),
    # What XLA itself finds before it calls the handler.
    *(
        (f"no {name}", [X, BIAS], [X], {name: None}, "Wrong number of attributes: expected 6")
        for name in GOOD
    ),
    ("an attribute too many", [X, BIAS], [X], {"speed": 1}, "Wrong number of attributes"),
    ("misspelt", [X, BIAS], [X], {"form": None, "from": 0}, "Attribute name mismatch"),
    ("form as a string", [X, BIAS], [X], {"form": "tanh"}, "expected scalar but got string"),
    ("form as a float", [X, BIAS], [X], {"form": 1.0}, "expected S32 but got F64"),
    ("form of 64 bits", [X, BIAS], [X], {"form": np.int64(0)}, "expected S32 but got S64"),
    ("slots of 64 bits", [X, BIAS], [X], {"slots": WIDE}, "expected S32 but got S64"),
    ("slots as one number", [X, BIAS], [X], {"slots": 0}, "expected array but got scalar"),
]


def attribute(value: Any) -> Any:
    if isinstance(value, list):
        return np.asarray(value, np.int32)
    return np.int32(value) if type(value) is int else value


def malformed(case: Any) -> str:
    """Runs the call and returns what XLA says of it, or an empty string."""
    _, operands, results, changes, _ = case
    attributes = {**GOOD, **{name: attribute(value) for name, value in changes.items()}}
    attributes = {name: value for name, value in attributes.items() if value is not None}
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    call = jax.ffi.ffi_call("bridge_bias_gelu", types, has_side_effect=True)
    with jax.enable_x64(True):
        arrays = [jnp.ones(shape, dtype) for shape, dtype in operands]
        try:
            jax.block_until_ready(jax.jit(lambda *a: call(*a, **attributes))(*arrays))
        except jax.errors.JaxRuntimeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_malformed_call(case: Any) -> None:
    message = malformed(case)
    assert case[-1] in message
    assert "INVALID_ARGUMENT" in message


def test_well_formed_call_passes() -> None:
    """What the cases change is right to begin with."""
    assert malformed(("good", [X, BIAS], [X], {}, "")) == ""


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
