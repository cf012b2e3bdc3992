"""The softmax of Megatron-LM: autograd Functions, and the module that chooses among them."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.catalogue.softmax import check_scale, check_softmax, forward_params
from bridge.torch._adapter.arrays import last_columns
from bridge.torch._adapter.checks import check_flags, check_tensors
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._ops.sinks import softmax_with_sink
from bridge.torch._ops.softmax import (
    program_entry,
    scaled_causal_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_softmax_backward,
)

_NAME = "FusedScaleMaskSoftmax"

# Keys: the numbers of Megatron's AttnMaskType (and of apex's, which has fewer).
_MASK_TYPES = {
    1: "padding",
    2: "causal",
    3: "no_mask",
    4: "padding_causal",
    5: "arbitrary",
    6: "causal_bottom_right",
}
_CAUSAL = ("causal", "padding_causal", "causal_bottom_right")
_UNLIMITED = -1


class ScaledSoftmax(Function, metaclass=DropIn):
    """`ScaledSoftmax.apply(x, scale)`: softmax(scale·x) over the last dimension."""

    @staticmethod
    def apply(x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.scaled_softmax(x, scale)`."""
        return scaled_softmax(x, scale)

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scale: float) -> Tensor:
        return _kept(ctx, scaled_softmax(inputs, scale), scale)

    @staticmethod
    def backward(ctx: Any, output_grads: Tensor) -> tuple[Tensor, None]:
        return _input_grads(ctx, output_grads), None


