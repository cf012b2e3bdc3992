"""Checks of `all_gather` on torch's ranks. Each rank compares with the truth by itself.

Every rank can generate the numbers of all ranks from seeds.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bridge.torch as bt
from bridge.collectives import GATHERED_DTYPES
from tests.distributed.processes import Place
from tools.own_process import bytes_at_peak

SHAPE = (3, 2, 5)


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns normal numbers, the same on every rank; for integers and bool, a mix of values."""
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
    if dtype.is_complex:
        other = torch.from_numpy(np.random.default_rng(seed + 9999).standard_normal(shape))
        return torch.complex(values, other).to(dtype)
    if dtype is torch.bool:
        return values > 0
    return (values if dtype.is_floating_point else values * 50 + 100).to(dtype)


def together(parts: list[Tensor], dim: int, tiled: bool) -> Tensor:
    return torch.cat(parts, dim) if tiled else torch.stack(parts, dim)


def parts_of(whole: Tensor, dim: int, tiled: bool, count: int) -> list[Tensor]:
    return list(whole.chunk(count, dim) if tiled else whole.unbind(dim))


def same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach().contiguous(), b.detach().contiguous()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a).contiguous(), torch.view_as_real(b).contiguous()
    return torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


def values(place: Place, dim: int, tiled: bool) -> None:
    """The gathered array is the ranks' arrays, bit for bit, for every dtype."""
    for code, name in enumerate(GATHERED_DTYPES):
        dtype = getattr(torch, name)
        if dtype is torch.complex32:
            parts = [numbers(r, SHAPE, torch.complex64).to(dtype) for r in range(place.world_size)]
        else:
            parts = [numbers(100 * code + r, SHAPE, dtype) for r in range(place.world_size)]
        mine = parts[place.rank]
        y = bt.all_gather(mine, dim=dim, tiled=tiled)
        if name.startswith("float8") or name == "complex32":  # torch has no cat or stack for them
            parts = [_as_bytes(part) for part in parts]
            y = _as_bytes(y)
        assert same_bits(y, together(parts, dim % (3 + (not tiled)), tiled)), name
        assert y._base is None
        assert y.data_ptr() != mine.data_ptr()


def _as_bytes(x: Tensor) -> Tensor:
    if x.dtype is torch.complex32:
        x = torch.view_as_real(x).view(torch.int16)
        return x[..., 0].to(torch.int64) * 65536 + x[..., 1]
    return x.view(torch.uint8)


def gradients(place: Place, dim: int, tiled: bool, dtype_name: str, cotangent: str) -> None:
    """Every gradient rule against its formula in float64, and its second derivative."""
    world, rank = place.world_size, place.rank
    dtype = getattr(torch, dtype_name)
    inputs = [numbers(r, SHAPE, dtype) for r in range(world)]
    whole = together(inputs, dim, tiled)
    cotangents = [_cotangent(50 + r, whole, cotangent) for r in range(world)]
    my_parts = [parts_of(g, dim, tiled, world)[rank] for g in cotangents]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    total = torch.stack([part.to(wide) for part in my_parts]).sum(0)
    expected = {"sum": total, "mean": total / world, "local": my_parts[rank].to(wide)}
    for rule, truth in expected.items():
        x = inputs[rank].clone().requires_grad_()
        y = bt.all_gather(x, dim=dim, tiled=tiled, grad=rule)
        assert y.requires_grad
        g = cotangents[rank].detach().requires_grad_()
        (dx,) = torch.autograd.grad(y, x, g, create_graph=True)
        assert dx.shape == x.shape
        assert dx.dtype == dtype
        scale = 1 if rule == "local" else world
        torch.testing.assert_close(
            dx.detach().to(wide), truth, rtol=0, atol=scale * 4 * _epsilon(dtype)
        )
        if world == 2 and not dtype.is_complex:  # one addition, rounded once
            exact = {"sum": total.to(dtype), "mean": total.to(dtype) / 2, "local": my_parts[rank]}
            assert same_bits(dx, exact[rule]), rule
        if rule == "local":
            assert same_bits(dx, my_parts[rank])
        # dx is linear in g: its transpose puts v at this rank's place, or gathers it.
        everyones = [numbers(90 + r, SHAPE, dtype) for r in range(world)]
        (dg,) = torch.autograd.grad(dx, g, everyones[rank])
        if rule == "local":
            kept = [v if r == rank else torch.zeros_like(v) for r, v in enumerate(everyones)]
        else:
            kept = [v / world if rule == "mean" else v for v in everyones]
        torch.testing.assert_close(dg, together(kept, dim, tiled), rtol=0, atol=0)


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _cotangent(seed: int, like: Tensor, kind: str) -> Tensor:
    if kind == "contiguous":
        return numbers(seed, tuple(like.shape), like.dtype)
    if kind == "transposed":
        return numbers(seed, tuple(like.shape[::-1]), like.dtype).permute(*range(like.ndim)[::-1])
    if kind == "sliced":
        return numbers(seed, (*like.shape[:-1], 2 * like.shape[-1]), like.dtype)[..., ::2]
    assert kind == "expanded"
    return numbers(seed, (), like.dtype).expand(like.shape)


