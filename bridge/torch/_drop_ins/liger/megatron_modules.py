"""Liger-Kernel's modules for Megatron-LM, from the files of its `megatron`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.liger.norm_classes import LigerRMSNormFunction
from bridge.torch._drop_ins.liger.split_losses import LigerVocabParallelCrossEntropy
from bridge.torch._drop_ins.losses import ranks_in
from bridge.torch._drop_ins.norms_over_dimensions import sizes_of
from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._drop_ins.swiglu import bias_swiglu_impl
from bridge.torch._ops.linear_cross_entropy import linear_cross_entropies, linear_cross_entropy
from bridge.torch._ops.rotary import rotary


class LigerMegatronRMSNorm(torch.nn.Module):
    """RMS norm over the last dimension, built from Megatron-LM's config.

    Args:
      config: any object. These attributes of a TransformerConfig are read if it has them:
        `normalization`: must be "RMSNorm";
        `layernorm_zero_centered_gamma`: the weight is a difference from 1, and starts at 0;
        `sequence_parallel`: becomes an attribute of the weight.
      hidden_size: d, the size of the last dimension.
      eps: a positive number.
      persist_layer_norm, normalization: not used, as in the original.
      zero_centered_gamma: the same as config's attribute; one of both suffices.

    Raises:
      ValueError: config.normalization is another one.
    """

    def __init__(
        self,
        config: Any,
        hidden_size: Any,
        eps: float = 1e-5,
        persist_layer_norm: bool = False,
        zero_centered_gamma: bool = False,
        normalization: str = "RMSNorm",
    ) -> None:
        super().__init__()
        if (found := getattr(config, "normalization", "RMSNorm")) != "RMSNorm":
            raise ValueError(
                f"LigerMegatronRMSNorm: config.normalization is {found!r}, expected 'RMSNorm'"
            )
        self.config = config
        centred = getattr(config, "layernorm_zero_centered_gamma", False)
        self.zero_centered_gamma = bool(zero_centered_gamma or centred)
        check_sizes(self, hidden_size=(sizes := sizes_of(hidden_size)))
        self.hidden_size = torch.Size(sizes)
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(self.hidden_size))
        self.reset_parameters()
        is_parallel = bool(getattr(config, "sequence_parallel", False))
        self.weight.sequence_parallel = is_parallel  # type: ignore[attr-defined]

    def reset_parameters(self) -> None:
        """Sets the weight to 1, or to 0 if it is a difference from 1."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the shape and dtype of x."""
        offset = 1.0 if self.zero_centered_gamma else 0.0
        return LigerRMSNormFunction.apply(x, self.weight, self.eps, offset)

    def extra_repr(self) -> str:
        return (
            f"hidden_size={tuple(self.hidden_size)}, eps={self.eps}, "
            f"zero_centered_gamma={self.zero_centered_gamma}"
        )


class LigerMegatronCrossEntropy(LigerVocabParallelCrossEntropy):
    """`LigerVocabParallelCrossEntropy` with the formulas of Megatron-LM as defaults."""

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "none",
        label_smoothing_formula: str = "megatron",
        label_smoothing_mode: str = "partition",
    ) -> None:
        super().__init__(
            ignore_index, label_smoothing, reduction, label_smoothing_formula, label_smoothing_mode
        )


class LigerMegatronSwiGLU(torch.nn.Module):
    """SwiGLU as a module, called as Megatron-LM calls its `bias_swiglu_impl`.

    Args:
      fallback_impl: called instead if the input should be stored in 8 bits or on the host.
      in_place: not used: nothing is overwritten.
    """

    def __init__(
        self, fallback_impl: Callable[..., Tensor] | None = None, in_place: bool = False
    ) -> None:
        super().__init__()
        self.fallback_impl, self.in_place = fallback_impl, in_place

    def forward(
        self,
        input: Tensor,
        bias: Tensor | None = None,
        fp8_input_store: bool = False,
        cpu_offload_input: bool = False,
    ) -> Tensor:
        """Returns silu(y₁)·y₂ of the halves of the last dimension of input + bias.

        Raises:
          NotImplementedError: fp8_input_store or cpu_offload_input is true, and there is no
            fallback_impl.
        """
        given = input, bias, fp8_input_store, cpu_offload_input
        if self.fallback_impl is not None and (fp8_input_store or cpu_offload_input):
            return self.fallback_impl(*given)
        return bias_swiglu_impl(*given)


