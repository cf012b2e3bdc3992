"""Liger-Kernel's feed-forward layers: computed in tiles, in one kernel, or for experts.

Torch computes the matrix products.
"""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from bridge.torch._adapter.autocast import joined
from bridge.torch._adapter.kernels import is_unguarded
from bridge.torch._adapter.recomputed import recomputed
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.liger.gated_units import (
    LigerFalconH1SwiGLUMLP,
    LigerGEGLUMLP,
    LigerSiLUMulFunction,
    LigerSwiGLUMLP,
    check_activation,
    check_silu,
)
from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._ops.gates import swiglu


class LigerMLPFunction(Function, metaclass=DropIn):
    """`LigerMLPFunction.apply(input, gate_weight, up_weight, down_weight, 1.0, 1.0)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        input: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        gate_multiplier: float = 1.0,
        down_multiplier: float = 1.0,
    ) -> Tensor:
        """down(silu(gate(x)·gate_multiplier)·up(x))·down_multiplier for weights `[out, in]`."""
        gate, up = linear(input, gate_weight), linear(input, up_weight)
        y = linear(LigerSiLUMulFunction.apply(gate, up, gate_multiplier), down_weight)
        return y if down_multiplier == 1.0 else y * down_multiplier


class LigerMLP(LigerSwiGLUMLP):
    """The same as LigerSwiGLUMLP; the original computes the projections in its own kernels."""


class LigerFalconH1MLP(LigerFalconH1SwiGLUMLP):
    """LigerFalconH1SwiGLUMLP without biases.

    Raises:
      ValueError: config.mlp_bias is true, as in the original; another config.hidden_act.
    """

    def __init__(self, config: Any) -> None:
        if getattr(config, "mlp_bias", False):
            raise ValueError("LigerFalconH1MLP: config.mlp_bias is true, expected no bias")
        super().__init__(config)


class _Applied(torch.nn.Module):
    """fn(module, x) as a module, whose tensors `torch.func.functional_call` can exchange."""

    def __init__(self, fn: Callable[[Any, Tensor], Tensor], module: torch.nn.Module) -> None:
        super().__init__()
        self.fn, self.module = fn, module

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.module, x)


def _with_its_tensors(fn: Callable[[Any, Tensor], Tensor], module: Any) -> Callable[..., Tensor]:
    """Returns fn(module, ·), which in later calls too reads the tensors that the module has now.

    A backward pass may run after the end of the `torch.func.functional_call` that exchanged them.
    FSDP exchanges tensors itself, before each call: a sharded one is not compared.
    """
    if torch.compiler.is_compiling():
        return lambda x: fn(module, x)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def run(x: Tensor) -> Tensor:
        others = {
            f"module.{name}": tensor
            for name, tensor in held.items()
            if (own := operator.attrgetter(name)(module)) is not tensor
            and "DTensor" not in (type(own).__name__, type(tensor).__name__)
        }
        if not others:
            return fn(module, x)
        return torch.func.functional_call(_Applied(fn, module), others, (x,))  # type: ignore[no-any-return]

    return run


class LigerTiledMLPFunction(Function, metaclass=DropIn):
    """`LigerTiledMLPFunction.apply(fn, mlp_module, x, shards, compute_params)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        fn: Callable[[Any, Tensor], Tensor],
        mlp_module: Any,
        x: Tensor,
        shards: int,
        compute_params: Any = None,
    ) -> Tensor:
        """Applies fn(mlp_module, part) to `shards` parts of x along the last dimension but one.

        The backward pass computes each part again. Parameters get gradients as from any call; the
        original adds to their `grad` itself. compute_params changes nothing.
        """
        parameters = tuple(mlp_module.parameters())
        parts = (x,) if is_unguarded(x.shape[-2]) else x.chunk(shards, -2)
        found = [recomputed(_with_its_tensors(fn, mlp_module), (x,), *parameters) for x in parts]
        return joined(found, -2)

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        fn, mlp_module, x, shards, *_ = arguments
        ctx.save_for_backward(x)
        ctx.call = fn, mlp_module, shards, len(arguments)
        return LigerTiledMLPFunction.apply(*arguments)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Returns x's gradient; adds the parameters' gradients to `grad`, as in the original."""
        fn, mlp_module, shards, count = ctx.call
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = LigerTiledMLPFunction.apply(fn, mlp_module, x, shards)
        torch.autograd.backward(y, g)
        return tuple(x.grad if i == 2 else None for i in range(count))


def apply_tiled_mlp(
    fn: Callable[[Any, Tensor], Tensor],
    mlp_module: Any,
    x: Tensor,
    num_shards: int | None = None,
    compute_params: Any = None,
) -> Tensor:
    """Runs `LigerTiledMLPFunction.apply`, by default in parts about as long as they are wide.

    Args:
      fn: called with the module and a part of x, `[..., positions, d]`; its results are
        concatenated along the last dimension but one.
      mlp_module: a module whose parameters fn reads.
      x: `[..., positions, d]`.
      num_shards: the number of parts, at least 1; None for positions / d, rounded up.
      compute_params: changes nothing.

    Raises:
      ValueError: x has fewer than two dimensions.
    """
    if x.dim() < 2:
        raise ValueError(
            f"apply_tiled_mlp: x has shape {tuple(x.shape)}, expected [..., positions, d]"
        )
    positions, d = x.shape[-2:]
    shards = -(-positions // d) if num_shards is None else num_shards
    return LigerTiledMLPFunction.apply(fn, mlp_module, x, max(1, shards), compute_params)


class LigerTiledSwiGLUMLP(LigerSwiGLUMLP):
    """LigerSwiGLUMLP on one part of the sequence at a time; the backward pass recomputes each part.

    Args:
      config: an object with `hidden_size` and `intermediate_size`.
      num_shards: the number of parts; None for positions / hidden_size, rounded up.

    Raises:
      ValueError: config.hidden_act is there, and neither "silu" nor "swish".
    """

    def __init__(self, config: Any, num_shards: int | None = None) -> None:
        super().__init__(config)
        self.num_shards = num_shards

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to x `[..., positions, hidden_size]`; the result has the same shape."""
        return apply_tiled_mlp(LigerSwiGLUMLP.forward, self, x, self.num_shards)


class LigerTiledGEGLUMLP(LigerGEGLUMLP):
    """LigerGEGLUMLP on one part of the sequence at a time; the backward pass recomputes each part.

    Args:
      config, num_shards: as for LigerTiledSwiGLUMLP.

    Raises:
      ValueError: config.hidden_act is there, and not one of "gelu", "gelu_new" and
        "gelu_pytorch_tanh"; all three are the tanh form here, as in the original.
    """

    def __init__(self, config: Any, num_shards: int | None = None) -> None:
        super().__init__(config)
        check_activation(config, "gelu", "gelu_new", "gelu_pytorch_tanh")
        self.num_shards = num_shards

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to x `[..., positions, hidden_size]`; the result has the same shape."""
        return apply_tiled_mlp(LigerGEGLUMLP.forward, self, x, self.num_shards)


def _no_expert(number: int, count: int) -> ValueError:
    return ValueError(
        f"LigerFusedMoEFunction: top_k_index has {number}, expected numbers of {count} experts"
    )


class LigerFusedMoEFunction(Function, metaclass=DropIn):
    """`LigerFusedMoEFunction.apply(x, gate_up_proj, down_proj, top_k_index, top_k_weights)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        x: Tensor,
        gate_up_proj: Tensor,
        down_proj: Tensor,
        top_k_index: Tensor,
        top_k_weights: Tensor,
    ) -> Tensor:
        """Returns the weighted sum of the results of each token's experts, in the dtype of x.

        The host reads the number of tokens of each expert. No result depends on the order in which
        threads run.

        Args:
          x: tokens `[T, d]`.
          gate_up_proj: `[E, 2m, d]`, the gate's rows first; down_proj: `[E, d, m]`.
          top_k_index: `[T, K]`, numbers of experts; top_k_weights: `[T, K]`.

        Raises:
          ValueError: a number of an expert that does not exist.
        """
        count, chosen = gate_up_proj.shape[0], top_k_index.flatten()
        order = chosen.argsort(stable=True)
        try:
            sizes = torch.bincount(chosen, minlength=count).tolist()
        except RuntimeError:  # negative numbers; a check before would wait for the device once more
            if not chosen.numel() or (least := int(chosen.min())) >= 0:
                raise
            raise _no_expert(least, count) from None
        if len(sizes) > count:
            raise _no_expert(len(sizes) - 1, count)
        tokens = x[order // top_k_index.shape[-1]].split(sizes)
        found = [
            linear(swiglu(linear(own, gate_up)), down)
            for own, gate_up, down in zip(tokens, gate_up_proj, down_proj, strict=True)
        ]
        each = joined(found, 0)[order.argsort()].unflatten(0, top_k_index.shape)
        return (each * top_k_weights[..., None]).sum(-2).to(x.dtype)


class LigerExperts(torch.nn.Module):
    """Experts of one size, with the parameters and the call of Hugging Face's `MixtralExperts`.

    Args:
      config: an object with `hidden_size`, `hidden_act`, `num_experts` or else
        `num_local_experts`, and `moe_intermediate_size` or else `intermediate_size`.

    Attributes:
      gate_up_proj: parameter `[experts, 2·intermediate_dim, hidden_size]`, not initialised, as in
        the original; down_proj: `[experts, hidden_size, intermediate_dim]`, likewise.

    Raises:
      TypeError, ValueError: config.hidden_act is neither "silu" nor "swish"; a size that is not an
        integer from 0 on.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        check_silu(config)
        either = lambda name, other: getattr(config, name if hasattr(config, name) else other)  # noqa: E731
        self.num_experts = either("num_experts", "num_local_experts")
        self.intermediate_dim = either("moe_intermediate_size", "intermediate_size")
        self.hidden_dim = config.hidden_size
        names = ("num_experts", "intermediate_dim", "hidden_dim")
        check_sizes(self, **{name: getattr(self, name) for name in names})
        shape = self.num_experts, 2 * self.intermediate_dim, self.hidden_dim
        self.gate_up_proj = torch.nn.Parameter(torch.empty(shape))
        shape = self.num_experts, self.hidden_dim, self.intermediate_dim
        self.down_proj = torch.nn.Parameter(torch.empty(shape))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Runs `LigerFusedMoEFunction.apply` for any leading dimensions."""
        found = LigerFusedMoEFunction.apply(
            hidden_states.reshape(-1, self.hidden_dim),
            self.gate_up_proj,
            self.down_proj,
            top_k_index.reshape(-1, top_k_index.shape[-1]),
            top_k_weights.reshape(-1, top_k_weights.shape[-1]),
        )
        return found.reshape(hidden_states.shape)
