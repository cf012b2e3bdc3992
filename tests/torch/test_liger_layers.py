"""Liger-Kernel's softmax, modulated norm, and rotary embeddings of models.

They are compared with formulas in float64, in values and in gradients of random cotangents.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, grad

import bridge.torch as bt
from bridge.torch import liger
from tests.torch.expected import DTYPES, assert_close, assert_same_bits
from tests.torch.replay import replay
from tests.torch.test_liger import of_parameters, rms_norm

FLOAT, BFLOAT = torch.float32, torch.bfloat16
BOTH = pytest.mark.parametrize("dtype", [FLOAT, BFLOAT], ids=str)


def caller_of(function: Any) -> Any:
    """Returns a user's Function that calls the methods of another one."""

    class Caller(Function):
        forward = staticmethod(function.forward)
        backward = staticmethod(function.backward)

    return Caller


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 33), (2, 3, 5, 1025), (2, 0, 4), (3, 1)], ids=str)
def test_softmax(draw: Any, shape: Any, dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    if x.numel() and shape[-1] > 1:
        replay(
            liger.liger_softmax,
            lambda x: torch.exp(x - x.logsumexp(-1, keepdim=True)),
            (x,),
            ulps=32,
        )
    for function in (liger.LigerSoftmaxFunction.apply, liger.LigerSoftmax(), bt.scaled_softmax):
        assert_same_bits(function(x), liger.liger_softmax(x))
    if len(shape) > 2:
        apart = x.transpose(0, 1)
        assert_same_bits(liger.liger_softmax(apart), liger.liger_softmax(apart.contiguous()))


def test_softmax_of_a_number() -> None:
    with pytest.raises(ValueError, match="expected at least one dimension"):
        liger.LigerSoftmax()(torch.tensor(1.0))


def modulated(
    x: Tensor, weight: Tensor | None, scale: Tensor, shift: Tensor | None, offset: float = 0.0
) -> Tensor:
    """Computes the norm sample by sample, as the original counts rows."""
    normal = rms_norm(x, None if weight is None else offset + weight).flatten(0, -2)
    each = normal.shape[0] // scale[..., 0].numel()
    scale = scale.reshape(-1, x.shape[-1]).repeat_interleave(each, 0)
    y = normal * (1 + scale)
    if shift is not None:
        y = y + shift.reshape(-1, x.shape[-1]).repeat_interleave(each, 0)
    return y.reshape(x.shape)


@BOTH
@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("shape", "of_scale"),
    [
        ((6, 41), (41,)),
        ((2, 3, 8), (1, 8)),
        ((3, 5, 33), (3, 33)),
        ((3, 5, 33), (3, 5, 33)),
        ((2, 3, 8), (6, 8)),
        ((4, 2, 3, 8), (4, 1, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_shift", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_modulated_norm(
    draw: Any,
    shape: Any,
    of_scale: Any,
    with_shift: bool,
    affine: bool,
    offset: float,
    dtype: torch.dtype,
) -> None:
    d = shape[-1]
    module = liger.LigerModulatedRMSNorm(d, offset=offset, elementwise_affine=affine).to(dtype)
    weights = (draw(d, dtype=dtype),) if affine else ()
    shifts = (draw(*of_scale, dtype=dtype),) if with_shift else ()
    tensors = draw(*shape, dtype=dtype), draw(*of_scale, dtype=dtype), *shifts, *weights

    def exact(x: Tensor, scale: Tensor, *others: Tensor) -> Tensor:
        shift = others[0] if with_shift else None
        return modulated(x, others[-1] if affine else None, scale, shift, offset)

    replay(of_parameters(module), exact, tensors, ulps=32)
    x, scale, *_ = tensors
    shift, weight = (t[0] if t else None for t in (shifts, weights))
    found = liger.liger_modulated_rms_norm(
        X=x, W=weight, scale=scale, shift=shift, offset=offset, casting_mode="gemma"
    )
    assert_same_bits(found, of_parameters(module)(*tensors))
    apart = torch.stack((x, x), -1)[..., 0]
    assert_same_bits(
        liger.LigerModulatedRMSNormFunction.apply(apart, weight, scale, shift, 1e-6, offset), found
    )


def test_a_modulated_norm_of_other_shapes() -> None:
    x, norm = torch.ones(2, 3, 8), liger.LigerModulatedRMSNorm(8)
    for scale in (torch.ones(4, 8), torch.ones(7), torch.ones(0, 8)):
        with pytest.raises(ValueError, match=r"modulated_rms_norm: scale has shape .*the 6 of X"):
            norm(x, scale)
    with pytest.raises(ValueError, match=r"shift has shape \[2, 8\], expected \[8\], as scale"):
        norm(x, torch.ones(8), torch.ones(2, 8))
    with pytest.raises(AssertionError, match="casting_mode is 'bert'"):
        liger.LigerModulatedRMSNorm(8, casting_mode="bert")(x, torch.ones(8))
    with pytest.raises(TypeError, match="scale has type list"):
        norm(x, [1.0])
    assert norm(torch.ones(0, 3, 8), torch.ones(8)).shape == (0, 3, 8)
    assert repr(norm) == (
        "LigerModulatedRMSNorm(weight_shape=(8,), eps=1e-06, offset=0.0, casting_mode=llama, "
        "in_place=True)"
    )
    torch.nn.RMSNorm(8).load_state_dict(norm.state_dict())
    assert not list(liger.LigerModulatedRMSNorm(8, elementwise_affine=False).parameters())


def by_complex_numbers(x: Tensor, freqs: Tensor) -> Tensor:
    """Returns the computation of models: freqs broadcasts to `[batch, positions, heads, d/2]`."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * freqs).flatten(-2)


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize("batch_of_table", [None, 1, 3])
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 8), (3, 1, 18)])
def test_rotary_of_llama_4(
    draw: Any, heads: int, kv_heads: int, d: int, batch_of_table: int | None, dtype: torch.dtype
) -> None:
    q, k = draw(3, 5, heads, d, dtype=dtype), draw(3, 5, kv_heads, d, dtype=dtype)
    leading = () if batch_of_table is None else (batch_of_table,)
    freqs = torch.polar(torch.ones((), dtype=FLOAT), draw(*leading, 7, d // 2, dtype=FLOAT))
    wide = freqs.to(torch.complex128)[..., :5, None, :]
    exact = lambda *given: tuple(by_complex_numbers(x, wide) for x in given)  # noqa: E731
    text = lambda q, k: liger.liger_llama4_text_rotary_pos_emb(q, k, freqs)  # noqa: E731
    replay(text, exact, (q, k), dtypes=(dtype, dtype))
    found = liger.LigerLlama4RopeFunction.apply(q, k, freqs, 64)
    for one, other in zip(found, text(q, k), strict=True):
        assert_same_bits(one, other)
    with pytest.raises(TypeError, match=r"freqs_cis has dtype torch.float32, expected a complex"):
        liger.liger_llama4_text_rotary_pos_emb(q, k, freqs.real)


@BOTH
@pytest.mark.parametrize("shape", [(5, 4), (5, 1, 4), (1, 5, 1, 4)], ids=str)
@pytest.mark.parametrize("is_complex", [True, False])
def test_rotary_of_llama_4_of_vision(
    draw: Any, shape: Any, is_complex: bool, dtype: torch.dtype
) -> None:
    """A table that was cast has lost its imaginary parts; they count as 0, as in the model."""
    q, k = draw(2, 5, 3, 8, dtype=dtype), draw(2, 5, 1, 8, dtype=dtype)
    freqs = torch.polar(torch.ones((), dtype=FLOAT), draw(*shape, dtype=FLOAT))
    freqs = freqs if is_complex else freqs.real.to(BFLOAT)
    wide = freqs.to(torch.complex128).reshape(5, 1, 4)
    replay(
        lambda q, k: liger.liger_llama4_vision_rotary_pos_emb(q, k, freqs),
        lambda *given: tuple(by_complex_numbers(x, wide) for x in given),
        (q, k),
        dtypes=(dtype, dtype),
    )


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize(("d", "section"), [(8, (1, 2, 1)), (20, (2, 4, 4)), (12, (6, 0, 0))])
def test_rotary_of_qwen_2_vl(
    draw: Any, d: int, section: tuple[int, ...], dtype: torch.dtype
) -> None:
    q, k = (draw(2, heads, 5, d, dtype=dtype) for heads in (4, 1))
    angles = draw(3, 2, 5, d // 2, dtype=FLOAT)
    cos, sin = (torch.cat((t, t), -1) for t in (angles.cos(), angles.sin()))
    which = torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    own = torch.stack([angles[n, ..., i] for i, n in enumerate(which.tolist())], -1).double()

    def exact(*given: Tensor) -> tuple[Tensor, ...]:
        pairs = [torch.stack(x.chunk(2, -1), -1).flatten(-2) for x in given]
        freqs = torch.polar(torch.ones((), dtype=torch.float64), own)[:, None]
        turned = [by_complex_numbers(x, freqs).unflatten(-1, (-1, 2)) for x in pairs]
        return tuple(torch.cat(t.unbind(-1), -1) for t in turned)

    ours = lambda q, k: liger.liger_multimodal_rotary_pos_emb(q, k, cos, sin, section)  # noqa: E731
    # The tables are computed from float32 angles.
    replay(ours, exact, (q, k), dtypes=(dtype, dtype))
    for function in (liger.liger_qwen2vl_mrope, liger.LigerQwen2VLMRopeFunction.apply):
        for one, other in zip(function(q, k, cos, sin, list(section)), ours(q, k), strict=True):
            assert_same_bits(one, other)
    swapped = liger.liger_qwen2vl_mrope(*(t.transpose(1, 2) for t in (q, k)), cos, sin, section, 2)
    for one, other in zip(swapped, ours(q, k), strict=True):
        assert_same_bits(one.transpose(1, 2), other)


def test_rotary_of_qwen_2_vl_under_autocast(draw: Any) -> None:
    """The arguments have the other 16-bit dtype, for which torch cannot join tables."""
    q, k = (draw(2, heads, 5, 8, dtype=torch.float16) for heads in (4, 1))
    given = (q, k, *draw(2, 3, 2, 5, 8, dtype=torch.float16), (1, 2, 1))
    expected = liger.liger_multimodal_rotary_pos_emb(*given)
    with torch.autocast("cpu", BFLOAT):
        found = liger.liger_multimodal_rotary_pos_emb(*given)
    for one, other in zip(found, expected, strict=True):
        assert_same_bits(one, other)


def test_rotary_of_qwen_2_vl_of_other_shapes() -> None:
    q, table = torch.ones(1, 2, 3, 8), torch.ones(3, 1, 3, 8)
    for given, section in (((q, q, table[:2], table), (1, 1, 2)), ((q, q, table, table), (3, 2))):
        with pytest.raises(ValueError, match=r"cos has shape .* mrope_section is \[\d, \d"):
            liger.liger_multimodal_rotary_pos_emb(*given, section)


def test_methods_of_functions(draw: Any) -> None:
    """A user's Function that calls `forward` and `backward` has the gradients of `apply`."""
    q, k = draw(2, 3, 2, 4, grad=True), draw(2, 3, 1, 4, grad=True)
    freqs = torch.polar(torch.ones((), dtype=torch.float64), draw(3, 2))
    tables = draw(3, 2, 3, 4), draw(3, 2, 3, 4)
    x, weights = draw(5, 4, grad=True), draw(5, 2, grad=True)
    up, down = draw(3, 6, 4, grad=True), draw(3, 4, 3, grad=True)
    index = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])
    heads = q.transpose(1, 2), k.transpose(1, 2)
    calls: list[tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]] = [
        (liger.LigerLlama4RopeFunction, (q, k, freqs), (q, k)),
        (liger.LigerQwen2VLMRopeFunction, (*heads, *tables, (1, 1)), (q, k)),
        (liger.LigerFusedMoEFunction, (x, up, down, index, weights), (x, up, down, weights)),
    ]
    for function, arguments, inputs in calls:
        assert issubclass(function, Function)
        found, expected = (f.apply(*arguments) for f in (caller_of(function), function))
        found, expected = (y if isinstance(y, tuple) else (y,) for y in (found, expected))
        g = [draw(*y.shape) for y in expected]
        for one, other in zip(grad(found, inputs, g), grad(expected, inputs, g), strict=True):
            assert_close(one, other)
