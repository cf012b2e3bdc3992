"""Bad input raises TypeError or ValueError before anything runs, and states the expected value."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from bridge import _native
from bridge.catalogue.softmax_programs import softmax_program
from bridge.ops import PROGRAM
from bridge.torch import bias_gelu, bias_gelu_
from bridge.torch._adapter.kernels import allocate

F32 = torch.ones(2, 3)
CODE = PROGRAM.code(softmax_program(1.0, "float32", (False, False)), ["float32"])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # sparse rows are in beta
    CSR = F32.to_sparse_csr()

BAD = {
    "integer x": (
        (F32.int(), None),
        TypeError,
        "bias_gelu: x has dtype int32, expected one of float16, bfloat16, float32, float64",
    ),
    "complex x": ((F32 + 0j, None), TypeError, "bias_gelu: x has dtype complex64, expected one of"),
    "fp8 bias": (
        (F32, torch.ones(3).to(torch.float8_e5m2)),
        TypeError,
        "bias_gelu: bias has dtype float8_e5m2, expected one of",
    ),
    "bool bias": ((F32, torch.ones(3) > 0), TypeError, "bias_gelu: bias has dtype bool, expected"),
    "bias length": (
        (F32, torch.ones(4)),
        ValueError,
        "bias_gelu: bias has shape [4], expected [3]: x has shape [2, 3]",
    ),
    "bias rank": (
        (F32, torch.ones(1, 3)),
        ValueError,
        "bias_gelu: bias has shape [1, 3], expected [3]: x has shape [2, 3]",
    ),
    "bias for a scalar": (
        (torch.tensor(1.0), torch.ones(1)),
        ValueError,
        "bias_gelu: x is 0-dimensional, expected at least one dimension",
    ),
    "not a tensor": (
        (np.ones(3), None),
        TypeError,
        "bias_gelu: x has type ndarray, expected torch.Tensor",
    ),
    "x is None": ((None, None), TypeError, "bias_gelu: x has type NoneType, expected torch.Tensor"),
    "bias is a number": ((F32, 1.0), TypeError, "bias_gelu: bias has type float, expected torch."),
    "sparse": ((F32.to_sparse(), None), TypeError, "bias_gelu: x is sparse_coo, expected a dense"),
    "sparse rows": (
        (CSR, None),
        TypeError,
        "bias_gelu: x is sparse_csr, expected a dense tensor",
    ),
    "device mix": (
        (F32, torch.ones(3, device="meta")),
        ValueError,
        "bias_gelu: bias is on meta, expected cpu, where x is",
    ),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("function", [bias_gelu, bias_gelu_])
def test_bad_tensors(what: str, function: Any) -> None:
    arguments, error, message = BAD[what]
    for _ in range(2):  # the second call uses the cached plan
        with pytest.raises(error, match=re.escape(message)):
            function(*arguments)


@pytest.mark.filterwarnings("ignore")
def test_quantized() -> None:
    x = torch.quantize_per_tensor(F32, 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match="bias_gelu: x is quantized, expected a dense tensor"):
        bias_gelu(x)


def test_devices_that_differ() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x, bias = torch.empty(2, 3, device="cuda"), torch.empty(3)
        with pytest.raises(ValueError, match="bias is on cpu, expected cuda:0, where x is"):
            bias_gelu(x, bias)


@pytest.mark.parametrize("approximate", ["relu", "", None, 1, ["tanh"]])
def test_unknown_form(approximate: Any) -> None:
    message = (
        f"bias_gelu: approximate is {approximate!r}, expected one of 'tanh', 'none', 'sigmoid'"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        bias_gelu(F32, approximate=approximate)


def test_an_error_leaves_the_next_call_alone() -> None:
    bias_gelu(F32, torch.ones(3))
    with pytest.raises(ValueError, match="bias has shape"):
        bias_gelu(F32, torch.ones(2))
    assert torch.equal(bias_gelu(F32, torch.ones(3)), bias_gelu(F32 + 1))


def test_native_door_refuses_read_only_memory() -> None:
    x, out = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)

    def run() -> int:
        return _native.run("program", (x,), (out,), (0, 0), 1, allocate, CODE)

    assert run() == -1
    assert np.all(out != 0)
    out[:] = 0
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match=r"read-?only"):
        run()
    assert not out.any()


def test_native_door_survives_nonsense() -> None:
    x = np.ones((2, 3), np.float32)
    for arguments in (
        (),
        ("program", x, (x,), (0, 0), 1, None, CODE),
        ("no_such_op", (x,), (x,), (0, 0), 1, None, CODE),
        ("program", (x,), (x, x.copy()), (0, 0), 1, None, CODE),
        ("program", (x,), (x,), (0,), 1, None, CODE),
        ("program", (x,), (x,), (0, -1), 1, None, CODE),
        ("program", (x,), (x,), (0, 0.5), 1, None, CODE),
        ("program", (x,), (x,), (2**40, 0), 1, None, CODE),
        ("program", (x,) * 9, (x,), (0, 0), 1, None, CODE),
        ("program", (x, object()), (x,), (0, 0), 1, None, CODE),
        ("program", (None,), (x,), (0, 0), 1, None, CODE),
        ("program", (), (x,), (0, 0), 1, None, CODE),
        ("program", (x,), (x,), (0, 0), 1, None),
        ("program", (x,), (x,), (0, 0), 1, None, b"none"),
    ):
        with pytest.raises((TypeError, ValueError)):
            _native.run(*arguments)