class ScaledMaskedSoftmax(Function, metaclass=DropIn):
    """`ScaledMaskedSoftmax.apply(x, mask, scale)`: over the elements that mask does not hide."""

    @staticmethod
    def apply(x: Tensor, mask: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.scaled_masked_softmax(x, mask, scale)`; mask True is masked out.

        x is `[b, np, sq, sk]` and mask `[b, 1, sq, sk]` or `[1, 1, sq, sk]` in the original; here
        any shapes that broadcast.
        """
        return scaled_masked_softmax(x, mask, scale)

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, mask: Tensor, scale: float) -> Tensor:
        return _kept(ctx, scaled_masked_softmax(inputs, mask, scale), scale)

    @staticmethod
    def backward(ctx: Any, output_grads: Tensor) -> tuple[Tensor, None, None]:
        return _input_grads(ctx, output_grads), None, None


class GenericScaledMaskedSoftmax(ScaledMaskedSoftmax):
    """`GenericScaledMaskedSoftmax.apply(x, mask, scale)`: the same as ScaledMaskedSoftmax."""


class ScaledUpperTriangMaskedSoftmax(Function, metaclass=DropIn):
    """`ScaledUpperTriangMaskedSoftmax.apply(x, scale)`: over the keys that a query sees."""

    @staticmethod
    def apply(x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.scaled_causal_softmax(x, scale)`; x is `[attn_batches, sq, sk]`.

        The original needs sq = sk; here any shape works, aligned at the last query and key.
        """
        return scaled_causal_softmax(x, scale)

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, scale: float) -> Tensor:
        return _kept(ctx, scaled_causal_softmax(inputs, scale), scale)

    @staticmethod
    def backward(ctx: Any, output_grads: Tensor) -> tuple[Tensor, None]:
        return _input_grads(ctx, output_grads, causal=True), None


def _kept(ctx: Any, y: Tensor, scale: float) -> Tensor:
    ctx.save_for_backward(y)
    ctx.scale = scale
    return y


def _input_grads(ctx: Any, output_grads: Tensor, *, causal: bool = False) -> Tensor:
    (y,) = ctx.saved_tensors
    return scaled_softmax_backward(output_grads, y, ctx.scale, causal=causal)


class FusedScaleMaskSoftmax(torch.nn.Module):
    """Softmax of scaled scores `[b, np, sq, sk]` under a mask, a causal rule and a window.

    Args:
      input_in_fp16, input_in_bf16: must not both be true. They have no other effect: the result has
        the dtype of the input.
      attn_mask_type: `"padding"`, `"causal"`, `"no_mask"`, `"padding_causal"`, `"arbitrary"` or
        `"causal_bottom_right"`; the name, its number in the original's enum, or any object with
        such a `name`. The types with "causal" hide key j from query i if j > i + (sk − sq).
      scaled_masked_softmax_fusion: only an attribute: there is one path, the fused one.
      mask_func: only an attribute, never called: a mask hides the elements where it is True.
      softmax_in_fp32: must be true with a scale, as in the original. The softmax of 16-bit scores
        is computed in float32 either way.
      scale: a finite number, or None for 1.
      window_size: None, or (left, right): query i sees only the keys from i + (sk − sq) − left to
        i + (sk − sq) + right; −1 is no limit. It applies in addition to mask and causal rule.

    Raises:
      AssertionError: both 16-bit flags, or a scale without softmax_in_fp32 (as in the original).
      TypeError: a flag that is neither true nor false, or a scale that is not a real number.
      ValueError: an unknown attn_mask_type, a window_size that is not a pair of integers ≥ −1, or a
        scale that is not finite.
    """

    _refusal: type[Exception] = AssertionError  # apex raises another one

    def __init__(
        self,
        input_in_fp16: bool,
        input_in_bf16: bool,
        attn_mask_type: Any,
        scaled_masked_softmax_fusion: bool,
        mask_func: Callable[..., Tensor] | None,
        softmax_in_fp32: bool,
        scale: float | None,
        window_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_flags(
            _NAME,
            input_in_fp16=input_in_fp16,
            input_in_bf16=input_in_bf16,
            softmax_in_fp32=softmax_in_fp32,
        )
        if input_in_fp16 and input_in_bf16:
            raise self._refusal(
                f"{_NAME}: input_in_fp16 and input_in_bf16 are both true, expected "
                "one of them at most"
            )
        if scale is not None and not softmax_in_fp32:
            raise self._refusal(
                f"{_NAME}: scale is {scale} without softmax_in_fp32, which a scale requires"
            )
        self.input_in_fp16 = input_in_fp16
        self.input_in_bf16 = input_in_bf16
        self.input_in_float16 = input_in_fp16 or input_in_bf16
        self.attn_mask_type = attn_mask_type
        self.scaled_masked_softmax_fusion = scaled_masked_softmax_fusion
        self.mask_func = mask_func
        self.softmax_in_fp32 = softmax_in_fp32
        self.scale = scale
        self.window_size = window_size
        _mask_type_name(attn_mask_type), _checked_window(window_size)  # raise
        if scale is not None:
            check_scale(_NAME, scale)

    def forward(
        self, input: Tensor, mask: Tensor | None, softmax_offset: Tensor | None = None
    ) -> Tensor:
        """Returns the probabilities, of the shape and dtype of `input`.

        Args:
          input: scores `[b, np, sq, sk]`.
            mask: None, or bool or uint8 that broadcasts to input; True hides.
            softmax_offset: one logit per head, `[np]` or broadcasting to it. It takes part in the
              sum of each row and has no place in the result (softmax off by one, if it is 0). It is
              not scaled.
        """
        if isinstance(input, Tensor) and input.ndim != 4 and not input.is_nested:
            raise AssertionError(
                f"{_NAME}: input has shape {list(input.shape)}, expected [b, np, sq, sk]"
            )
        scale = 1.0 if self.scale is None else self.scale
        if softmax_offset is None and self.window_size is None:
            return self._softmax(input, mask, scale)
        # Check before the window is added to the mask by torch's operations.
        check_tensors(_NAME, x=input, mask=mask)
        check_softmax(_NAME, spec_of(input), None if mask is None else spec_of(mask), scale)
        mask = self._with_window(mask, input)
        if softmax_offset is None:
            return self._softmax(input, mask, scale)
        check_tensors(_NAME, input=input, softmax_offset=softmax_offset)
        if softmax_offset.numel() not in (1, input.shape[1]):
            raise ValueError(
                f"{_NAME}: softmax_offset has shape {list(softmax_offset.shape)}, expected "
                f"[{input.shape[1]}], one for each head of input"
            )
        sink, causal = _sink_of(softmax_offset), self._is_causal()
        return softmax_with_sink(_NAME, input, mask, scale, sink, causal=causal)

    def is_kernel_available(self, mask: Tensor | None, b: int, np: int, sq: int, sk: int) -> bool:
        """Returns True: every shape and dtype has its kernel."""
        return True

    def forward_fused_softmax(self, input: Tensor, mask: Tensor | None) -> Tensor:
        """Returns `forward(input, mask)`."""
        return self.forward(input, mask)

    def forward_torch_softmax(
        self, input: Tensor, mask: Tensor | None, softmax_offset: Tensor | None = None
    ) -> Tensor:
        """Returns `forward(input, mask, softmax_offset)`."""
        return self.forward(input, mask, softmax_offset)

    @staticmethod
    def get_batch_per_block(sq: int, sk: int, b: int, np: int) -> int:
        """Returns 1: the number of rows need not be divisible by more."""
        return 1

    def _softmax(self, x: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        return fused_softmax(x, mask, scale, self._is_causal())

    def _is_causal(self) -> bool:
        # Read at each call: code that uses the original sets its attributes after construction.
        return _mask_type_name(self.attn_mask_type) in _CAUSAL

    def _with_window(self, mask: Tensor | None, x: Tensor) -> Tensor | None:
        window = _checked_window(self.window_size)
        if window is None:
            return mask
        left, right = window
        queries, keys = x.shape[-2:]
        last = torch.arange(queries, device=x.device)[:, None] + (keys - queries)
        distance = torch.arange(keys, device=x.device) - last
        outside = torch.zeros_like(distance, dtype=torch.bool)
        if left != _UNLIMITED:
            outside = outside | (distance < -left)
        if right != _UNLIMITED:
            outside = outside | (distance > right)
        return outside if mask is None else outside | (mask != 0)


class SoftmaxOne(torch.nn.Module):
    """Softmax of scores `[b, np, sq, sk]` with one more logit per head, which has no column.

    y = exp(x − m) / (Σ exp(x − m) + exp(denominator_offset − m)), in the dtype of x.

    Args:
      dim: None or −1: the last dimension; the original, too, uses no other.
      denominator_offset: the logit, a number or a tensor `[np]` (a parameter that is learned); 0
        makes "softmax off by one". A number fails in the original.

    Raises:
      ValueError: another dim.
    """

    def __init__(self, dim: int | None = None, denominator_offset: Tensor | float = 1.0) -> None:
        super().__init__()
        if dim is not None and dim != -1:
            raise ValueError(f"SoftmaxOne: dim is {dim!r}, expected None or -1, the last dimension")
        self.dim = dim
        self.denominator_offset = denominator_offset

    def forward(self, x: Tensor) -> Tensor:
        """Returns the probabilities, of the shape and dtype of x."""
        sink = _sink_of(self.denominator_offset)
        return softmax_with_sink("SoftmaxOne", x, None, 1.0, sink, argument="denominator_offset")


def _sink_of(offset: Any) -> Any:
    """Returns a sink of the shape and dtype that the softmax takes, one logit for each head."""
    if not isinstance(offset, Tensor):
        return offset
    return offset.reshape(-1) if offset.is_floating_point() else offset.reshape(-1).float()


def fused_softmax(x: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """Softmax under a mask and a causal rule, if given."""
    operands = (x,) if mask is None else (x, mask)
    if causal:
        operands = (*operands, last_columns(x))
    return _entries[mask is not None, causal](scale, operands)  # type: ignore[no-any-return]


_entries = {
    (masked, causal): program_entry(
        _NAME, ("x", "mask")[: 1 + masked], forward_params, causal=causal
    )
    for masked in (False, True)
    for causal in (False, True)
}


def _mask_type_name(attn_mask_type: Any) -> str:
    name = getattr(attn_mask_type, "name", attn_mask_type)
    name = _MASK_TYPES.get(name, name) if isinstance(name, int) else name
    if not isinstance(name, str) or name not in _MASK_TYPES.values():
        raise ValueError(
            f"{_NAME}: attn_mask_type is {attn_mask_type!r}, expected one of "
            f"{', '.join(_MASK_TYPES.values())}"
        )
    return str(name)


def _checked_window(window_size: Any) -> tuple[int, int] | None:
    if window_size is None:
        return None
    sizes = tuple(window_size) if isinstance(window_size, (tuple, list)) else ()
    if len(sizes) != 2 or not all(type(size) is int and size >= _UNLIMITED for size in sizes):
        raise ValueError(
            f"{_NAME}: window_size is {window_size!r}, expected (left, right) in "
            "keys, −1 for no limit"
        )
    return sizes[0], sizes[1]
