"""The word `bits`, the device and the dtypes tell which convolutions tensor cores compute."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import export

import bridge.jax as bj
import bridge.torch as bt
from bridge.ops import convolution as rules
from bridge.ops.convolution import ConvolutionParams
from bridge.torch._adapter import convolutions as in_torch

CHECKS = [
    export.DisabledSafetyCheck.custom_call(f"bridge_{op}") for op in ("convolution", "program")
]
BITS = pytest.mark.parametrize("bits", [None, "portable", "device"])
SIXTEEN = ("float16", "bfloat16")
IMAGES, WEIGHTS = ((2, 6, 6, 3), (3, 3, 3, 4)), ((2, 3, 6, 6), (4, 3, 3, 3))


@BITS
@pytest.mark.parametrize(
    ("dtypes", "result", "fits"),
    [
        (("float16", "float16"), "float16", True),
        (("bfloat16", "bfloat16", "float32"), "float32", True),
        (("float16", "bfloat16"), "float32", False),
        (("float32", "float32"), "float32", False),
        (("bfloat16", "bfloat16", "float64"), "float64", False),
    ],
)
def test_rule(dtypes: tuple[str, ...], result: str, fits: bool, bits: str | None) -> None:
    params = ConvolutionParams("forward", result, (4,), (1,), (0,), (1,), 1, bits)
    assert rules.has_tensor_cores(params, dtypes, True) == (fits and bits != "portable")
    if fits and bits == "device":
        with pytest.raises(ValueError, match="convolution: bits is 'device', expected 'portable'"):
            rules.has_tensor_cores(params, dtypes, False)
    else:
        assert not rules.has_tensor_cores(params, dtypes, False)


def lowered(f: Any, *shapes: Any, platform: str) -> list[bool]:
    """Returns, for each convolution of a program of JAX, whether it asks for tensor cores."""
    text = export.export(jax.jit(f), platforms=[platform], disabled_checks=CHECKS)(*shapes)
    return [found == "true" for found in re.findall(r"tensor_cores = (\w+)", text.mlir_module())]


@BITS
@pytest.mark.parametrize("dtype", [*SIXTEEN, "float32"])
def test_programs_of_jax(bits: str | None, dtype: str) -> None:
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in IMAGES)
    is_wanted = bits != "portable" and dtype in SIXTEEN

    def convolution(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return bj.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=numbers, bits=bits)

    def gradients(x: Any, w: Any) -> Any:
        y, pull = jax.vjp(convolution, x, w)
        return y, pull(y)

    if bits == "device" and not is_wanted:
        words = "conv_general_dilated: bits is 'device' with lhs of float32, rhs of float32"
        with pytest.raises(ValueError, match=words):
            lowered(convolution, x, w, platform="cuda")
        return
    assert lowered(gradients, x, w, platform="cuda") == [is_wanted] * 3
    batch = jax.ShapeDtypeStruct((2, *x.shape), dtype)
    mapped = lowered(jax.vmap(convolution, (0, None)), batch, w, platform="cuda")
    assert mapped == [is_wanted]
    if bits != "device":
        assert lowered(gradients, x, w, platform="cpu") == [False] * 3
    else:
        with pytest.raises(ValueError, match="bits is 'device', expected 'portable' or None"):
            lowered(convolution, x, w, platform="cpu")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for each convolution of torch whether it would be of tensor cores on a GPU."""
    found: list[bool] = []
    rule = rules.has_tensor_cores

    def recorded(params: ConvolutionParams, dtypes: Any, is_on_cuda: bool) -> bool:
        found.append(rule(params, dtypes, True))
        return False

    monkeypatch.setattr(rules, "has_tensor_cores", recorded)
    monkeypatch.setattr(in_torch._Primitives, "is_on_cpu", staticmethod(lambda x: False))
    return found


@BITS
@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_calls_of_torch(name: str, bits: str | None, dtype: str, asked: list[bool]) -> None:
    own = getattr(torch, dtype)
    x = torch.ones(2, 3, 6, 6, dtype=own, requires_grad=True)
    w = torch.ones(4 if name == "conv2d" else 3, 3, 3, 3, dtype=own, requires_grad=True)
    function = partial(getattr(bt, name), stride=2, bits=bits)
    for f in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        asked.clear()
        f(x, w).sum().backward()
        assert asked == [bits != "portable"] * 3
    asked.clear()
    function(x, w, torch.ones(4 if name == "conv2d" else 3)).sum().backward()
    assert asked == [bits != "portable", False, False]  # cotangents of 32 bits


def test_refusals_on_a_cpu() -> None:
    x, w = (torch.ones(shape, dtype=torch.bfloat16) for shape in WEIGHTS)
    on_cpu = "bits is 'device', expected 'portable' or None on a CPU"
    with pytest.raises(ValueError, match=f"conv2d: {on_cpu}"):
        bt.conv2d(x, w, bits="device")
    with pytest.raises(ValueError, match="conv2d: bits is 'device' with input of bfloat16, weight"):
        bt.conv2d(x, w.half(), bits="device")
    lhs, rhs = (jnp.ones(shape, jnp.float16) for shape in WEIGHTS)
    with pytest.raises(ValueError, match=f"conv_general_dilated: {on_cpu}"):
        bj.conv_general_dilated(lhs, rhs, (1, 1), "VALID", bits="device")
    with pytest.raises(ValueError, match=f"conv_transpose: {on_cpu}"):
        bj.conv_transpose(lhs.mT, rhs, (1, 1), "VALID", bits="device")
