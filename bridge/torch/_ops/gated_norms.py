"""The public RMS norm with a gate for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.gated_norms import GatedNorm
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.overrides import hand_over, is_overridden

_gated_rms_norm = GatedNorm(arrays)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    activation: str = "silu",
    norm_first: bool = True,
    groups: int = 1,
) -> Tensor:
    r"""rms_norm(x)·act(gate), or rms_norm(x·act(gate)) with `norm_first=False`, in one pass.

    rms_norm(h) is h·r·weight with r = 1/√(mean(h²) + eps) over the last dimension, or over each of
    `groups` equal parts of it. No intermediate result is rounded: 16-bit tensors and float32 are
    computed in float32, float64 in float64, and rounded once. A row's bits depend on that row
    alone, and `bridge.jax` gives the same bits. A row, or a group, whose sum of squares overflows
    gives 0 before the gate. Differentiable to any order, in reverse and forward mode. The residuals
    are the arguments and r, one number for each row and group.

    Args:
      x: `[..., d]` of dtype float16, bfloat16, float32 or float64, of any strides.
      gate: of x's shape, of any of these dtypes.
      weight: `[d]`, of any of these dtypes.
      eps: a positive finite number.
      activation: the function of the gate, one of those of `glu`: "silu", "gelu", "gelu_tanh",
        "gelu_sigmoid", "relu" or "sigmoid".
      norm_first: the gate multiplies the normalised row, as in Qwen3-Next. Otherwise it multiplies
        x, and the product is normalised, as in Mamba2.
      groups: the number of groups of columns, each of which is normalised by itself; a divisor of
        d.

    Returns:
      A tensor of x's shape in the promoted dtype of all three.

    Raises:
      TypeError: an argument is not a dense tensor or has another dtype; eps is not a number, groups
        not an integer, or norm_first neither True nor False.
      ValueError: a shape that does not fit x; eps is not positive or not finite; an unknown
        activation; groups that are not positive or do not divide d.

    Example:
      >>> x, gate = torch.tensor([[3.0, 4.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 2.0, 2.0]])
      >>> gated_rms_norm(x, gate, activation="relu", eps=1e-12)
      tensor([[1.2000, 1.6000, 0.0000, 0.0000]])

    Source: Dao and Gu, "Transformers are SSMs", arXiv:2405.21060, section 7; Zhang and Sennrich,
    arXiv:1910.07467.
    """
    if is_overridden(given := (x, gate, weight)):
        return hand_over(given)  # type: ignore[no-any-return]
    check_tensors("gated_rms_norm", 2, x=x, gate=gate, weight=weight)
    return _gated_rms_norm.run(x, gate, weight, groups, eps, activation, norm_first)  # type: ignore[no-any-return]
