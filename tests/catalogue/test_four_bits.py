"""The format nvfp4: bytes of a float64 reference and of ml_dtypes' own cast."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from bridge import Quantization
from tests.catalogue.test_quantization import bytes_of, drawn
from tests.frameworks import DTYPES

NVFP4 = Quantization("nvfp4")
SHAPES = [(3, 128), (2, 3, 256), (128,), (5, 16), (0, 128), (3, 0)]
WHOLE = (None, 0.375, 3e-5)


def plain(x: np.ndarray, whole: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns bytes and scales: in float64 for float64, otherwise float32 as the op."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    if not x.size:
        rows = x.shape[:-1]
        scales = np.zeros((*rows, x.shape[-1] // 16), ml_dtypes.float8_e4m3fn)
        return np.zeros((*rows, x.shape[-1] // 2), np.uint8), scales
    blocks = x.astype(wide).reshape(*x.shape[:-1], -1, 16)
    number = wide(1) if whole is None else wide(np.float32(whole))
    with np.errstate(all="ignore"):
        largest = np.abs(blocks).max(-1)
        scale = np.clip(largest / wide(6) / number, 2.0**-9, 448)
        scale = np.where(np.isfinite(largest), scale, np.nan).astype(ml_dtypes.float8_e4m3fn)
        near = blocks / (scale.astype(wide) * number)[..., None]
        near = np.where(np.isnan(near), 0.0, near).clip(-6, 6)
        codes = near.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(x.shape)
    return codes[..., ::2] | codes[..., 1::2] << 4, scale


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("whole", WHOLE, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes(shape: Any, dtype: str, whole: float | None, special: bool, rng: Any) -> None:
    size = (*shape[:-1], max(32, shape[-1]))
    x = drawn(rng, size, dtype, special)[..., : shape[-1]]
    tensor = bridge.to_torch(jnp.asarray(x), copy=True) if dtype == "bfloat16" else torch.tensor(x)
    of_torch, of_jax = (
        None
        if whole is None
        else make(whole, dtype="float32" if make is jnp.asarray else torch.float32)
        for make in (torch.tensor, jnp.asarray)
    )
    values, scales = bridge.torch.quantize(tensor, NVFP4, global_scale=of_torch)
    assert values.dtype == torch.float4_e2m1fn_x2
    assert scales.dtype == torch.float8_e4m3fn
    with jax.enable_x64(True):
        array = jnp.asarray(x)
        others = bridge.jax.quantize(array, NVFP4, global_scale=of_jax)
        near = bridge.jax.dequantize(*others, dtype=dtype, global_scale=of_jax)
        fake = bridge.jax.fake_quantize(array, NVFP4, global_scale=of_jax)
    right, of_blocks = plain(x, whole)
    assert values.shape == others[0].shape == right.shape
    for found in (values, others[0]):
        np.testing.assert_array_equal(bytes_of(found), bytes_of(right))
    for found in (scales, others[1]):
        own = bytes_of(found)
        np.testing.assert_array_equal(own & 0x7F, bytes_of(of_blocks) & 0x7F)
    again = bridge.torch.dequantize(values, scales, dtype=tensor.dtype, global_scale=of_torch)
    straight = bridge.torch.fake_quantize(tensor, NVFP4, global_scale=of_torch)
    for found in (again, straight, fake):
        np.testing.assert_array_equal(bytes_of(found), bytes_of(near))


def test_every_code_and_tie() -> None:
    """Each number of 4 bits, each tie and its neighbours, beside a 6 that makes the scale 1."""
    numbers = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    ties = (numbers[1:] + numbers[:-1]) / 2
    up, down = (np.nextafter(ties, np.float32(end)) for end in (9, -9))
    x = np.concatenate([numbers, ties, up, down, -numbers, -ties, -up, -down])
    x = np.stack([x, np.zeros_like(x)], -1).reshape(-1, 2)
    x = np.concatenate([x, np.full((len(x), 1), 6.0), np.zeros((len(x), 13))], 1)
    x = x.astype(np.float32)
    values, scales = bridge.torch.quantize(torch.tensor(x), NVFP4)
    assert torch.all(scales.float() == 1.0)
    right, _ = plain(x, None)
    np.testing.assert_array_equal(bytes_of(values), bytes_of(right))


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "swiglu", "squared_relu"])
def test_ops_that_quantise(op: str, rng: Any) -> None:
    x = torch.tensor(rng.normal(size=(3, 64))).to(torch.bfloat16)
    expected = bridge.torch.quantize(getattr(bridge.torch, op)(x), NVFP4)
    found = getattr(bridge.torch, op)(x, quantize=NVFP4)
    others = getattr(bridge.jax, op)(bridge.to_jax(x, copy=True), quantize=NVFP4)
    for own, other, right in zip(found, others, expected, strict=True):
        assert own.dtype == right.dtype
        np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
        np.testing.assert_array_equal(bytes_of(other), bytes_of(right))


def test_gradients(rng: Any) -> None:
    x, g = (torch.tensor(rng.normal(size=(3, 32)), requires_grad=True) for _ in range(2))
    whole = torch.tensor(0.5, requires_grad=True)
    y = bridge.torch.fake_quantize(x, NVFP4, global_scale=whole)
    dx, dw = torch.autograd.grad(y, (x, whole), g.detach(), allow_unused=True)
    assert torch.equal(dx, g)
    assert dw is None
    values, scales = bridge.torch.quantize(x, NVFP4, global_scale=whole)
    z = bridge.torch.dequantize(values, scales, dtype=torch.float64, global_scale=whole)
    (dw,) = torch.autograd.grad(z, whole, g.detach())
    torch.testing.assert_close(
        dw.double(), (z.detach() * g / 0.5).sum().detach(), rtol=1e-6, atol=1e-5
    )
    pull = jax.vjp(lambda x: bridge.jax.fake_quantize(x, NVFP4), jnp.ones((2, 32)))[1]
    assert jnp.all(pull(jnp.full((2, 32), 3.0))[0] == 3.0)


class _Module(torch.nn.Module):
    def forward(self, x: torch.Tensor, whole: torch.Tensor) -> Any:
        return bridge.torch.quantize(x, NVFP4, global_scale=whole)


def test_transforms(rng: Any) -> None:
    x, whole = torch.tensor(drawn(rng, (3, 5, 64), "float32")), torch.tensor(0.25)
    expected = _Module()(x, whole)
    torch.compiler.reset()
    forms = [
        torch.compile(_Module(), fullgraph=True, backend="aot_eager"),
        torch.func.vmap(_Module(), in_dims=(0, None)),
        torch.export.export(_Module(), (x, whole)).module(),
    ]
    for form in forms:
        for own, right in zip(form(x, whole), expected, strict=True):
            np.testing.assert_array_equal(bytes_of(own), bytes_of(right))

    def call(x: Any) -> Any:
        return bridge.jax.quantize(x, NVFP4, global_scale=jnp.float32(0.25))

    for wrap in (jax.jit, jax.vmap, jax.checkpoint):
        for own, right in zip(wrap(call)(jnp.asarray(x.numpy())), expected, strict=True):
            np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
