"""The rotary embeddings of apex: by angles, by tables, for packed sequences and for images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named
from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn


@declared()
@named("rotary")
def _rotary_apart(x: bl.Halves, cos: bl.Table, sin: bl.Table, cos2: bl.Table, sin2: bl.Table):
    """`rotary` with a table for each half: apex's tables need not be doubled."""
    first, second = x
    return bl.halves(first * cos - second * sin, second * cos2 + first * sin2)


# Make it now: a first call under torch.compile could not make it.
_apart = _rotary_apart.torch


def fused_apply_rotary_pos_emb(
    t: Tensor, freqs: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """Rotates t by the angles freqs, whose cosines and sines are rounded to the dtype of t.

    Args:
      t: `[s, b, h, d]`.
      freqs: `[s, 1, 1, r]` of any floating dtype, r even and at most d: an angle for each of the
        leading r columns of t. Column i makes a pair with column i + r/2. The columns from r on
        stay as they are.
      transpose_output_memory: the result's memory has the order `[b, s, h, d]`.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: shapes that do not fit.
    """
    if is_overridden(given := (t, freqs)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "fused_apply_rotary_pos_emb"
    check_tensors(name, 2, t=t, freqs=freqs)
    _check(name, t, "sbhd", freqs=(freqs, t.shape[:1]))
    return _in_memory(t, freqs.cos(), freqs.sin(), transpose_output_memory)


def fused_apply_rotary_pos_emb_cached(
    t: Tensor, cos: Tensor, sin: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """Rotates t by tables of cosines and sines, which are rounded to the dtype of t.

    Args:
      t, transpose_output_memory: as for `fused_apply_rotary_pos_emb`.
      cos, sin: `[s, 1, 1, r]` of any floating dtype.

    Raises:
      TypeError, ValueError: as `fused_apply_rotary_pos_emb`.
    """
    if is_overridden(given := (t, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "fused_apply_rotary_pos_emb_cached"
    check_tensors(name, 3, t=t, cos=cos, sin=sin)
    _check(name, t, "sbhd", cos=(cos, t.shape[:1]), sin=(sin, t.shape[:1]))
    return _in_memory(t, cos, sin, transpose_output_memory)


def fused_apply_rotary_pos_emb_thd(t: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """Rotates the tokens of packed sequences; each sequence starts with the first angles.

    The host does not wait for cu_seqlens. Tokens after the last sequence stay as they are, and
    tokens beyond the last angle become NaN; the original leaves both unwritten.

    Args:
      t: `[tokens, h, d]`.
      cu_seqlens: integers `[sequences + 1]`: the start of each sequence, and the end of the last.
      freqs: `[positions, 1, 1, r]`, as for `fused_apply_rotary_pos_emb`.

    Raises:
      TypeError, ValueError: as `fused_apply_rotary_pos_emb`.
    """
    if is_overridden(given := (t, cu_seqlens, freqs)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "fused_apply_rotary_pos_emb_thd"
    check_tensors(name, 3, t=t, cu_seqlens=cu_seqlens, freqs=freqs)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: cu_seqlens has dtype {cu_seqlens.dtype}, expected torch.int32")
    if cu_seqlens.ndim != 1 or not cu_seqlens.numel():
        raise ValueError(
            f"{name}: cu_seqlens has shape {list(cu_seqlens.shape)}, expected [sequences + 1]"
        )
    _check(name, t, "thd", freqs=(freqs, freqs.shape[:1]))
    if not freqs.shape[0]:
        raise ValueError(f"{name}: freqs has shape {list(freqs.shape)}, expected a position")
    place = torch.arange(t.shape[0], device=t.device, dtype=cu_seqlens.dtype)
    sequence = torch.searchsorted(cu_seqlens, place, right=True) - 1
    position = place - cu_seqlens[sequence.clamp(min=0)]
    last = freqs.shape[0] - 1
    angles = freqs[:, 0][position.clamp(0, last)]
    angles = angles.masked_fill((position > last)[:, None, None], float("nan"))
    is_behind = place >= cu_seqlens[-1]
    angles = angles.masked_fill(is_behind[:, None, None], 0.0)
    return _turned(t, angles.cos(), angles.sin())


def fused_apply_rotary_pos_emb_2d(
    t: Tensor,
    img_h: int,
    img_w: int,
    cos_h: Tensor,
    sin_h: Tensor,
    cos_w: Tensor,
    sin_w: Tensor,
) -> Tensor:
    """Rotates the first half of each row by angles of its height, the second by those of its width.

    Args:
      t: `[b, img_h * img_w, h, d]`, d a multiple of 4.
      img_h, img_w: the size of an image.
      cos_h, sin_h: `[1, H, 1, d/2]` with H at least img_h, of any floating dtype.
      cos_w, sin_w: `[1, W, 1, d/2]` with W at least img_w.

    Raises:
      TypeError, ValueError: as `fused_apply_rotary_pos_emb`.
    """
    if is_overridden(given := (t, cos_h, sin_h, cos_w, sin_w)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "fused_apply_rotary_pos_emb_2d"
    tables = {"cos_h": cos_h, "sin_h": sin_h, "cos_w": cos_w, "sin_w": sin_w}
    check_tensors(name, 5, t=t, **tables)
    if t.ndim != 4 or t.shape[1] != img_h * img_w or t.shape[-1] % 4:
        raise ValueError(
            f"{name}: t has shape {list(t.shape)}, expected [b, {img_h} * {img_w}, h, d] with a "
            "multiple of 4 for d"
        )
    half = t.shape[-1] // 2
    for argument, table in tables.items():
        size = img_h if argument.endswith("h") else img_w
        spec = spec_of(table[:, :size]) if table.ndim == 4 else None
        if spec is None or not spec.has_shape((1, size, 1, half)):
            raise ValueError(
                f"{name}: {argument} has shape {list(table.shape)}, expected [1, {size}, 1, "
                f"{half}], or more in the second dimension"
            )
    image = t.unflatten(1, (img_h, img_w))
    of_height = [table[:, :img_h, None] for table in (cos_h, sin_h)]
    of_width = [table[:, None, :img_w] for table in (cos_w, sin_w)]
    first, second = image.split(half, -1)
    y = joined((_turned(first, *of_height), _turned(second, *of_width)), -1)
    return y.flatten(1, 2)


def _check(function: str, t: Tensor, dims: str, **tables: tuple[Tensor, Any]) -> None:
    """Raises ValueError for a table with another number of positions, or that does not fit t."""
    if t.ndim != len(dims):
        raise ValueError(f"{function}: t has shape {list(t.shape)}, expected [{', '.join(dims)}]")
    columns = next(iter(tables.values()))[0].shape[-1:]
    for name, (table, positions) in tables.items():
        r = table.shape[-1] if table.ndim else 0
        if not spec_of(table).has_shape((*positions, 1, 1, *columns)) or r % 2 or r > t.shape[-1]:
            raise ValueError(
                f"{function}: {name} has shape {list(table.shape)}, expected "
                f"[{', '.join(map(str, positions)) or 'positions'}, 1, 1, r] with an even r, at "
                f"most {t.shape[-1]}, the same for all tables"
            )


def _turned(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns t with its leading columns rotated, in contiguous memory."""
    r = cos.shape[-1]
    cos, sin = cos.to(t.dtype), sin.to(t.dtype)
    (cos1, cos2), (sin1, sin2) = (table.tensor_split(2, -1) for table in (cos, sin))
    y = _apart(t[..., :r], cos1, sin1, cos2, sin2)
    y = joined((y, t[..., r:]), -1) if r < t.shape[-1] else y
    return y.contiguous()  # type: ignore[no-any-return]


def _in_memory(t: Tensor, cos: Tensor, sin: Tensor, is_transposed: bool) -> Tensor:
    if not is_transposed:
        return _turned(t, cos, sin)
    return _turned(*[each.transpose(0, 1) for each in (t, cos, sin)]).transpose(0, 1)


class FusedRoPEFunc(Function, metaclass=DropIn):
    """`FusedRoPEFunc.apply(t, freqs, transpose_output_memory)`."""

    apply = staticmethod(fused_apply_rotary_pos_emb)  # type: ignore[assignment]


class FusedRoPECachedFunc(Function, metaclass=DropIn):
    """`FusedRoPECachedFunc.apply(t, cos, sin, transpose_output_memory)`."""

    apply = staticmethod(fused_apply_rotary_pos_emb_cached)  # type: ignore[assignment]


class FusedRoPETHDFunc(Function, metaclass=DropIn):
    """`FusedRoPETHDFunc.apply(t, cu_seqlens, freqs)`."""

    apply = staticmethod(fused_apply_rotary_pos_emb_thd)  # type: ignore[assignment]


class FusedRoPE2DFunc(Function, metaclass=DropIn):
    """`FusedRoPE2DFunc.apply(t, img_h, img_w, cos_h, sin_h, cos_w, sin_w)`."""

    apply = staticmethod(fused_apply_rotary_pos_emb_2d)  # type: ignore[assignment]