def integers_have_no_gradient(place: Place) -> None:
    for dtype in (torch.int64, torch.bool, torch.uint8):
        assert not bt.all_gather(torch.ones(2, dtype=dtype)).requires_grad


def no_gradient_without_asking(place: Place) -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert not bt.all_gather(x).requires_grad
    assert not bt.all_gather(x.detach()).requires_grad


def strided_inputs(place: Place) -> None:
    """Inputs may have any strides, and be lazily conjugated or negated."""
    world = place.world_size
    bases = [numbers(r, (4, 6), torch.complex128) for r in range(world)]
    forms: dict[str, Any] = {
        "transposed": lambda b: b.T,
        "sliced": lambda b: b[::2, 1::2],
        "expanded": lambda b: b[:1].expand(5, 6),
        "conjugate": lambda b: b.conj(),
        "negative imaginary": lambda b: b.conj().imag,
        "empty": lambda b: b[:0],
    }
    for name, form in forms.items():
        for dim in (0, 1):
            y = bt.all_gather(form(bases[place.rank]), dim=dim)
            assert torch.equal(y, torch.cat([form(b) for b in bases], dim)), (name, dim)


def large(place: Place) -> None:
    """Large arrays take another code path: every dtype and layout, synchronous and asynchronous."""
    world, rank = place.world_size, place.rank
    for dtype in (torch.float32, torch.bool, torch.complex64):
        for dim, tiled in ((0, True), (1, True), (2, False)):
            parts = [numbers(r, (1100, 1000), dtype) for r in range(world)]
            x = parts[rank].clone()
            if dtype.is_floating_point:
                x.requires_grad_()
            first = bt.all_gather(x, dim=dim, tiled=tiled, async_op=True)
            again = bt.all_gather(x.detach().flip(0), dim=dim, tiled=tiled)
            bt.all_gather(x.detach(), async_op=True)  # its result is never used
            y = first.wait()
            assert same_bits(y, together(parts, dim, tiled))
            assert same_bits(again, together([p.flip(0) for p in parts], dim, tiled))
            assert y._base is None
            if x.requires_grad:
                y.sum().backward()
                assert torch.equal(x.grad, torch.full_like(x, world))


def memory(place: Place) -> dict[str, float]:
    """Returns the peak MiB that a call on 32 MiB adds to the process, besides its input."""
    x = torch.zeros(1 << 13, 1 << 10)
    calls = {
        "tiled": lambda: bt.all_gather(x),
        "stacked": lambda: bt.all_gather(x, dim=1, tiled=False),
        "along 1": lambda: bt.all_gather(x, dim=1),
        "with gradient": lambda: bt.all_gather(x.detach().requires_grad_()),
    }
    peaks = {}
    for name, call in calls.items():
        call()
        time.sleep(0.2)  # transports release memory a little later
        torch.distributed.barrier()
        peaks[name] = bytes_at_peak(call) / 2**20
    return peaks
