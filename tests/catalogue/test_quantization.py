"""quantize, fake_quantize and dequantize: against torch's own casts, byte for byte."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax
import bridge.torch
from bridge import Quantization
from bridge.catalogue.quantization import FORMATS as ALL
from tests.catalogue.formulas import assert_transforms
from tests.catalogue.refusals import Refusal, assert_refused
from tests.frameworks import DTYPES, numpy_dtype

FORMATS = {name: form for name, form in ALL.items() if name != "nvfp4"}  # test_four_bits.py
SHAPES = [(3, 128), (2, 3, 256), (5, 4096), (1, 384), (70, 128), (128,), (0, 128), (3, 0)]
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-30, 3e38)


def drawn(rng: Any, shape: Any, dtype: str, special: bool = False) -> np.ndarray:
    """Returns numbers of many sizes; some blocks have ties, and others a special number."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape)
    blocks = x.reshape(-1, 32)
    blocks[::3] = rng.integers(-1000, 1000, size=blocks[::3].shape) / 16
    if special:
        for row in range(len(blocks)):
            blocks[row, rng.integers(32)] = SPECIAL[row % len(SPECIAL)]
        blocks[1::9] = 0.0
    with np.errstate(over="ignore"):
        return x.astype(numpy_dtype(dtype))


