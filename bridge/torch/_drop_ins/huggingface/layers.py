"""The layers, activations and losses of Hugging Face's transformers."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.cross_entropy import cross_entropy
from bridge.torch._ops.gates import glu, squared_relu
from bridge.torch._ops.norms import rms_norm
from bridge.torch._ops.rotary import rotary

# Names of activations in configs, and in `glu`.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "relu": "relu",
    "sigmoid": "sigmoid",
}


class LlamaRMSNorm(torch.nn.Module):
    """x·r·weight: the norm of Llama, Mistral, Qwen and of most models.

    Args:
      hidden_size: d, the size of the last dimension.
      eps: a positive number, kept as `variance_epsilon`.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        check_sizes(self, hidden_size=hidden_size)
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, eps=self.variance_epsilon)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class GemmaRMSNorm(torch.nn.Module):
    """x·r·(1 + weight) in the dtype of x: the norm of Gemma to Gemma 3.

    Args:
      dim: d, the size of the last dimension.
      eps: a positive number.
    """

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        check_sizes(self, dim=dim)
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps, offset=1.0).to(x.dtype)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)}, eps={self.eps}"


class LlamaMLP(torch.nn.Module):
    """down_proj(act(gate_proj(x))·up_proj(x)).

    Args:
      config: an object with `hidden_size`, `intermediate_size`, `hidden_act` and, if there are
        biases, `mlp_bias`.

    Raises:
      ValueError: config.hidden_act is not one of silu, swish, gelu, gelu_new, gelu_fast,
        gelu_pytorch_tanh, quick_gelu, relu and sigmoid.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.hidden_act not in ACTIVATIONS:
            raise ValueError(
                f"LlamaMLP: config.hidden_act is {config.hidden_act!r}, expected one of "
                f"{', '.join(ACTIVATIONS)}"
            )
        self.config = config
        self.hidden_size, self.intermediate_size = config.hidden_size, config.intermediate_size
        narrow, wide = self.hidden_size, self.intermediate_size
        check_sizes(self, hidden_size=narrow, intermediate_size=wide)
        bias = getattr(config, "mlp_bias", False)
        self.gate_proj = torch.nn.Linear(narrow, wide, bias=bias)
        self.up_proj = torch.nn.Linear(narrow, wide, bias=bias)
        self.down_proj = torch.nn.Linear(wide, narrow, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.config.hidden_act]
        return self.down_proj(glu(self.gate_proj(x), self.up_proj(x), activation=activation))  # type: ignore[no-any-return]


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Rotates q and k by the angles of doubled tables, by `bridge.torch.rotary`.

    Args:
      q, k: `[batch, heads, positions, d]`, of any numbers of heads.
      cos, sin: `[batch, positions, n]`, whose second half repeats the first; the leading n columns
        are rotated, and the others stay as they are.
      unsqueeze_dim: the dimension of the heads: 2 for `[batch, positions, heads, d]`.

    Raises:
      TypeError, ValueError: as `bridge.torch.rotary`.
    """
    tables = of_heads(cos, unsqueeze_dim), of_heads(sin, unsqueeze_dim)
    return rotary(q, *tables), rotary(k, *tables)


def of_heads(table: Tensor, unsqueeze_dim: int) -> Tensor:
    """Returns the first half of a doubled table, with a dimension for heads."""
    return table[..., : table.shape[-1] // 2].unsqueeze(unsqueeze_dim)


class _GELU(torch.nn.Module):
    approximate = "tanh"

    def forward(self, input: Tensor) -> Tensor:
        return bias_gelu(input, approximate=self.approximate)


class NewGELUActivation(_GELU):
    """GELU by tanh, as in GPT-2 and Google's BERT ("gelu_new")."""


class GELUTanh(_GELU):
    """GELU by tanh ("gelu_pytorch_tanh").

    Args:
      use_gelu_tanh_python: changes nothing.
    """

    def __init__(self, use_gelu_tanh_python: bool = False) -> None:
        super().__init__()


class FastGELUActivation(_GELU):
    """GELU by tanh ("gelu_fast"); the original has its constant to 10 digits."""


class GELUActivation(_GELU):
    """x·Φ(x) ("gelu").

    Args:
      use_gelu_python: changes nothing.
    """

    approximate = "none"

    def __init__(self, use_gelu_python: bool = False) -> None:
        super().__init__()


class QuickGELUActivation(_GELU):
    """x·σ(1.702·x) ("quick_gelu")."""

    approximate = "sigmoid"


class ReLUSquaredActivation(torch.nn.Module):
    """relu(x)² ("relu2")."""

    def forward(self, input: Tensor) -> Tensor:
        return squared_relu(input)


def fixed_cross_entropy(
    source: Tensor,
    target: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """Returns the mean loss of the rows that are not ignored, or their sum ÷ num_items_in_batch.

    Args:
      source: `[..., V]`; target: `[...]` of any integer dtype.
      num_items_in_batch: the divisor of the sum; None for the number of labels not ignored.
      ignore_index: the label of rows without a loss.
      kwargs: of no effect.
    """
    if num_items_in_batch is None:
        return cross_entropy(source, target, ignore_index=ignore_index)
    total = cross_entropy(source, target, ignore_index=ignore_index, reduction="sum")
    return total / on_device(num_items_in_batch, total)


def on_device(count: Tensor | int, like: Tensor) -> Tensor | int:
    return count.to(like.device) if isinstance(count, Tensor) else count


def following(labels: Tensor, ignore_index: int) -> Tensor:
    """Returns for each position the label of the next one; the last position is ignored."""
    # An unsigned dtype has no -100.
    labels = labels.to(torch.int64)
    return torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]


def ForCausalLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Returns the loss of predicting the next token, in float32 for 16-bit logits.

    The logits are not copied.

    Args:
      logits: `[batch, positions, vocab_size]`; labels: `[batch, positions]`.
      vocab_size: the number of columns.
      num_items_in_batch: the divisor of the sum; None for the number of labels not ignored.
      ignore_index: the label of tokens without a loss.
      shift_labels: the labels of the next tokens, if the caller has them.
      kwargs: of no effect.
    """
    if shift_labels is None:
        shift_labels = following(labels, ignore_index)
    return ForMaskedLMLoss(logits, shift_labels, vocab_size, num_items_in_batch, ignore_index)


def ForMaskedLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """Returns the loss of predicting the token itself, as `ForCausalLMLoss` does.

    Args:
      logits: `[..., vocab_size]`, of a floating-point dtype.
      labels: `[...]`, integers.
      vocab_size: the number of columns.
      num_items_in_batch: the divisor of the sum; None for the number of labels not ignored.
      ignore_index: the label of tokens without a loss.
      kwargs: of no effect.
    """
    rows = logits.reshape(-1, vocab_size)
    labels = labels.reshape(-1).to(logits.device)
    return fixed_cross_entropy(rows, labels, num_items_in_batch, ignore_index)
