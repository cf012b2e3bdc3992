"""Convolutions as modules."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge.torch._ops.convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)


def _convolved(module: Any, function: Callable[..., Tensor], input: Tensor) -> Tensor:
    """Returns a module's result; paddings other than zeros are added to the input first."""
    padding = module.padding
    if module.padding_mode != "zeros":
        input = torch.nn.functional.pad(input, _both_sides(module), mode=module.padding_mode)
        padding = 0
    return function(
        input,
        module.weight,
        module.bias,
        module.stride,
        padding,
        module.dilation,
        module.groups,
    )


def _both_sides(module: Any) -> list[int]:
    """Returns the padding of each dimension, low and high, the last dimension first."""
    found: list[int] = []
    for place in reversed(range(len(module.kernel_size))):
        if module.padding == "valid":
            low = high = 0
        elif module.padding == "same":
            both = module.dilation[place] * (module.kernel_size[place] - 1)
            low, high = both // 2, both - both // 2
        else:
            low = high = module.padding[place]
        found += [low, high]
    return found


def _transposed(
    module: Any,
    function: Callable[..., Tensor],
    input: Tensor,
    output_size: Sequence[int] | None,
) -> Tensor:
    output_padding = module.output_padding
    if output_size is not None:
        output_padding = _output_padding(module, input, output_size)
    return function(
        input,
        module.weight,
        module.bias,
        module.stride,
        module.padding,
        output_padding,
        module.groups,
        module.dilation,
    )


def _output_padding(module: Any, input: Tensor, output_size: Sequence[int]) -> list[int]:
    """Returns the output padding that gives a result of `output_size`."""
    name, dims = type(module).__name__, len(module.kernel_size)
    wanted = list(output_size)
    if len(wanted) not in (dims, input.ndim):
        raise ValueError(
            f"{name}: output_size is {wanted}, expected {dims} sizes, or {input.ndim} with channels"
        )
    wanted = wanted[-dims:]
    found = []
    least = [
        (size - 1) * s - 2 * p + d * (k - 1) + 1
        for size, s, p, d, k in zip(
            input.shape[-dims:],
            module.stride,
            module.padding,
            module.dilation,
            module.kernel_size,
            strict=True,
        )
    ]
    for size, low, s, d in zip(wanted, least, module.stride, module.dilation, strict=True):
        if not low <= size < low + max(s, d):
            raise ValueError(
                f"{name}: output_size is {wanted}, expected from {least} to less than a stride "
                f"more, as input has shape {list(input.shape)}"
            )
        found.append(size - low)
    return found


class Conv1d(torch.nn.Conv1d):
    """`torch.nn.Conv1d` with the bits of `conv1d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.Conv1d`. A
    padding mode other than "zeros" pads the input by `torch.nn.functional.pad`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv1d` does not take.

    Example:
      >>> Conv1d(2, 3, 3, padding="same")(torch.ones(1, 2, 5)).shape
      torch.Size([1, 3, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, conv1d, input)


class Conv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` with the bits of `conv2d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.Conv2d`. A
    padding mode other than "zeros" pads the input by `torch.nn.functional.pad`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv2d` does not take.

    Example:
      >>> Conv2d(3, 8, 3, stride=2, padding=1)(torch.ones(1, 3, 8, 8)).shape
      torch.Size([1, 8, 4, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, conv2d, input)


class Conv3d(torch.nn.Conv3d):
    """`torch.nn.Conv3d` with the bits of `conv3d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.Conv3d`. A
    padding mode other than "zeros" pads the input by `torch.nn.functional.pad`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv3d` does not take.

    Example:
      >>> Conv3d(1, 2, 2)(torch.ones(1, 1, 3, 3, 3)).shape
      torch.Size([1, 2, 2, 2, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        return _convolved(self, conv3d, input)


class ConvTranspose1d(torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` with the bits of `conv_transpose1d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.ConvTranspose1d`,
    and a call takes `output_size`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv_transpose1d` does not take.
      ValueError: an output_size that no output padding gives.

    Example:
      >>> ConvTranspose1d(2, 3, 2, stride=2)(torch.ones(1, 2, 5)).shape
      torch.Size([1, 3, 10])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _transposed(self, conv_transpose1d, input, output_size)


class ConvTranspose2d(torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with the bits of `conv_transpose2d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.ConvTranspose2d`,
    and a call takes `output_size`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv_transpose2d` does not take.
      ValueError: an output_size that no output padding gives.

    Example:
      >>> ConvTranspose2d(2, 3, 2, stride=2)(torch.ones(1, 2, 4, 4)).shape
      torch.Size([1, 3, 8, 8])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _transposed(self, conv_transpose2d, input, output_size)


class ConvTranspose3d(torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` with the bits of `conv_transpose3d`.

    Constructor, parameters, initialisation and state dict are those of `torch.nn.ConvTranspose3d`,
    and a call takes `output_size`.

    Raises:
      TypeError, ValueError: a call with a tensor that `conv_transpose3d` does not take.
      ValueError: an output_size that no output padding gives.

    Example:
      >>> ConvTranspose3d(1, 2, 2)(torch.ones(1, 1, 2, 2, 2)).shape
      torch.Size([1, 2, 3, 3, 3])
    """

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return _transposed(self, conv_transpose3d, input, output_size)
