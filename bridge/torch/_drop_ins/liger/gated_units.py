"""The gated units of Liger-Kernel: the files of its `ops`, `transformers` and `functional.py`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bridge import lang as bl
from bridge.catalogue.declaration import declared, named
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._ops.gates import glu, squared_relu, swiglu


@declared()
@named("swiglu")
def _multiplied_swiglu(
    gate: bl.Full, up: bl.Full, *, gate_multiplier: float = 1.0, down_multiplier: float = 1.0
):
    return bl.silu(gate * gate_multiplier) * up * down_multiplier


# Make it now: a first call under torch.compile could not make it.
_multiplied = _multiplied_swiglu.torch


class LigerSiLUMulFunction(Function, metaclass=DropIn):
    """`LigerSiLUMulFunction.apply(a, b, gate_multiplier, down_multiplier)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0
    ) -> Tensor:
        """silu(a·gate_multiplier)·b·down_multiplier in the dtype of a."""
        multipliers = (float(gate_multiplier), float(down_multiplier))
        if multipliers == (1.0, 1.0):
            return swiglu(a, b).to(a.dtype)
        y = _multiplied(a, b, gate_multiplier=multipliers[0], down_multiplier=multipliers[1])
        return y.to(a.dtype)  # type: ignore[no-any-return]


class LigerFusedGateUpSiLUMulFunction(Function, metaclass=DropIn):
    """`LigerFusedGateUpSiLUMulFunction.apply(y)`: SwiGLU of a tensor packed in halves."""

    @staticmethod
    def apply(y: Tensor, in_place: bool = False) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.swiglu(y)`."""
        return swiglu(y)


class LigerGELUMulFunction(Function, metaclass=DropIn):
    """`LigerGELUMulFunction.apply(a, b)`."""

    @staticmethod
    def apply(a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        """gelu(a)·b in the dtype of a, by the tanh form of GELU."""
        return glu(a, b, activation="gelu_tanh").to(a.dtype)


class LigerReLUSquaredFunction(Function, metaclass=DropIn):
    """`LigerReLUSquaredFunction.apply(x)`."""

    @staticmethod
    def apply(x: Tensor) -> Tensor:  # type: ignore[override]
        """Returns `bridge.torch.squared_relu(x)`."""
        return squared_relu(x)


def liger_swiglu(a: Tensor, b: Tensor) -> Tensor:
    """Returns `bridge.torch.swiglu(a, b)` in the dtype of a.

    Args:
      a, b: `[..., d]`, of floating-point dtypes.
    """
    return LigerSiLUMulFunction.apply(a, b)


def liger_geglu(a: Tensor, b: Tensor) -> Tensor:
    """Returns `bridge.torch.glu(a, b, activation="gelu_tanh")` in the dtype of a.

    Args:
      a, b: `[..., d]`, of floating-point dtypes.
    """
    return LigerGELUMulFunction.apply(a, b)


def liger_relu_squared(x: Tensor) -> Tensor:
    """Returns `bridge.torch.squared_relu(x)`.

    Args:
      x: of any shape and floating-point dtype.
    """
    return LigerReLUSquaredFunction.apply(x)


class LigerReLUSquared(torch.nn.Module):
    """`liger_relu_squared` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return LigerReLUSquaredFunction.apply(x)


def check_activation(config: Any, *known: str) -> None:
    """Raises ValueError if the config names an activation that is not known."""
    given = getattr(config, "hidden_act", known[0])
    if given not in known:
        raise ValueError(f"hidden_act is {given!r}, expected {' or '.join(map(repr, known))}")


def check_silu(config: Any) -> None:
    check_activation(config, "silu", "swish")


