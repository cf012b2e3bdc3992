"""The rotary embeddings of Liger-Kernel: for Llama, for Llama 4 and for Qwen2-VL."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.rotary import rotary


def liger_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Rotates q and k `[batch, heads, positions, d]` by `bridge.torch.rotary`, each in its dtype.

    Args:
      q, k: of any numbers of heads.
      cos, sin: `[1, positions, d]`, `[batch, positions, d]` or `[positions, d]`, doubled.
      position_ids: not used: the tables are for exactly these positions.
      unsqueeze_dim: the dimension of the heads: 2 for `[batch, positions, heads, d]`.

    Raises:
      TypeError, ValueError: as `bridge.torch.rotary`.
    """
    if is_overridden(given := (q, k, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("liger_rotary_pos_emb", 4, q=q, k=k, cos=cos, sin=sin)
    heads = unsqueeze_dim if unsqueeze_dim < 0 else unsqueeze_dim - q.ndim
    cos, sin = (t.unsqueeze(heads) if t.ndim < q.ndim else t for t in (cos, sin))
    return rotary(q, cos, sin).to(q.dtype), rotary(k, cos, sin).to(k.dtype)


liger_rope = liger_rotary_pos_emb


def liger_rotary_pos_emb_vision(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotates q and k `[positions, heads, d]` by tables `[positions, d]`.

    Args:
      q, k: `[positions, heads, d]`, of floating-point dtypes; d is even.
      cos, sin: `[positions, d]`.
    """
    return liger_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1)


class LigerRopeFunction(Function, metaclass=DropIn):
    """`LigerRopeFunction.apply(q, k, cos, sin, position_ids, unsqueeze_dim)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        position_ids: Tensor | None = None,
        unsqueeze_dim: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Returns `liger_rotary_pos_emb` of these arguments."""
        return liger_rotary_pos_emb(q, k, cos, sin, position_ids, unsqueeze_dim)


def liger_multimodal_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    mrope_section: Sequence[int],
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Rotates q and k `[batch, heads, positions, d]` by the angles of time, height and width.

    Args:
      q, k: of any numbers of heads.
      cos, sin: `[3, batch, positions, d]`, doubled: a table each for time, height and width.
      mrope_section: how many of the d/2 pairs the first table rotates, and how many the second; the
        third table rotates the rest.
      unsqueeze_dim: the dimension of the heads.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: shapes that do not fit.
    """
    if is_overridden(given := (q, k, cos, sin)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "liger_multimodal_rotary_pos_emb"
    check_tensors(name, 4, q=q, k=k, cos=cos, sin=sin)
    of_time, of_height = mrope_section[:2]
    sizes = of_time, of_height, q.shape[-1] // 2 - of_time - of_height
    for table, of_table in (("cos", cos), ("sin", sin)):
        if of_table.shape[0] != 3 or of_table.shape[-1] != q.shape[-1] or min(sizes) < 0:
            raise ValueError(
                f"{name}: {table} has shape {list(of_table.shape)} and mrope_section is "
                f"{list(mrope_section)}, expected [3, batch, positions, {q.shape[-1]}] and parts "
                f"of the first {q.shape[-1] // 2} columns"
            )
    cos, sin = (
        joined([t[i] for i, t in enumerate(table[..., : sum(sizes)].split(sizes, -1))], -1)
        for table in (cos, sin)
    )
    return liger_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb


class LigerQwen2VLMRopeFunction(Function, metaclass=DropIn):
    """`LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, mrope_section, unsqueeze_dim)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        mrope_section: Sequence[int],
        unsqueeze_dim: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Returns `liger_multimodal_rotary_pos_emb` of these arguments."""
        return liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim)


def liger_llama4_text_rotary_pos_emb(
    xq: Tensor, xk: Tensor, freqs_cis: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiplies adjacent pairs of xq and xk `[batch, positions, heads, d]` by complex numbers.

    A pair is the real and the imaginary part of a complex number. The results have the dtypes of xq
    and xk.

    Args:
      xq, xk: of any numbers of heads.
      freqs_cis: complex, `[positions, d/2]`, `[1, positions, d/2]` or `[batch, positions, d/2]`.
        It may have more positions than xq; the rest is not read.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype.
      ValueError: shapes that do not fit.
    """
    if is_overridden(given := (xq, xk, freqs_cis)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "liger_llama4_text_rotary_pos_emb"
    check_tensors(name, 3, xq=xq, xk=xk, freqs_cis=freqs_cis)
    if not freqs_cis.is_complex():
        raise TypeError(f"{name}: freqs_cis has dtype {freqs_cis.dtype}, expected a complex one")
    return _multiplied(xq, xk, freqs_cis.real, freqs_cis.imag)


def liger_llama4_vision_rotary_pos_emb(
    query: Tensor, key: Tensor, freqs_ci: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiplies query and key by complex numbers, as `liger_llama4_text_rotary_pos_emb` does.

    A table that is not complex was cast together with its model and has lost the imaginary parts:
    they count as 0, as in the original and in the model.

    Args:
      query, key: `[batch, positions, heads, d]`, of floating-point dtypes.
      freqs_ci: `[positions, d/2]`, with or without dimensions of 1.
    """
    if is_overridden(given := (query, key, freqs_ci)):
        return hand_over(given)  # type: ignore[no-any-return]
    name = "liger_llama4_vision_rotary_pos_emb"
    check_tensors(name, 3, query=query, key=key, freqs_ci=freqs_ci)
    freqs = freqs_ci.reshape(-1, freqs_ci.shape[-1])
    if freqs.is_complex():
        return _multiplied(query, key, freqs.real, freqs.imag)
    return _multiplied(query, key, freqs, torch.zeros_like(freqs))


def _multiplied(q: Tensor, k: Tensor, real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
    """Multiplies q and k by the first of the numbers `[..., positions, d/2]`."""
    cos, sin = (t[..., : q.shape[1], None, :] for t in (real, imaginary))
    first, second = (rotary(x, cos, sin, interleaved=True).to(x.dtype) for x in (q, k))
    return first, second


class LigerLlama4RopeFunction(Function, metaclass=DropIn):
    """`LigerLlama4RopeFunction.apply(q, k, freqs_cis)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        q: Tensor, k: Tensor, freqs_cis: Tensor, BLOCK_SIZE: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns `liger_llama4_text_rotary_pos_emb` of q, k and freqs_cis."""
        return liger_llama4_text_rotary_pos_emb(q, k, freqs_cis)
