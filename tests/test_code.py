"""What an op has the kernel told besides arrays and attributes gets there, in both frameworks."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
import torch

from bridge.jax._adapter import primitive
from bridge.torch._adapter import kernels
from tests.any_results import ANY_RESULTS, AnyParams, AnyResults

PARAMS = AnyParams("squares", "float32")
WORDS = {("float32", "float16"): [7, -1, 5], ("float32", "float32"): [1, 2]}


@pytest.fixture(autouse=True)
def coded(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(op: AnyResults, params: AnyParams, dtypes: Any) -> bytes:
        return np.array(WORDS[tuple(dtypes)], np.int32).tobytes()

    monkeypatch.setattr(AnyResults, "code", code)


@pytest.mark.parametrize("dtypes", WORDS)
def test_torch(dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    native = Mock()
    native.run.return_value = -1
    monkeypatch.setattr(kernels, "_native", native)
    operands = (torch.ones(2, 3), torch.ones(2, dtype=getattr(torch, dtypes[1])))
    kernel = kernels.Kernel(ANY_RESULTS, PARAMS, dtypes)
    kernel.run(operands)
    name, *_, code = native.run.call_args.args
    assert name == ANY_RESULTS.kernel_name
    assert np.frombuffer(code, np.int32).tolist() == WORDS[dtypes]
    kernel.add_to(native)
    if dtypes[1] == "float32":  # else no operand is like the result
        assert native.add.call_args.args[4] == code


@pytest.mark.parametrize("dtypes", WORDS)
def test_jax(dtypes: tuple[str, ...]) -> None:
    bind = primitive._define(ANY_RESULTS).bind
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in zip(((2, 3), (2,)), dtypes, strict=True)]
    lowered = jax.jit(lambda *o: bind(*o, slots=(0, 1), count=2, params=PARAMS)).lower(*shapes)
    text = lowered.as_text()
    assert f"@bridge_{ANY_RESULTS.kernel_name}" in text
    assert f"code = dense<{WORDS[dtypes]}> : tensor<{len(WORDS[dtypes])}xi32>" in text
