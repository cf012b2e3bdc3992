"""Attention in float64 NumPy, all scores at once, and its calls in both frameworks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bridge
from bridge.jax._adapter import arrays as arrays_of_jax
from bridge.jax._ops import attention as in_jax
from bridge.torch._adapter import arrays as arrays_of_torch
from bridge.torch._ops import attention as in_torch

DTYPES = ("float16", "bfloat16", "float32", "float64")
SMOOTH = ("q", "k", "v", "sink")

Case = dict[str, Any]


def visible(shape: tuple[int, ...], mask: Any, causal: bool, window: int | None) -> Any:
    """Returns True for each score that a query sees."""
    queries, keys = shape[-2:]
    seen = np.ones(shape, bool) if mask is None else ~np.broadcast_to(np.asarray(mask) != 0, shape)
    if causal:
        last = np.arange(queries)[:, None] + keys - queries
        seen = seen & (np.arange(keys) <= last)
        if window is not None:
            seen = seen & (np.arange(keys) > last - window)
    return seen


def reference(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    *,
    mask: Any = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    sink: Any = None,
    softcap: float | None = None,
) -> dict[str, Any]:
    """Returns y and the gradients of q, k, v and sink for the cotangent g, all in float64."""
    group = q.shape[-3] // max(k.shape[-3], 1)
    wide_k, wide_v = (np.repeat(x, group, -3) for x in (k, v))
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    raw = scale * np.einsum("...qd,...kd->...qk", q, wide_k)
    t = np.tanh(raw / softcap) if softcap else None
    s = raw if t is None else softcap * t
    seen = visible(s.shape, mask, causal, window)
    s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    beside = -np.inf if sink is None else np.broadcast_to(sink, q.shape[-3:-2])[:, None, None]
    top = np.maximum(top, beside)
    top = np.where(np.isneginf(top), 0.0, top)
    power = np.exp(s - top)
    own = np.exp(beside - top)
    total = power.sum(-1, keepdims=True) + own
    p = power / np.where(total == 0, 1.0, total)
    of_sink = own / np.where(total == 0, 1.0, total)
    found = {"y": np.einsum("...qk,...ke->...qe", p, wide_v)}
    dp = np.einsum("...qe,...ke->...qk", g, wide_v)
    mean = (p * dp).sum(-1, keepdims=True)
    ds = p * (dp - mean)
    if t is not None:
        ds = ds * (1 - t * t)
    found["q"] = scale * np.einsum("...qk,...kd->...qd", ds, wide_k)
    dk = scale * np.einsum("...qk,...qd->...kd", ds, q)
    dv = np.einsum("...qk,...qe->...ke", p, g)
    for name, d in (("k", dk), ("v", dv)):
        *lead, _, keys, features = d.shape
        found[name] = d.reshape(*lead, k.shape[-3], group, keys, features).sum(-3)
    if sink is not None:
        rows = -(of_sink * mean)[..., 0].sum(-1)
        rows = rows.sum(tuple(range(rows.ndim - 1)))
        found["sink"] = rows if np.ndim(sink) else rows.sum()
    return found


def drawn(
    rng: np.random.Generator,
    batch: tuple[int, ...] = (2,),
    heads: int = 4,
    key_heads: int = 2,
    queries: int = 37,
    keys: int = 50,
    d: int = 8,
    d_v: int = 6,
    has_sink: bool = False,
) -> Case:
    """Returns q, k, v, the sink and the cotangent g in float64."""
    shapes = {
        "q": (*batch, heads, queries, d),
        "k": (*batch, key_heads, keys, d),
        "v": (*batch, key_heads, keys, d_v),
        "g": (*batch, heads, queries, d_v),
    }
    case = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if has_sink:
        case["sink"] = rng.standard_normal(heads)
    return case


def to_torch(x: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(x).to(getattr(torch, dtype))


def tensors_of(case: Case, dtype: str) -> dict[str, torch.Tensor]:
    return {name: to_torch(x, dtype) for name, x in case.items()}


def run_torch(tensors: dict[str, torch.Tensor], rows: int = 0, **options: Any) -> torch.Tensor:
    """Runs attention in chunks of so many rows; 0 lets it choose."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    mask, sink = options.pop("mask", None), tensors.get("sink")
    if rows == 0:
        return bridge.torch.attention(q, k, v, mask=mask, sink=sink, **options)
    operands = in_torch._prepared.operands(q, k, v, mask, sink)
    return in_torch._composition.run(operands, _options(arrays_of_torch, q, rows, options))


def run_jax(arrays: dict[str, jax.Array], rows: int = 0, **options: Any) -> jax.Array:
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    mask, sink = options.pop("mask", None), arrays.get("sink")
    if rows == 0:
        return bridge.jax.attention(q, k, v, mask=mask, sink=sink, **options)
    operands = in_jax._prepared.operands(q, k, v, mask, sink)
    return in_jax._composition.run(operands, _options(arrays_of_jax, q, rows, options))


def _options(arrays: Any, q: Any, rows: int, given: dict[str, Any]) -> Any:
    names = ("window", "scale", "softcap")
    numbers = [given.get(name) for name in names]
    checked = in_torch.checked_options(arrays, q.shape[-1], given.get("causal", False), *numbers)
    return dataclasses.replace(checked, rows=rows)


def everything_torch(
    tensors: dict[str, torch.Tensor], rows: int = 0, **options: Any
) -> dict[str, torch.Tensor]:
    """Returns y and all gradients."""
    smooth = {n: tensors[n].detach().requires_grad_() for n in SMOOTH if n in tensors}
    y = run_torch(smooth, rows, **options)
    gradients = torch.autograd.grad(y, list(smooth.values()), tensors["g"])
    return {"y": y.detach(), **dict(zip(smooth, gradients, strict=True))}


def everything_jax(
    tensors: dict[str, torch.Tensor], rows: int = 0, **options: Any
) -> dict[str, jax.Array]:
    smooth = {n: bridge.to_jax(tensors[n].detach()) for n in SMOOTH if n in tensors}
    if options.get("mask") is not None:
        options["mask"] = jnp.asarray(options["mask"].numpy())
    y, back = jax.vjp(jax.jit(lambda arrays: run_jax(arrays, rows, **options)), smooth)
    (gradients,) = back(bridge.to_jax(tensors["g"]))
    return {"y": y, **gradients}


def same(one: torch.Tensor, other: Any) -> None:
    """Asserts that two arrays have the same bits; a NaN is a NaN."""
    if not isinstance(other, torch.Tensor):
        other = bridge.to_torch(jax.device_put(other, jax.devices()[0]), copy=True)
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    bits = [x.detach().contiguous().view(kind) for x in (one, other)]
    both_nan = one.isnan() & other.isnan()
    assert torch.equal(bits[0].masked_fill(both_nan, 0), bits[1].masked_fill(both_nan, 0))


def close(ours: torch.Tensor, expected: Any, dtype: str, factor: float = 1.0) -> None:
    unit = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 2e-15}[dtype]
    scale = max(1e-3, float(np.abs(expected).max(initial=0.0)))
    assert ours.shape == np.shape(expected)
    np.testing.assert_allclose(
        ours.detach().double().numpy(), expected, rtol=0, atol=4 * factor * unit * scale
    )
