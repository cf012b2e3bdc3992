"""Forms of convolutions, with the sums of their definition in float64 and bounds of the errors.

JAX's functions have no bias, so the forms have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.frozen_random import Array
from bridge.cli.model_ops.bounded import Bounded, exact
from bridge.cli.model_ops.product_forms import Products

# The letters of the dimensions of an image and a kernel, for each number of them.
_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class Form:
    """The options of a convolution.

    Attributes:
      sizes, places, taps: the sizes of the operand, of the result, and of the kernel.
      beyond: the places at the end of a transposed result that the padding keeps.
    """

    sizes: tuple[int, ...]
    places: tuple[int, ...]
    taps: tuple[int, ...]
    images: int = 4
    channels: int = 3
    outputs: int = 5
    groups: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False
    beyond: int = 0

    @property
    def space(self) -> tuple[int, ...]:
        of_kernel = self.outputs if self.transposed else self.channels
        lead = (self.images, self.channels, of_kernel // self.groups, self.outputs)
        return (*lead, *self.taps, *self.sizes, *self.places)

    def call(self, ops: Any, p: Operands, **bits: str) -> Any:
        """Runs the op of bridge, or the function of torch.nn.functional or jax.lax."""
        dims = len(self.sizes)
        if not hasattr(ops, "conv_general_dilated"):
            word = "conv_transpose" if self.transposed else "conv"
            options = {"output_padding": self.beyond} if self.transposed else {}
            function = getattr(ops, f"{word}{dims}d")
            return function(
                p["x"],
                p["weight"],
                stride=self.stride,
                padding=self.padding,
                dilation=self.dilation,
                groups=self.groups,
                **options,
                **bits,
            )
        letters = _LETTERS[dims]
        numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
        strides, dilation = (self.stride,) * dims, (self.dilation,) * dims
        if self.transposed:
            return ops.conv_transpose(
                p["x"],
                p["weight"],
                strides,
                [(self.padding, self.padding - self.beyond)] * dims,
                dilation,
                numbers,
                transpose_kernel=True,
                use_consistent_padding=True,
                **bits,
            )
        return ops.conv_general_dilated(
            p["x"],
            p["weight"],
            strides,
            [(self.padding, self.padding)] * dims,
            rhs_dilation=dilation,
            dimension_numbers=numbers,
            feature_group_count=self.groups,
            **bits,
        )


class _Convolution(Products):
    """A convolution, whose gradients are sums of products too."""

    def __init__(self, case: Any, p: Operands, form: Form) -> None:
        super().__init__(case, p)
        self.form = form

    def matrix(self, name: str) -> Bounded:
        return exact(self.p[name])

    def product(self, x: Bounded, b: Bounded) -> Bounded:
        reached = self.form.channels // self.form.groups * math.prod(self.form.taps)
        return self._sums(self._forward, x, b, reached)

    def of_x(self, g: Bounded, b: Bounded) -> Bounded:
        reached = self.form.outputs // self.form.groups * math.prod(self.form.taps)
        x = np.zeros(self.p["x"].shape)
        return self._sums(lambda g, b: self._pulled((x, b), 0, g), g, b, reached)

    def of_b(self, x: Bounded, g: Bounded) -> Bounded:
        places = self.form.sizes if self.form.transposed else self.form.places
        weight, terms = np.zeros(self.p["weight"].shape), self.form.images * math.prod(places)
        return self._sums(lambda x, g: self._pulled((x, weight), 1, g), x, g, terms)

    def _sums(
        self, function: Callable[[Array, Array], Array], a: Bounded, b: Bounded, terms: int
    ) -> Bounded:
        return self.arithmetic.sums_of_products(function, a, b, terms)

    def _forward(self, x: Array, weight: Array) -> Array:
        import torch

        given = {"x": torch.from_numpy(x), "weight": torch.from_numpy(weight)}
        return np.asarray(self.form.call(torch.nn.functional, given))

    def _pulled(self, operands: tuple[Array, Array], i: int, g: Array) -> Array:
        """Returns the gradient of operand i."""
        import torch

        leaves = [torch.from_numpy(array).requires_grad_() for array in operands]
        given = dict(zip(("x", "weight"), leaves, strict=True))
        y = self.form.call(torch.nn.functional, given)
        return np.asarray(torch.autograd.grad(y, leaves[i], torch.from_numpy(g))[0])


def _own_torch(form: Form, p: Operands) -> Any:
    import torch

    return form.call(torch.nn.functional, p)


def _own_jax(form: Form, p: Operands) -> Any:
    import jax

    return form.call(jax.lax, p)


def _form(name: str, form: Form) -> Entry:
    def bounds(case: Any, p: Operands) -> Mapping[str, Bounded]:
        return _Convolution(case, p, form).quantities()

    return Entry(
        name,
        {"x": "image", "weight": "kernel transposed" if form.transposed else "kernel"},
        ("convolved",),
        lambda ops, p: form.call(ops, p, bits="portable"),  # on a GPU those of the CPU
        lambda p: _own_torch(form, p),
        lambda p: _own_jax(form, p),
        compared=Comparison(
            "convolution",
            bounds=bounds,
            second_order=True,
            usual=False,
            own_shapes=(form.space,),
        ),
    )


CONVOLUTIONS = (
    _form("conv", Form((7, 6), (7, 6), (3, 3), padding=1)),
    _form("conv 1x1", Form((3, 3), (3, 3), (1, 1), channels=300)),
    _form("conv of one dimension", Form((11,), (5,), (3,), stride=2, padding=1, dilation=2)),
    _form(
        "conv of groups",
        Form((3, 5, 4), (2, 3, 2), (2, 3, 3), channels=6, outputs=4, groups=2, stride=1, padding=0),
    ),
    _form(
        "conv depthwise",
        Form((6, 5), (3, 3), (7, 7), channels=19, outputs=19, groups=19, stride=2, padding=3),
    ),
    _form(
        "conv_transpose",
        Form((4, 3), (8, 6), (3, 3), stride=2, padding=1, transposed=True, beyond=1),
    ),
)
