"""The norms of Liger-Kernel: the files of its `ops`, `transformers` and `functional.py`."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import torch
from torch import Tensor
from torch.autograd import Function

from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.sizes import check_sizes
from bridge.torch._ops.norms import layer_norm, rms_norm

_CASTING_MODES = ("llama", "gemma", "none", 0, 1, -1)


def check_mode(casting_mode: str | int) -> None:
    if casting_mode not in _CASTING_MODES:
        raise AssertionError(
            f"rms_norm: casting_mode is {casting_mode!r}, expected 'llama', 'gemma' or 'none'"
        )


class LigerRMSNormFunction(Function, metaclass=DropIn):
    """`LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place, row_mode)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        X: Tensor,
        W: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> Tensor:
        """Returns X·r·(offset + W), or X·r if W is None, in the dtype of X."""
        check_mode(casting_mode)
        return rms_norm(X, W, eps=eps, offset=0.0 if W is None else offset).to(X.dtype)  # type: ignore[no-any-return]


class LigerFusedAddRMSNormFunction(Function, metaclass=DropIn):
    """`LigerFusedAddRMSNormFunction.apply(X, R, W, eps, offset, casting_mode, in_place)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        X: Tensor,
        R: Tensor,
        W: Tensor,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns the RMS norm of S = X + R, and S, both in the dtype of X."""
        check_mode(casting_mode)
        y, s = rms_norm(X, W, R, eps=eps, offset=offset)
        return y.to(X.dtype), s.to(X.dtype)


class LigerLayerNormFunction(Function, metaclass=DropIn):
    """`LigerLayerNormFunction.apply(X, W, B, eps)`."""

    @staticmethod
    def apply(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:  # type: ignore[override]
        """Returns the layer norm of X in its dtype."""
        return layer_norm(X, W, B, eps=eps).to(X.dtype)  # type: ignore[no-any-return]


def liger_rms_norm(
    X: Tensor,
    W: Tensor | None,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    """Returns `bridge.torch.rms_norm(X, W, eps=eps, offset=offset)`, in the dtype of X.

    Args:
      X: `[..., d]`, of a floating-point dtype.
      W: `[d]` or None.
      eps: a positive number.
      offset: a finite number, added to W.
      casting_mode, in_place: of no effect on the result.
    """
    return LigerRMSNormFunction.apply(X, W, eps, offset, casting_mode, in_place)


def liger_fused_add_rms_norm(
    X: Tensor,
    R: Tensor,
    W: Tensor,
    eps: float,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns `bridge.torch.rms_norm(X, W, R, eps=eps, offset=offset)`, both in X's dtype.

    Args:
      X, R: `[..., d]`, of floating-point dtypes.
      W: `[d]`.
      eps: a positive number.
      offset: a finite number, added to W.
      casting_mode, in_place: of no effect on the result.
    """
    return LigerFusedAddRMSNormFunction.apply(X, R, W, eps, offset, casting_mode, in_place)


def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
    """Returns `bridge.torch.layer_norm(X, W, B, eps=eps)`, in the dtype of X.

    Args:
      X: `[..., d]`, of a floating-point dtype.
      W, B: `[d]`.
      eps: a positive number.
    """
    return LigerLayerNormFunction.apply(X, W, B, eps)


def _initial(module: torch.nn.Module, hidden_size: int, init_fn: str) -> torch.nn.Parameter:
    check_sizes(module, hidden_size=hidden_size)
    if init_fn not in ("ones", "zeros"):
        raise AssertionError(f"init_fn is {init_fn!r}, expected 'ones' or 'zeros'")
    return torch.nn.Parameter(getattr(torch, init_fn)(hidden_size))


