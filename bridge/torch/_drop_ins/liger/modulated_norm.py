"""The modulated RMS norm of Liger-Kernel: a scale and a shift for each sample."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from typing import Any

from torch import Tensor
from torch.autograd import Function

from bridge import lang as bl
from bridge.catalogue import norms
from bridge.catalogue.declaration import declared, named
from bridge.catalogue.norms import RMS_CHECKS
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._drop_ins.function_classes import DropIn
from bridge.torch._drop_ins.liger.norm_classes import LigerRMSNorm, check_mode


@declared()
@named("modulated_rms_norm")
def _modulated_rms_norm(
    x: bl.Full,
    scale: bl.Table,
    weight: bl.Row | None = None,
    shift: bl.Table | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
):
    normal = norms.rms_norm.declaration.function(x, weight, eps=eps, offset=offset)
    y = (1.0 + scale) * normal
    return bl.like(y if shift is None else y + shift, x)  # type: ignore[arg-type]


# Make it now: a first call under torch.compile could not make it.
_modulated = _modulated_rms_norm.torch


class LigerModulatedRMSNormFunction(Function, metaclass=DropIn):
    """`LigerModulatedRMSNormFunction.apply(X, W, scale, shift, eps, offset, casting_mode, ...)`."""

    @staticmethod
    def apply(  # type: ignore[override]
        X: Tensor,
        W: Tensor | None,
        scale: Tensor,
        shift: Tensor | None,
        eps: float,
        offset: float = 0.0,
        casting_mode: str | int = "llama",
        in_place: bool = True,
    ) -> Tensor:
        """(1 + scale)·X·r·(offset + W) + shift, in the dtype of X, in one pass.

        Args:
          X: `[..., d]`; W: `[d]` or None.
          scale: `[..., d]`; its number of rows divides X's. Each of its rows applies to equally
            many consecutive rows of X.
          shift: of the shape of scale, or None.
          eps: a positive number; offset: a finite number, not used without W.
          casting_mode: "llama", "gemma" or "none"; in_place: neither changes anything.

        Raises:
          TypeError: an argument is not a dense tensor or has another dtype; eps or offset is not a
            number.
          ValueError: shapes that do not fit; a number out of its range.
          AssertionError: an unknown casting_mode.
        """
        check_mode(casting_mode)
        name = "modulated_rms_norm"
        check_tensors(name, 2, X=X, scale=scale, weight=W, shift=shift)
        d, count = X.shape[-1:], X.shape[:-1].numel()
        per_sample = scale.shape[:-1].numel()
        if scale.shape[-1:] != d or not per_sample or count % per_sample:
            raise ValueError(
                f"{name}: scale has shape {list(scale.shape)}, expected {list(d)} in the last "
                f"dimension, and a number of rows that divides the {count} of X"
            )
        if shift is not None and shift.shape != scale.shape:
            raise ValueError(
                f"{name}: shift has shape {list(shift.shape)}, expected {list(scale.shape)}, as "
                "scale"
            )
        y = _modulated(
            X.reshape(per_sample, count // per_sample, *d),
            scale.reshape(per_sample, 1, *d),
            W,
            None if shift is None else shift.reshape(per_sample, 1, *d),
            eps=RMS_CHECKS["eps"](name, "eps", eps),
            offset=0.0 if W is None else RMS_CHECKS["offset"](name, "offset", offset),
        )
        return y.reshape(X.shape)  # type: ignore[no-any-return]


def liger_modulated_rms_norm(
    X: Tensor,
    W: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting_mode: str | int = "llama",
    in_place: bool = True,
) -> Tensor:
    """Returns `LigerModulatedRMSNormFunction.apply` of these arguments.

    Args:
      X: `[..., d]`, of a floating-point dtype.
      W: `[d]` or None.
      scale: `[..., d]`, for as many rows, or a number of rows that divides X's.
      shift: of the shape of scale, or None.
      eps: a positive number.
      offset: a finite number, added to W.
      casting_mode, in_place: of no effect on the result.
    """
    return LigerModulatedRMSNormFunction.apply(
        X, W, scale, shift, eps, offset, casting_mode, in_place
    )


class LigerModulatedRMSNorm(LigerRMSNorm):
    """`liger_modulated_rms_norm` with a weight of its own, with Liger-Kernel's constructor.

    Args:
      hidden_size, eps, offset, casting_mode, init_fn, in_place, elementwise_affine: as for
        `LigerRMSNorm`.

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
        in_place: bool = True,
        elementwise_affine: bool = True,
    ) -> None:
        super().__init__(
            hidden_size,
            eps,
            offset,
            casting_mode,
            init_fn,
            in_place,
            elementwise_affine=elementwise_affine,
        )

    def forward(self, hidden_states: Tensor, scale: Tensor, shift: Any = None) -> Tensor:  # type: ignore[override]
        """Returns (1 + scale)·norm(hidden_states) + shift."""
        return LigerModulatedRMSNormFunction.apply(
            hidden_states,
            self.weight,
            scale,
            shift,
            self.variance_epsilon,
            self.offset,
            self.casting_mode,
            self.in_place,
        )

    def extra_repr(self) -> str:
        shape = None if self.weight is None else tuple(self.weight.shape)
        return (
            f"weight_shape={shape}, eps={self.variance_epsilon}, offset={self.offset}, "
            f"casting_mode={self.casting_mode}, in_place={self.in_place}"
        )
