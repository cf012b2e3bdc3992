"""The rotary embeddings of apex, compared with the formula in float64.

Shapes are like those in tests/L0/run_transformer/test_fused_rope.py; tables are random, so that
swapped halves of a row would be seen.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck

from bridge.torch import apex, rotary
from tests.torch.expected import assert_same_bits
from tests.torch.replay import replay

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def turned(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the formula, in the dtype of t."""
    leading, rest = t[..., : cos.shape[-1]], t[..., cos.shape[-1] :]
    first, second = leading.chunk(2, -1)
    return torch.cat((leading * cos + torch.cat((-second, first), -1) * sin, rest), -1)


def tables_of(freqs: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns tables rounded to a dtype, as exact numbers."""
    return freqs.cos().to(dtype).double(), freqs.sin().to(dtype).double()


@dtypes
@pytest.mark.parametrize("columns", [16, 8])
@pytest.mark.parametrize("transposed", [False, True])
def test_angles_and_tables(draw: Any, dtype: torch.dtype, columns: int, transposed: bool) -> None:
    t, freqs = draw(5, 2, 3, 16, dtype=dtype), draw(5, 1, 1, columns, dtype=torch.float32)
    tables = tables_of(freqs, dtype)
    for layout in (t, t.transpose(0, 1).contiguous().transpose(0, 1)):
        for function in (apex.fused_apply_rotary_pos_emb, apex.FusedRoPEFunc.apply):
            ours = partial(function, freqs=freqs, transpose_output_memory=transposed)
            replay(ours, lambda t: turned(t, *tables), [layout])
        y = apex.fused_apply_rotary_pos_emb(layout, freqs, transposed)
        assert (y.transpose(0, 1) if transposed else y).is_contiguous()
        for function in (apex.fused_apply_rotary_pos_emb_cached, apex.FusedRoPECachedFunc.apply):
            assert_same_bits(function(layout, freqs.cos(), freqs.sin(), transposed), y)


def test_gradients_of_angles_and_tables(draw: Any) -> None:
    shapes = (3, 2, 1, 6), (3, 1, 1, 4), (3, 1, 1, 4)
    t, cos, sin = (draw(*shape, dtype=torch.float64, grad=True) for shape in shapes)
    assert gradcheck(apex.fused_apply_rotary_pos_emb, (t, cos), check_forward_ad=True)
    assert gradcheck(apex.fused_apply_rotary_pos_emb_cached, (t, cos, sin))


@dtypes
def test_packed_sequences(draw: Any, dtype: torch.dtype) -> None:
    """One sequence is empty, and two tokens come after the last sequence."""
    ends = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    t, freqs = draw(9, 2, 8, dtype=dtype), draw(5, 1, 1, 6, dtype=torch.float32)

    def exact(t: Tensor) -> Tensor:
        tables = [table[:, 0] for table in tables_of(freqs, dtype)]
        parts = [
            turned(t[start:end], *(table[: end - start] for table in tables))
            for start, end in ((0, 3), (3, 3), (3, 7))
        ]
        return torch.cat((*parts, t[7:]))

    for function in (apex.fused_apply_rotary_pos_emb_thd, apex.FusedRoPETHDFunc.apply):
        replay(partial(function, cu_seqlens=ends, freqs=freqs), exact, [t])
    y = apex.fused_apply_rotary_pos_emb_thd(t, ends, freqs)
    assert_same_bits(y[7:], t[7:])
    few = apex.fused_apply_rotary_pos_emb_thd(t, ends, freqs[:3])
    assert few[6, :, :6].isnan().all()
    assert_same_bits(few[:6], y[:6])


@dtypes
def test_images(draw: Any, dtype: torch.dtype) -> None:
    t = draw(2, 6, 3, 8, dtype=dtype)
    tables = [draw(1, size, 1, 4, dtype=torch.float32) for size in (4, 4, 3, 5)]
    tables[3] = tables[3][:, :3]  # a part of a larger table

    def exact(t: Tensor) -> Tensor:
        cos_h, sin_h, cos_w, sin_w = (table.to(dtype).double() for table in tables)
        image = t.unflatten(1, (2, 3))
        first = turned(image[..., :4], cos_h[:, :2, None], sin_h[:, :2, None])
        second = turned(image[..., 4:], cos_w[:, None, :3], sin_w[:, None, :3])
        return torch.cat((first, second), -1).flatten(1, 2)

    named = dict(zip(("cos_h", "sin_h", "cos_w", "sin_w"), tables, strict=True))
    for function in (apex.fused_apply_rotary_pos_emb_2d, apex.FusedRoPE2DFunc.apply):
        replay(partial(function, img_h=2, img_w=3, **named), exact, [t])


def test_doubled_tables_give_the_bits_of_rotary(draw: Any) -> None:
    t, angles = draw(5, 2, 3, 16), draw(5, 1, 1, 8)
    y = apex.fused_apply_rotary_pos_emb(t, torch.cat((angles, angles), -1))
    assert_same_bits(y, rotary(t, angles.cos(), angles.sin()))


def test_compiled_and_batched(draw: Any) -> None:
    t, freqs = draw(5, 2, 3, 8, grad=True), draw(5, 1, 1, 8)
    y = apex.fused_apply_rotary_pos_emb(t, freqs)
    compiled = torch.compile(apex.FusedRoPEFunc.apply, fullgraph=True, backend="aot_eager")
    found = compiled(t, freqs)
    assert_same_bits(found, y)
    g = draw(5, 2, 3, 8)
    assert_same_bits(grad(found, t, g)[0], grad(y, t, g)[0])
    packed, ends = t.detach()[:, 0], torch.tensor([0, 2, 5], dtype=torch.int32)
    run = apex.fused_apply_rotary_pos_emb_thd
    batched = torch.func.vmap(run, (1, None, None))(t.detach(), ends, freqs)
    assert_same_bits(batched[0], run(packed, ends, freqs))


def test_no_columns_and_no_tokens(draw: Any) -> None:
    t = draw(5, 2, 3, 8)
    assert_same_bits(apex.fused_apply_rotary_pos_emb(t, draw(5, 1, 1, 0)), t)
    none = apex.fused_apply_rotary_pos_emb(t[:0], draw(0, 1, 1, 8))
    assert none.shape == (0, 2, 3, 8)


T, FREQS, PACKED = torch.ones(5, 2, 3, 8), torch.ones(5, 1, 1, 8), torch.ones(5, 3, 8)
ENDS = torch.tensor([0, 5])


@pytest.mark.parametrize(
    ("name", "given", "error", "words"),
    [
        ("", (T[0], FREQS), ValueError, r"t has shape \[2, 3, 8\], expected \[s, b, h, d\]"),
        ("", (T, FREQS[:3]), ValueError, r"freqs has shape \[3, 1, 1, 8\], expected \[5, 1, 1, r"),
        ("", (T, FREQS[..., :3]), ValueError, r"freqs has shape \[5, 1, 1, 3\].* an even r, at"),
        ("", (T[..., :4], FREQS), ValueError, r"freqs .*at most 4"),
        ("", (T, 3), TypeError, "freqs has type int"),
        ("_cached", (T, FREQS, FREQS[..., :6]), ValueError, r"sin has shape .* the same for all"),
        ("_thd", (T, ENDS, FREQS), ValueError, r"t has shape .*expected \[t, h, d\]"),
        ("_thd", (PACKED, ENDS * 1.0, FREQS), TypeError, "cu_seqlens has dtype torch.float32"),
        ("_thd", (PACKED, ENDS[None], FREQS), ValueError, r".*expected \[sequences \+ 1\]"),
        ("_thd", (PACKED, ENDS, FREQS[:0]), ValueError, ".*expected a position"),
        ("_2d", (T, 2, 2, *[FREQS] * 4), ValueError, r"t has shape .*expected \[b, 2 \* 2, h, d\]"),
        ("_2d", (T, 1, 2, *[FREQS] * 4), ValueError, r"cos_h has shape .*\[1, 1, 1, 4\], or more"),
    ],
)
def test_refused(name: str, given: Any, error: Any, words: str) -> None:
    function = f"fused_apply_rotary_pos_emb{name}"
    with pytest.raises(error, match=f"^{function}: {words}"):
        getattr(apex, function)(*given)
