"""The public bias_gelu for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue import bias_gelu as _declared
from bridge.ops import PROGRAM, ProgramParams
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.destination import overwrite
from bridge.torch._adapter.kernels import spec_of
from bridge.torch._adapter.overrides import hand_over, is_overridden


def bias_gelu(
    x: Tensor, bias: Tensor | None = None, *, approximate: str = "tanh", out: Tensor | None = None
) -> Tensor:
    r"""GELU of the sum of x and a bias over the last dimension, in one pass over memory.

    With h = x + bias (Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415):

    - `"tanh"`: 0.5·h·(1 + tanh(√(2/π)·(h + 0.044715·h³)))
    - `"none"`: h·Φ(h), the exact form, Φ the normal distribution function
    - `"sigmoid"`: h·σ(1.702·h)

    16-bit and float32 tensors are computed in float32, float64 in float64, and rounded once. The
    same input gives the same bits in `bridge.jax`, on every device and with any number of threads.
    At h = −∞ the value is −0 and the derivative 0.

    Differentiable to any order, in reverse and forward mode, and under `torch.func`. One kernel
    computes the gradients of x and of bias; the sums of the latter are in float32 (float64 for
    float64) in a fixed order, and rounded once. Works under `torch.compile(fullgraph=True)`,
    `torch.export`, autocast (which does not change it) and CUDA graphs; never synchronises with the
    device.

    Args:
      x: `[..., d]` or 0-dimensional, of dtype float16, bfloat16, float32 or float64, on the CPU or
        a CUDA device. Rows need not be contiguous in memory (a slice of columns costs no copy).
      bias: `[d]`, of the same dtypes, on the same device. None adds nothing.
      approximate: `"tanh"`, `"none"` or `"sigmoid"`, as for `torch.nn.functional.gelu`, whose
        default is `"none"`.
      out: a tensor for the result, of its shape and dtype. May be x itself; must not share memory
        with x or bias otherwise.

    Returns:
      A contiguous tensor of x's shape (or `out`). Its dtype is the one of x and bias if both are
      equal, else float32, or float64 if either is float64. A gradient has its input's dtype.

    Raises:
      TypeError: an argument is not a dense tensor, or has another dtype.
      ValueError: an unknown `approximate`; a bias that is not `[d]`; tensors on different devices;
        an `out` of another shape or device, or that overlaps an operand. Then nothing has been
        written.
      RuntimeError: `out` is given, and an argument requires a gradient.

    Example:
      >>> linear = torch.nn.Linear(512, 2048, bias=False)
      >>> bias = torch.nn.Parameter(torch.zeros(2048))
      >>> bias_gelu(linear(torch.randn(8, 512)), bias).shape
      torch.Size([8, 2048])
    """
    return _bias_gelu.run((x, bias), out, approximate)  # type: ignore[no-any-return]


def bias_gelu_(x: Tensor, bias: Tensor | None = None, *, approximate: str = "tanh") -> Tensor:
    """Computes `bias_gelu` in place: writes the result into x and returns x.

    Accepts and raises the same as `bias_gelu`. Also raises torch's errors for operations in place:
    on a leaf that requires a gradient, on a view of one, on a tensor whose elements share memory.
    If a gradient is wanted, a copy of x is kept for the backward pass; else nothing is allocated.

    Raises:
      TypeError: also if the result's dtype is not x's dtype (a bias of a wider dtype).
    """
    if is_overridden((x, bias)):
        return hand_over((x, bias))
    operands = (x,) if bias is None else (x, bias)
    return overwrite("bias_gelu_", PROGRAM, operands, _params_in_place(x, bias, approximate))


def _params_in_place(x: Tensor, bias: Tensor | None, approximate: str) -> ProgramParams:
    params = _bias_gelu.params((x, bias), approximate)
    if params.dtypes != spec_of(x).dtype:
        raise TypeError(
            f"bias_gelu_: the result has dtype {params.dtypes} and does not fit into x of dtype "
            f"{spec_of(x).dtype}; convert bias to it, or use bias_gelu"
        )
    return params


def bias_gelu_times(g: Tensor, x: Tensor, bias: Tensor | None, *, approximate: str) -> Tensor:
    """Returns g·gelu′(x + bias), of x's shape: the originals' backward function of bias-GELU."""
    return _times.run((x, g, bias), None, approximate)  # type: ignore[no-any-return]


_bias_gelu = DeclaredEntry(_declared.bias_gelu)
_times = DeclaredEntry(_declared.bias_gelu_back)
