"""Forms of `quantize` and `fake_quantize`: every byte follows from the definition of a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from bridge import Quantization
from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Arithmetic, Bounded, exact, no_own

# The largest number of a format's values, and the dtype of its scales.
_MOST = {"int8": 127.0, "float8_e4m3fn": 448.0}
_DTYPE = {"int8_row": "int8", "fp8_row": "float8_e4m3fn", "fp8_block128": "float8_e4m3fn"}
_DTYPE["mxfp8"] = "float8_e4m3fn"


def _parts(name: str, x: Array, arithmetic: str) -> tuple[Array, Array]:
    """Returns values `[..., blocks, block]` and scales `[..., blocks, 1]` of finite numbers.

    A quotient is rounded in the arithmetic, and once more to the format.
    """
    block = Quantization(name).block or x.shape[-1]
    rows = x.reshape(*x.shape[:-1], -1, block)
    largest, dtype = np.abs(rows).max(-1, keepdims=True), _DTYPE[name]
    if name == "mxfp8":
        power = np.ldexp(1.0, np.frexp(largest)[1] - 9)
        scale = np.maximum(np.where(largest == 0.0, 0.0, power), 2.0**-127)
    else:
        quotient = (largest.astype(arithmetic) / np.asarray(_MOST[dtype], arithmetic)).astype("f4")
        scale = np.maximum(quotient.astype(np.float64), 2.0**-126)
    quotients = rows.astype(arithmetic) / scale.astype(arithmetic)
    if dtype == "int8":
        return np.clip(np.rint(quotients), -128, 127).astype(np.int8), scale
    limited = np.clip(quotients, -_MOST[dtype], _MOST[dtype])
    return limited.astype(ml_dtypes.float8_e4m3fn), scale


def _bytes_bounds(name: str, case: Any, p: Operands) -> Mapping[str, Bounded]:
    values, scales = _parts(name, p["x"], case.arithmetic)
    kind = ml_dtypes.float8_e8m0fnu if name == "mxfp8" else np.float32
    lead = p["x"].shape[:-1]
    both = [values.reshape(*lead, -1), scales[..., 0].astype(kind)]
    return {"forward": exact(np.concatenate([each.view(np.uint8) for each in both], -1))}


def _bytes(ops: Any, p: Operands, name: str) -> Any:
    """Returns the bytes of values and scales side by side, as numbers of x's dtype."""
    values, scales = ops.quantize(p["x"], Quantization(name))
    if hasattr(values, "astype"):
        import jax
        import jax.numpy as jnp

        rows = scales.reshape(*values.shape[:-1], -1)
        both = [jax.lax.bitcast_convert_type(each, jnp.uint8) for each in (values, rows)]
        both = [each.reshape(*values.shape[:-1], -1) for each in both]
        return jnp.concatenate(both, -1).astype(p["x"].dtype)
    import torch

    of_scales = scales.reshape(*values.shape[:-1], -1)
    tensors = [each.contiguous().view(torch.uint8) for each in (values, of_scales)]
    return torch.cat(tensors, -1).to(p["x"].dtype)


def _product_bounds(name: str, case: Any, p: Operands) -> Mapping[str, Bounded]:
    values, scales = _parts(name, p["x"], case.arithmetic)
    product = values.astype(case.arithmetic) * scales.astype(case.arithmetic)
    product = product.reshape(p["x"].shape).astype(np.float64)
    rounded = Arithmetic(case.arithmetic).rounded(exact(product), case.x)
    passed = {quantity: exact(p[given]) for quantity, given in _PASSED.items()}
    return {"forward": rounded, "d2x": exact(np.zeros(product.shape)), **passed}


# The gradient passes x by (straight through), so these quantities are operands.
_PASSED = {"dx": "g", "jvp": "t_x", "d2g": "v_x"}


def _form(name: str, op: str, shape: tuple[int, ...]) -> Entry:
    is_smooth = op == "fake_quantize"

    def bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
        return (_product_bounds if is_smooth else _bytes_bounds)(name, case, p)

    def call(ops: Any, p: Operands) -> Any:
        return ops.fake_quantize(p["x"], Quantization(name)) if is_smooth else _bytes(ops, p, name)

    return Entry(
        f"{op} {name}",
        {"x": "numbers of many sizes"},
        ("like x",),
        call,
        no_own,
        no_own,
        compared=Comparison(
            "quantization",
            bounds=bounds,
            differentiable=is_smooth,
            second_order=is_smooth,
            own=False,
            usual=False,
            shapes=(shape,),
        ),
    )


QUANTIZATIONS = (
    _form("mxfp8", "quantize", (8, 96)),
    _form("fp8_block128", "quantize", (8, 256)),
    _form("fp8_row", "quantize", (8, 23)),
    _form("int8_row", "quantize", (8, 23)),
    _form("mxfp8", "fake_quantize", (8, 96)),
    _form("int8_row", "fake_quantize", (8, 23)),
)