class LigerRMSNorm(torch.nn.Module):
    """RMS norm over the last dimension, with Liger-Kernel's constructor, in the input's dtype.

    Args:
      hidden_size: d, the size of the last dimension.
      eps: a positive number; the attribute is `variance_epsilon`.
      offset: a number that is added to the weight.
      casting_mode: "llama", "gemma" or "none": only an attribute; the arithmetic is the same.
      init_fn: "ones" or "zeros": the initial weight.
      in_place, row_mode: only attributes; they change nothing.
      elementwise_affine: if true, the module has a `weight`.

    Raises:
      AssertionError: an unknown init_fn, and in a call an unknown casting_mode, as in the original.
    """

    weight: torch.nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        init_fn: str = "ones",
        in_place: bool = True,
        row_mode: bool | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__()
        weight = _initial(self, hidden_size, init_fn)
        self.elementwise_affine = elementwise_affine
        self.register_parameter("weight", weight if elementwise_affine else None)
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode
        self.in_place, self.row_mode = in_place, row_mode

    def forward(self, hidden_states: Tensor) -> Tensor:
        return LigerRMSNormFunction.apply(
            hidden_states,
            self.weight,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
            self.in_place,
            self.row_mode,
        )

    def extra_repr(self) -> str:
        shape = None if self.weight is None else tuple(self.weight.shape)
        return (
            f"weight_shape={shape}, eps={self.variance_epsilon}, offset={self.offset}, "
            f"in_place={self.in_place}, row_mode={self.row_mode}"
        )


class LigerRMSNormForGemma(LigerRMSNorm):
    """`LigerRMSNorm` with the defaults of Gemma: the weight is a difference from 1."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str | int = "gemma",
        init_fn: str = "zeros",
        in_place: bool = True,
        row_mode: bool | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma2(LigerRMSNormForGemma):
    """`LigerRMSNormForGemma` with another default of in_place."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str | int = "gemma",
        init_fn: str = "zeros",
        in_place: bool = False,
        row_mode: bool | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForQwen3Next(LigerRMSNormForGemma2):
    """The same as `LigerRMSNormForGemma2`."""


class LigerRMSNormForGemma3(LigerRMSNorm):
    """The same as `LigerRMSNormForGemma2`, with the argument dim for the size."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 1.0,
        casting_mode: str | int = "gemma",
        init_fn: str = "zeros",
        in_place: bool = False,
    ) -> None:
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """`LigerRMSNorm` with Gemma 4's defaults: no offset; without a weight if not with_scale."""

    def __init__(
        self,
        dim: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "gemma",
        init_fn: str = "ones",
        in_place: bool = False,
        with_scale: bool = True,
    ) -> None:
        super().__init__(
            dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale
        )
        self.with_scale = with_scale


class LigerRMSNormForOlmo2(LigerRMSNorm):
    """`LigerRMSNorm` with another default of in_place."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
        row_mode: bool | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGlm4(LigerRMSNormForOlmo2):
    """The same as `LigerRMSNormForOlmo2`."""


class LigerFusedAddRMSNorm(torch.nn.Module):
    """RMS norm of a sum with a residual, with Liger-Kernel's constructor.

    Args:
      hidden_size, eps, offset, casting_mode, init_fn, in_place: as for `LigerRMSNorm`.

    Raises:
      AssertionError: as `LigerRMSNorm`.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        init_fn: str = "ones",
        in_place: bool = False,
    ) -> None:
        super().__init__()
        self.weight = _initial(self, hidden_size, init_fn)
        self.variance_epsilon, self.offset, self.casting_mode = eps, offset, casting_mode
        self.in_place = in_place

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the norm of the sum, and the sum, both in the dtype of hidden_states."""
        return LigerFusedAddRMSNormFunction.apply(
            hidden_states,
            residual,
            self.weight,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
            self.in_place,
        )

    def extra_repr(self) -> str:
        return (
            f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}, offset={self.offset}, "
            f"in_place={self.in_place}"
        )


class LigerLayerNorm(torch.nn.Module):
    """Layer norm over the last dimension, with Liger-Kernel's constructor, in the input's dtype.

    Args:
      hidden_size: d, the size of the last dimension.
      eps: a positive number; `variance_epsilon` is the same attribute.
      bias: if true, the bias starts with normal random numbers instead of 0. There always is one.
      init_fn: "ones" or "zeros": the initial weight.

    Raises:
      AssertionError: an unknown init_fn, as in the original.
    """

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones"
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = self.variance_epsilon = eps
        self.weight = _initial(self, hidden_size, init_fn)
        self.bias = torch.nn.Parameter((torch.randn if bias else torch.zeros)(hidden_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return LigerLayerNormFunction.apply(
            hidden_states, self.weight, self.bias, self.variance_epsilon
        )

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}"
