"""Layers in the form of Hugging Face's kernel hub, under the names that transformers asks for.

`kernels.kernelize` gives the `forward` of such a class to a layer of a model: `self` is then the
model's layer, with its parameters, and `type(self).forward` its own computation. Such a class has
no other members than these.
"""

# Annotations are evaluated (no `from __future__ import annotations`), as in `layers`.

from typing import Any

from torch import Tensor, nn

from bridge.torch._drop_ins.huggingface.layers import of_heads
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.gated_norms import gated_rms_norm
from bridge.torch._ops.gates import glu
from bridge.torch._ops.norms import rms_norm
from bridge.torch._ops.rotary import rotary

_GATES = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


class RMSNorm(nn.Module):
    """x·r·weight with `variance_epsilon`: the norm of most models."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        if self.weight.dtype != hidden_states.dtype:
            # Models differ in the dtype of the result.
            return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
        return rms_norm(hidden_states, self.weight, eps=self.variance_epsilon)


class LlamaRMSNorm(RMSNorm):
    """`RMSNorm` under its older name."""


class RMSNormZeroCentered(nn.Module):
    """x·r·(1 + weight) with `eps`, in the dtype of x."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps, offset=1.0).to(x.dtype)  # type: ignore[no-any-return]


class RMSNormGated(nn.Module):
    """x·r·weight·activation(gate), in the dtype of x; the sum of squares is that of x alone."""

    can_torch_compile = True
    has_backward = True

    def forward(self: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        activation = _GATES.get(getattr(self, "activation", "silu"))
        if gate is None or activation is None:
            return type(self).forward(self, hidden_states, gate)  # type: ignore[no-any-return]
        how = {"eps": self.variance_epsilon, "activation": activation}
        return gated_rms_norm(hidden_states, gate, self.weight, **how).to(hidden_states.dtype)


class rotary_pos_emb(nn.Module):
    """Rotates q and k by doubled tables, or by tables of half the columns."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        columns = q.shape[-1] // cos.shape[-1]
        if not q.dtype == k.dtype == cos.dtype == sin.dtype or columns not in (1, 2):
            return type(self).forward(self, q, k, cos, sin, unsqueeze_dim)  # type: ignore[no-any-return]
        if columns == 1:
            tables = of_heads(cos, unsqueeze_dim), of_heads(sin, unsqueeze_dim)
        else:
            tables = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return rotary(q, *tables), rotary(k, *tables)


class GeluTanh(nn.Module):
    """GELU by tanh."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: Tensor) -> Tensor:
        return bias_gelu(input, approximate="tanh")


class NewGELU(GeluTanh):
    """GELU by tanh, as in GPT-2."""


class FastGELU(GeluTanh):
    """GELU by tanh; the original has its constant to 10 digits."""


class GeLU(nn.Module):
    """x·Φ(x)."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: Tensor) -> Tensor:
        return bias_gelu(input, approximate="none")


class QuickGELU(nn.Module):
    """x·σ(1.702·x)."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: Tensor) -> Tensor:
        return bias_gelu(input, approximate="sigmoid")


class SiluAndMul(nn.Module):
    """silu(gate)·up of a packed tensor."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return glu(x, activation="silu")


class GeluAndMul(nn.Module):
    """gate·Φ(gate)·up of a packed tensor."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return glu(x, activation="gelu")


class GeluTanhAndMul(nn.Module):
    """`GeluAndMul` with GELU by tanh."""

    can_torch_compile = True
    has_backward = True

    def forward(self, x: Tensor) -> Tensor:
        return glu(x, activation="gelu_tanh")


NAMES = tuple(
    sorted(
        name
        for name, value in globals().items()
        if isinstance(value, type) and value.__module__ == __name__
    )
)