class _GatedMLP(torch.nn.Module):
    """The base of gated MLPs, built from a config of Hugging Face."""

    def __init__(
        self, config: Any, intermediate_size: int | None = None, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = narrow = config.hidden_size
        wide = config.intermediate_size if intermediate_size is None else intermediate_size
        self.intermediate_size = wide
        check_sizes(self, hidden_size=narrow, intermediate_size=wide)
        self.gate_proj = torch.nn.Linear(narrow, wide, bias=bias)
        self.up_proj = torch.nn.Linear(narrow, wide, bias=bias)
        self.down_proj = torch.nn.Linear(wide, narrow, bias=bias)


class LigerSwiGLUMLP(_GatedMLP):
    """down_proj(silu(gate_proj(x))·up_proj(x)), without biases.

    Args:
      config: an object with `hidden_size`, `intermediate_size` and `hidden_act`.

    Raises:
      ValueError: config.hidden_act is neither "silu" nor "swish", as in the original.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        check_silu(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


class LigerQwen3MoeSwiGLUMLP(LigerSwiGLUMLP):
    """`LigerSwiGLUMLP`; an intermediate_size that is given replaces the config's."""

    def __init__(self, config: Any, intermediate_size: int | None = None) -> None:
        _GatedMLP.__init__(self, config, intermediate_size)
        check_silu(config)


class LigerHunyuanV1SwiGLUMLP(LigerSwiGLUMLP):
    """`LigerSwiGLUMLP` with the attribute `layer_idx`."""

    def __init__(
        self, config: Any, layer_idx: int | None = None, is_shared_mlp: bool = False
    ) -> None:
        super().__init__(config)
        self.layer_idx = layer_idx


class LigerFalconH1SwiGLUMLP(_GatedMLP):
    """down_proj(silu(gate_proj(x)·m)·up_proj(x)·n) with m, n = config.mlp_multipliers.

    config.mlp_bias adds biases, as in the original: the bias of down_proj is not multiplied by n.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config, bias=getattr(config, "mlp_bias", False))
        check_silu(config)
        gate_multiplier, down_multiplier = config.mlp_multipliers
        self.gate_multiplier, self.down_multiplier = float(gate_multiplier), float(down_multiplier)

    def forward(self, x: Tensor) -> Tensor:
        multipliers = (self.gate_multiplier, self.down_multiplier)
        h = LigerSiLUMulFunction.apply(self.gate_proj(x), self.up_proj(x), *multipliers)
        return self.down_proj(h)  # type: ignore[no-any-return]


class LigerPhi3SwiGLUMLP(torch.nn.Module):
    """`LigerSwiGLUMLP` with one projection for gate and up, `gate_up_proj`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.intermediate_size = config.intermediate_size
        check_sizes(self, hidden_size=self.hidden_size, intermediate_size=self.intermediate_size)
        self.gate_up_proj = torch.nn.Linear(
            self.hidden_size, 2 * self.intermediate_size, bias=False
        )
        self.down_proj = torch.nn.Linear(self.intermediate_size, self.hidden_size, bias=False)
        check_silu(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_up_proj(x)))  # type: ignore[no-any-return]


class LigerBlockSparseTop2MLP(torch.nn.Module):
    """w2(silu(w1(x))·w3(x)): `LigerSwiGLUMLP` with the names of Mixtral's experts."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.ffn_dim = config.intermediate_size
        self.hidden_dim = config.hidden_size
        check_sizes(self, hidden_size=self.hidden_dim, intermediate_size=self.ffn_dim)
        self.w1 = torch.nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = torch.nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = torch.nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        check_silu(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(LigerSiLUMulFunction.apply(self.w1(x), self.w3(x)))  # type: ignore[no-any-return]


class LigerGEGLUMLP(_GatedMLP):
    """down_proj(gelu(gate_proj(x))·up_proj(x)) by the tanh form of GELU, without biases.

    Args:
      config: an object with `hidden_size` and `intermediate_size`; its form of GELU is not used,
        as in the original.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(LigerGELUMulFunction.apply(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


class LigerGEGLUMLPForGemma4(LigerGEGLUMLP):
    """`LigerGEGLUMLP`, twice as wide in layers that share keys and values if the config says so.

    Args:
      config: as for LigerGEGLUMLP. Read if present: `use_double_wide_mlp`, `num_hidden_layers` and
        `num_kv_shared_layers`, the number of layers at the end that share.
      layer_idx: the number of this layer, from 0.
    """

    def __init__(self, config: Any, layer_idx: int | None = None) -> None:
        shared = getattr(config, "num_kv_shared_layers", 0)
        first_shared = getattr(config, "num_hidden_layers", 0) - shared
        is_wide = (
            layer_idx is not None
            and getattr(config, "use_double_wide_mlp", False)
            and shared > 0
            and layer_idx >= first_shared
        )
        _GatedMLP.__init__(self, config, config.intermediate_size * 2 if is_wide else None)