def plain(x: torch.Tensor, form: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The format in torch's own functions and casts: float64 for float64, otherwise float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if not x.numel():
        scales = (*x.shape[:-1], *([x.shape[-1] // form.block] if form.block else []))
        return x.to(getattr(torch, form.dtype)), x.new_full(scales, 2.0**-126, dtype=torch.float32)
    block = form.block or x.shape[-1]
    rows = wide.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    largest = rows.abs().amax(-1, keepdim=True)
    if form.scale_dtype == "float32":
        most = 127.0 if form.dtype == "int8" else 448.0
        scale = (largest / most).to(torch.float32).clamp(min=2.0**-126)
    else:
        _, exponent = torch.frexp(largest.double())
        power = torch.ldexp(torch.ones_like(largest, dtype=torch.float64), exponent - 9)
        power = torch.where(largest.isfinite(), power, largest)
        scale = torch.where(largest == 0, 0.0, power).clamp(min=2.0**-127).to(torch.float32)
    values = rows / scale
    if form.dtype == "int8":
        values = values.nan_to_num(0.0, posinf=200, neginf=-200).round().clamp(-128, 127)
    else:
        values = values.clamp(-448, 448)
    scale = scale.to(getattr(torch, form.scale_dtype)).squeeze(-1)
    if form.block is None:
        scale = scale.squeeze(-1)
    return values.to(getattr(torch, form.dtype)).reshape(x.shape), scale


def bytes_of(array: Any) -> np.ndarray:
    """Returns the bytes of a tensor or an array."""
    if isinstance(array, torch.Tensor):
        array = array.reshape(-1).contiguous().view(torch.uint8)
    return np.frombuffer(np.asarray(array).tobytes(), np.uint8)


def without_nan_signs(found: np.ndarray, dtype: str) -> np.ndarray:
    """Makes all NaNs alike: torch keeps their signs."""
    if dtype == "float8_e4m3fn":
        return np.where(found & 0x7F == 0x7F, 0x7F, found)
    if dtype == "float32":
        words = found.view(np.float32)
        return np.where(np.isnan(words), np.float32(np.nan), words).view(np.uint8)
    return found


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_those_of_torch(
    name: str, shape: Any, dtype: str, special: bool, rng: Any
) -> None:
    x, form = drawn(rng, shape, dtype, special), FORMATS[name]
    tensor = bridge.to_torch(jnp.asarray(x), copy=True) if dtype == "bfloat16" else torch.tensor(x)
    expected = plain(tensor, form)
    found = bridge.torch.quantize(tensor, Quantization(name))
    with jax.enable_x64(True):
        others = bridge.jax.quantize(jnp.asarray(x), Quantization(name))
    dtypes = form.dtype, form.scale_dtype
    for own, other, right, kind in zip(found, others, expected, dtypes, strict=True):
        assert own.dtype == getattr(torch, kind)
        assert other.dtype.name == kind
        assert own.shape == other.shape == right.shape
        np.testing.assert_array_equal(bytes_of(own), bytes_of(other))
        mine, theirs = (without_nan_signs(bytes_of(each), kind) for each in (own, right))
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_is_the_product(name: str, dtype: str, rng: Any) -> None:
    x, q = torch.tensor(drawn(rng, (4, 256), "float32")), Quantization(name)
    x = x.to(getattr(torch, dtype))
    values, scales = bridge.torch.quantize(x, q)
    block = q.block or 256
    wide = torch.float64 if dtype == "float64" else torch.float32
    product = values.to(wide).reshape(4, -1, block) * scales.to(wide).reshape(4, -1, 1)
    found = bridge.torch.dequantize(values, scales, dtype=x.dtype)
    assert found.dtype == x.dtype
    assert torch.equal(found, product.reshape(4, 256).to(x.dtype))
    assert torch.equal(bridge.torch.fake_quantize(x, q), found)
    # A value has 4 bits (int8: 7 and a sign), and saturates by at most 1/8 in mxfp8.
    assert torch.all((found - x).abs() <= 0.13 * x.abs() + scales.double().max() / 2)
    with jax.enable_x64(True):
        arrays = [bridge.to_jax(t, copy=True) for t in (values, scales)]
        other = bridge.jax.dequantize(*arrays, dtype=dtype)
        fake = bridge.jax.fake_quantize(bridge.to_jax(x, copy=True), q)
    np.testing.assert_array_equal(bytes_of(other), bytes_of(found))
    np.testing.assert_array_equal(bytes_of(fake), bytes_of(found))


def test_gradients(rng: Any) -> None:
    """fake_quantize passes cotangents on, quantize has none, and scales have their own."""
    x, g = (torch.tensor(rng.normal(size=(3, 64)), requires_grad=True) for _ in range(2))
    for name in ("int8_row", "mxfp8"):
        q = Quantization(name)
        (dx,) = torch.autograd.grad(bridge.torch.fake_quantize(x, q), x, g.detach())
        assert torch.equal(dx, g)
        with jax.enable_x64(True):
            arrays = [jnp.asarray(t.detach().numpy()) for t in (x, g)]
            _, pull = jax.vjp(lambda x, q=q: bridge.jax.fake_quantize(x, q), arrays[0])
            np.testing.assert_array_equal(pull(arrays[1])[0], arrays[1])
            slope = jax.grad(lambda x, q=q: bridge.jax.quantize(x, q)[1].astype("float64").sum())
            assert not slope(arrays[0]).any()
        assert not any(each.requires_grad for each in bridge.torch.quantize(x, q))
    values, scales = bridge.torch.quantize(x, Quantization("int8_row"))
    scales = scales.double().requires_grad_()
    y = bridge.torch.dequantize(values, scales, dtype=torch.float64)
    (ds,) = torch.autograd.grad(y, scales, g.detach())
    torch.testing.assert_close(ds, (values.double() * g).sum(-1))


def test_transforms_of_fake_quantize() -> None:
    def call(ops: Any, x: Any, y: Any) -> Any:
        return ops.dequantize(*ops.quantize(x, Quantization("mxfp8")), dtype=x.dtype) * y * y

    assert_transforms(lambda ops, x, y: call(ops, x * 0 + 0.5, y), ((4, 32),) * 2, (True, True))


@pytest.mark.parametrize("name", FORMATS)
def test_transforms_of_quantize(name: str, rng: Any) -> None:
    x, q = torch.tensor(drawn(rng, (3, 5, 128), "float32")), Quantization(name)
    expected = bridge.torch.quantize(x, q)
    torch.compiler.reset()
    forms = [
        torch.compile(lambda x: bridge.torch.quantize(x, q), fullgraph=True, backend="aot_eager"),
        torch.func.vmap(lambda x: bridge.torch.quantize(x, q)),
        lambda x: bridge.torch.quantize(x[:, :1].expand(3, 5, 128).contiguous() * 0 + x, q),
        lambda x: bridge.torch.quantize(x.movedim(0, 1).contiguous().movedim(0, 1), q),
        lambda x: bridge.torch.quantize(torch.stack([x, x], -1)[..., 0], q),
    ]
    for form in forms:
        for own, right in zip(form(x), expected, strict=True):
            np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
    array = jnp.asarray(x.numpy())
    of_jax = [jax.jit, jax.vmap, jax.checkpoint]
    for wrap in of_jax:
        for own, right in zip(
            wrap(lambda x: bridge.jax.quantize(x, q))(array), expected, strict=True
        ):
            np.testing.assert_array_equal(bytes_of(own), bytes_of(right))
    exported = torch.export.export(_Module(q), (x,)).module()
    for own, right in zip(exported(x), expected, strict=True):
        np.testing.assert_array_equal(bytes_of(own), bytes_of(right))


class _Module(torch.nn.Module):
    def __init__(self, quantization: Quantization) -> None:
        super().__init__()
        self.quantization = quantization

    def forward(self, x: torch.Tensor) -> Any:
        return bridge.torch.quantize(x, self.quantization)


def test_a_row_alone_has_the_bytes_of_the_batch(rng: Any) -> None:
    x = torch.tensor(drawn(rng, (9, 2048), "float32"))
    for name in FORMATS:
        whole = bridge.torch.quantize(x, Quantization(name))
        for row in (0, 8):
            alone = bridge.torch.quantize(x[row], Quantization(name))
            for own, right in zip(alone, whole, strict=True):
                np.testing.assert_array_equal(bytes_of(own), bytes_of(right[row]))


REFUSALS: dict[str, Refusal] = {
    "no quantization": (lambda m, a: m.quantize(a(2, 64), "mxfp8"), TypeError, "bridge.Quantiz"),
    "blocks": (
        lambda m, a: m.quantize(a(2, 48), Quantization("mxfp8")),
        ValueError,
        r"x has shape \[2, 48\], expected a last dimension that is a multiple of 32",
    ),
    "a number": (lambda m, a: m.quantize(a(), Quantization("mxfp8")), ValueError, "0-d"),
    "a number in rows": (lambda m, a: m.quantize(a(), Quantization("int8_row")), ValueError, "0-d"),
    "scales": (
        lambda m, a: m.dequantize(a(2, 64, dtype="int8"), a(2, 3)),
        ValueError,
        "one for each row or for each block",
    ),
    "rows of scales": (
        lambda m, a: m.dequantize(a(2, 64, dtype="int8"), a(3)),
        ValueError,
        r"scales has shape \[3\], expected \[2\]",
    ),
    "values": (lambda m, a: m.dequantize(a(2, 64), a(2)), TypeError, "values has dtype float32"),
    "a global scale": (
        lambda m, a: m.quantize(a(2, 64), Quantization("mxfp8"), global_scale=a()),
        ValueError,
        "global_scale is given, but 'mxfp8' has none",
    ),
    "two global scales": (
        lambda m, a: m.fake_quantize(a(2, 64), Quantization("nvfp4"), global_scale=a(2)),
        ValueError,
        r"global_scale has shape \[2\]",
    ),
    "a global scale of 8 bits": (
        lambda m, a: m.dequantize(a(2, 64, dtype="int8"), a(2), global_scale=a()),
        ValueError,
        "values has dtype int8, expected pairs",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    assert_refused(REFUSALS[name])


def test_unknown_formats() -> None:
    with pytest.raises(ValueError, match="'mxfp4', expected one of 'fp8_row', 'int8_row'"):
        Quantization("mxfp4")
    with pytest.raises(ValueError, match="dtype is int8"):
        bridge.torch.dequantize(torch.ones(2, 2, dtype=torch.int8), torch.ones(2), dtype=torch.int8)
