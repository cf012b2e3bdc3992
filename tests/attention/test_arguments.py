"""Wrong arguments of attention raise one error in plain words, the same in both frameworks."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch

SHAPES = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6)}

# Shapes or dtypes that differ from SHAPES and float32, options, the error, and its words.
WRONG: list[tuple[dict[str, Any], dict[str, Any], type, str]] = [
    ({"q": (3, 8)}, {}, ValueError, "q has shape [3, 8], expected [..., heads, queries, d]"),
    ({"k": (2, 3, 5, 8), "v": (2, 3, 5, 6)}, {}, ValueError, "q has 4 heads and k has 3"),
    ({"k": (2, 0, 5, 8), "v": (2, 0, 5, 6)}, {}, ValueError, "q has 4 heads and k has 0"),
    (
        {"k": (2, 2, 5, 7)},
        {},
        ValueError,
        "k has shape [2, 2, 5, 7], expected [2, key heads, keys, 8]",
    ),
    ({"k": (1, 2, 5, 8)}, {}, ValueError, "k has shape [1, 2, 5, 8], expected [2, key heads,"),
    ({"v": (2, 2, 4, 6)}, {}, ValueError, "v has shape [2, 2, 4, 6], expected [2, 2, 5, d of v]"),
    ({"k": "float16"}, {}, TypeError, "k has dtype float16, expected float32, that of q"),
    ({"q": "int32"}, {}, TypeError, "q has dtype int32, expected one of float16"),
    ({}, {"mask": ((3, 4), "bool")}, ValueError, "mask has shape [3, 4], which does not broadcast"),
    (
        {},
        {"mask": ((3, 5), "float32")},
        TypeError,
        "mask has dtype float32, expected bool or uint8",
    ),
    ({}, {"sink": ((3,), "float32")}, ValueError, "sink has shape [3], expected [4]"),
    ({}, {"sink": ((4,), "int32")}, TypeError, "sink has dtype int32, expected one of float16"),
    ({}, {"sink": "large"}, TypeError, "sink has type str"),
    ({}, {"causal": 1}, TypeError, "causal is 1, expected True or False"),
    ({}, {"window": 3}, ValueError, "window is 3 and causal is False, expected causal=True"),
    ({}, {"window": 0, "causal": True}, ValueError, "window is 0, expected an integer from 1 on"),
    ({}, {"window": 2.5, "causal": True}, TypeError, "window has type float, expected an integer"),
    ({}, {"scale": float("nan")}, ValueError, "scale is nan, expected a finite number"),
    ({}, {"scale": "a"}, TypeError, "scale has type str, expected a real number"),
    ({}, {"softcap": 0.0}, ValueError, "softcap is 0.0, expected a positive number"),
    ({}, {"softcap": -1}, ValueError, "softcap is -1.0, expected a positive number"),
]


def made(shape: Any, dtype: str, is_torch: bool) -> Any:
    array = np.zeros(shape, dtype)
    return torch.tensor(array) if is_torch else jnp.asarray(array)


@pytest.mark.parametrize("is_torch", [True, False])
@pytest.mark.parametrize("number", range(len(WRONG)))
def test_messages(number: int, is_torch: bool) -> None:
    changed, options, error, words = WRONG[number]
    operands = []
    for name, shape in SHAPES.items():
        own = changed.get(name, shape)
        is_dtype = isinstance(own, str)
        operands.append(made(shape if is_dtype else own, own if is_dtype else "float32", is_torch))
    given = {name: made(*x, is_torch) if isinstance(x, tuple) else x for name, x in options.items()}
    run = bridge.torch.attention if is_torch else bridge.jax.attention
    with pytest.raises(error, match=re.escape(f"attention: {words}")):
        run(*operands, **given)


def test_not_an_array() -> None:
    with pytest.raises(TypeError, match=r"attention: k has type list, expected torch\.Tensor"):
        bridge.torch.attention(torch.zeros(1, 2, 3), [1.0], torch.zeros(1, 2, 3))
    with pytest.raises(TypeError, match="attention: k has type list, expected an array"):
        bridge.jax.attention(jnp.zeros((1, 2, 3)), [1.0], jnp.zeros((1, 2, 3)))


def test_devices_that_differ() -> None:
    x = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match="attention: v is on meta, expected cpu, where q is"):
        bridge.torch.attention(x, x, x.to("meta"))
    with pytest.raises(ValueError, match="attention: sink is on meta, expected cpu, where q is"):
        bridge.torch.attention(x, x, x, sink=torch.zeros(1, device="meta"))


@pytest.mark.parametrize("name", ["scale", "window", "softcap", "causal"])
def test_traced_options(name: str) -> None:
    x = jnp.zeros((1, 2, 3))
    with pytest.raises(TypeError, match=f"attention: {name} is traced, expected"):
        jax.jit(lambda value: bridge.jax.attention(x, x, x, **{name: value}))(1)


def test_autocast_casts_q_k_and_v() -> None:
    q, k, v = (torch.randn(s) for s in ((1, 2, 3), (1, 4, 3), (1, 4, 5)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = bridge.torch.attention(q, k, v)
    expected = bridge.torch.attention(*(x.bfloat16() for x in (q, k, v)))
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)


def test_meta_tensors_have_the_shape() -> None:
    q, k = torch.zeros(2, 4, 3, 8, device="meta"), torch.zeros(2, 2, 5, 8, device="meta")
    y = bridge.torch.attention(q, k, k[..., :6], causal=True, sink=torch.zeros(4, device="meta"))
    assert y.shape == (2, 4, 3, 6)
    assert y.is_meta
