"""Group norm: each group of channels of an example is one row."""

from __future__ import annotations

import math
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.catalogue.gates import ACTIVATIONS
from bridge.catalogue.norms import cotangents, moments, shifted
from bridge.catalogue.numbers import Numbers
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import whole_number

_NAME = "group_norm"


def _vjp(x: Any, wide: Any, y: Any, g: Any, *, eps: float) -> Any:
    mean, correction, r = moments(x, eps)
    return *cotangents((x - mean - correction) * r, r, None, g, is_centred=True), 0.0


@declared(keep=("mean", "correction", "r"), vjp=_vjp, checks={"eps": checks.eps})
@named(_NAME)
def normalised(x: bl.Full, wide: bl.PerRow, *, eps: float = 1e-5):
    mean, correction, r = moments(x, eps)
    return bl.like((x - mean - correction) * r, wide)  # type: ignore[arg-type]


@declared(checks={"activation": checks.optional(checks.word(ACTIVATIONS))})
@named(_NAME)
def of_channels(
    x: bl.Full,
    own: bl.PerRow,
    weight: bl.PerRow | None = None,
    bias: bl.PerRow | None = None,
    *,
    activation: str | None = None,
):
    y = shifted(x, weight, bias)
    return bl.like(y if activation is None else ACTIVATIONS[activation](y), own)  # type: ignore[arg-type]


class GroupNorm:
    """`group_norm` in one framework.

    A row of the first op is a group, and a row of the second a channel. Between them the numbers
    have the dtype of the arithmetic, so the result has the bits of one op.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.numbers = arrays, Numbers(arrays, _NAME)
        self.normalised, self.of_channels = map(arrays.entry, (normalised, of_channels))

    def run(
        self, x: Any, groups: Any, weight: Any, bias: Any, eps: Any, activation: Any, last: Any
    ) -> Any:
        """Computes the op; `last` is True for channels in the last dimension.

        Raises:
          TypeError, ValueError: for operands and static arguments that do not fit.
        """
        count = whole_number(_NAME, "groups", self.arrays.known(_NAME, "groups", groups), 1)
        last = self.arrays.known(_NAME, "channels_last", last, "True or False")
        checks.flag(_NAME, "channels_last", last)
        wide, own = self.numbers.dtypes(x=x, weight=weight, bias=bias)
        shape = shape_of(x)
        if len(shape) < 2:
            raise ValueError(
                f"{_NAME}: x has shape {list(shape)}, expected at least two dimensions, examples "
                "and channels"
            )
        place = len(shape) - 1 if last else 1
        channels = shape[place]
        if channels % count:
            raise ValueError(
                f"{_NAME}: x has shape {list(shape)}, expected a multiple of {count} in dimension "
                f"{place}, one part for each group"
            )
        for name, vector in (("weight", weight), ("bias", bias)):
            if vector is not None and shape_of(vector) != (channels,):
                raise ValueError(
                    f"{_NAME}: {name} has shape {list(shape_of(vector))}, expected [{channels}]"
                )
        n, places = shape[0], math.prod(shape[1:place] + shape[place + 1 :])
        if last:
            x = x.reshape(n, places, channels).swapaxes(1, 2)
        rows = x.reshape(n, count, channels // count * places)
        is_last_op = weight is None and bias is None and activation is None
        like = self.arrays.zeros(x, (n, count), own if is_last_op else wide)
        y = self.normalised.run((rows, like), None, eps).reshape(n, channels, places)
        if not is_last_op:
            y = self._of_channels(y, weight, bias, activation, wide, own)
        return (y.swapaxes(1, 2) if last else y).reshape(shape)

    def _of_channels(
        self, h: Any, weight: Any, bias: Any, activation: Any, wide: str, own: str
    ) -> Any:
        """Returns activation(h·weight + bias) of h `[n, channels, places]`, in dtype `own`."""
        rows = shape_of(h)[:2]
        zeros = self.arrays.zeros(h, rows, wide)
        vectors = [
            None if vector is None else self.numbers.spread.run((zeros, vector), None)
            for vector in (weight, bias)
        ]
        like = self.arrays.zeros(h, rows, own)
        return self.of_channels.run((h, like, *vectors), None, activation)