class LigerMegatronFusedLinearCrossEntropyFunction(Function, metaclass=DropIn):
    """`LigerMegatronFusedLinearCrossEntropyFunction.apply(hidden, weight, target, bias, ...)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        tp_group: Any,
        ignore_index: int,
    ) -> Tensor:
        """Returns the loss of each row, as `LigerMegatronFusedLinearCrossEntropy` does."""
        options: dict[str, Any] = {"reduction": "none", "ignore_index": ignore_index}
        if ranks_in(tp_group) == 1:
            return linear_cross_entropy(hidden, weight, target, bias=bias, **options)
        return _of_ranks((hidden, weight, target, bias), tp_group, options)


def _of_ranks(operands: tuple[Any, ...], group: Any, options: dict[str, Any]) -> Tensor:
    """Computes `linear_cross_entropy` with weight and bias split over the ranks of the group."""
    # These need torch.distributed.
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from bridge.torch._ops.split_vocabulary import joined

    function = "LigerMegatronFusedLinearCrossEntropy"
    hidden, weight, target, bias = operands

    def check(ranks: int) -> None:
        linear_cross_entropies.checked(function, operands, options["ignore_index"], ranks)

    def others() -> str:
        tensors = {"hidden": hidden, "bias": bias}
        given = [
            f"{name} {None if t is None else (t.dtype, tuple(t.shape))}"
            for name, t in tensors.items()
        ]
        return ", ".join([*given, f"ignore_index {options['ignore_index']}"])

    weight = joined(function, weight, group, check, "weight", 0, others)
    mesh = weight.device_mesh
    hidden = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
    if bias is not None:
        bias = DTensor.from_local(bias, mesh, [Shard(0)], run_check=False)
    losses: Any = linear_cross_entropy(hidden, weight, target, bias=bias, **options)
    return losses.to_local()  # type: ignore[no-any-return]


class LigerMegatronFusedLinearCrossEntropy(torch.nn.Module):
    """The loss of each row of hidden @ weight.T + bias, without all logits in memory at once.

    Args:
      ignore_index: rows with this label have the loss 0 and no gradient.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        tp_group: Any = None,
    ) -> Tensor:
        """Returns the losses `[...]` in float32, for float64 in float64.

        Args:
          hidden: `[..., features]`, the same on every rank, and so is its gradient.
          weight: `[V / ranks, features]`; bias: `[V / ranks]` or None: this rank's part of both.
          target: `[...]`, numbers of columns of the whole.
          tp_group: a process group; None, or a group of one rank, for the whole vocabulary.
        """
        return LigerMegatronFusedLinearCrossEntropyFunction.apply(
            hidden, weight, target, bias, tp_group, self.ignore_index
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}"


class LigerMegatronRopeFunction(Function, metaclass=DropIn):
    """`LigerMegatronRopeFunction.apply(t, cos, sin)`."""

    @staticmethod
    def apply(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]
        """Rotates t `[batch, heads, positions, d]` by tables `[1, positions, d]`, doubled."""
        return rotary(t, cos.unsqueeze(-3), sin.unsqueeze(-3)).to(t.dtype)


def liger_apply_rotary_pos_emb_bshd(t: Tensor, freqs: Tensor) -> Tensor:
    """Rotates t by the angles freqs, whose cosines and sines are rounded to the dtype of t.

    Args:
      t: `[positions, batch, heads, d]`.
      freqs: `[positions, 1, 1, r]`, doubled, with r at most d; the columns from r on stay.

    Raises:
      TypeError, ValueError: as `bridge.torch.rotary`.
    """
    if is_overridden(given := (t, freqs)):
        return hand_over(given)  # type: ignore[no-any-return]
    if freqs.shape[-1] > t.shape[-1]:
        raise ValueError(
            f"liger_apply_rotary_pos_emb_bshd: freqs has shape {list(freqs.shape)}, expected at "
            f"most {t.shape[-1]} columns, as t has"
        )
    angles = freqs[..., : freqs.shape[-1] // 2]
    return rotary(t, angles.cos().to(t.dtype), angles.sin().to(t.dtype))  # type: ignore[no-any-return]
