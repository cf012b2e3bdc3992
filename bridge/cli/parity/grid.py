"""The building blocks of the grids of all ops: layouts, places, values, and cases."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from bridge.cli.parity.accuracy import Errors
from bridge.cli.parity.quantities import quantities

Array = np.ndarray
Shape = tuple[int, ...]
Operands = dict[str, Array | None]

NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Layout:
    """A memory layout: the shape of a dense array, and a view of it.

    The view uses operations that NumPy, torch and JAX share, so that one line serves all.
    """

    name: str
    dense: Callable[[Shape], Shape]
    view: Callable[[Any, Shape], Any]


CONTIGUOUS = Layout("contiguous", lambda s: s, lambda a, s: a)
TRANSPOSED = Layout(
    "transposed", lambda s: (*s[:-2], s[-1], s[-2]), lambda a, s: a.swapaxes(-1, -2)
)
LEADING_SWAPPED = Layout(
    "leading dimensions swapped", lambda s: (s[1], s[0], *s[2:]), lambda a, s: a.swapaxes(0, 1)
)
EVERY_OTHER_ROW = Layout("every other row", lambda s: (2 * s[0], *s[1:]), lambda a, s: a[::2])
INNER_COLUMNS = Layout(
    "inner columns", lambda s: (*s[:-1], s[-1] + 3), lambda a, s: a[..., 1 : s[-1] + 1]
)
MISALIGNED = Layout("misaligned", lambda s: (int(np.prod(s)) + 1,), lambda a, s: a[1:].reshape(s))


@dataclass(frozen=True)
class Place:
    """A shape in a layout, filled with values of a kind.

    Attributes:
      values: "normal", or a kind that an op defines.
      quick: True if the place is in the quick grid.
      own: True if the frameworks' own ops are measured too.
    """

    shape: Shape
    layout: Layout = CONTIGUOUS
    values: str = "normal"
    quick: bool = False
    own: bool = False

    @property
    def label(self) -> str:
        """Text that distinguishes the place from others of its shape."""
        return f"{self.layout.name}, {self.values}"


class Case(ABC):
    """One point of the grid of an op.

    An op's operands have names: its inputs are the operands that it is differentiated by. In
    addition, g is a cotangent of its result, t_… a tangent of an input, and v_… a cotangent of an
    input's gradient. The operands in `laid_out` have the shape and the layout of the place.

    Attributes:
      op: the name of the op.
      form: the name of the variant of the op.
    """

    op: ClassVar[str]
    laid_out: ClassVar[tuple[str, ...]] = ("x", "g")
    deviation: ClassVar[float] = 1.0  # standard deviation of x
    widest: ClassVar[float] = 1.0  # largest |x| if the values of the place are "wide"
    # Quantities to compute besides the value, the gradients and the tangent.
    second_order: bool = False
    hessian: bool = False
    place: Place
    form: str

    @property
    @abstractmethod
    def dtypes(self) -> str:
        """The text for the dtypes in tables."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that are present."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of all quantities that are compared."""
        return quantities(self.inputs, self.second_order, self.hessian)

    def compared(self, result: Array) -> Array:
        """Returns a result in a form that has the same bits in both frameworks."""
        return result

    @property
    def own(self) -> bool:
        """True if the frameworks' own ops are measured too."""
        return self.place.own

    @property
    def split(self) -> tuple[str, ...]:
        """Operands to cut along the first dimension for the same result in pieces, if any."""
        return ()

    @property
    def mapped(self) -> tuple[str, ...]:
        """Operands to map over their first dimension (vmap) for the same result, if any."""
        return ()

    def has_rows(self, operand: str, shape: Shape) -> bool:
        """True if an operand of this shape has a part for each row of the place."""
        return shape == self.place.shape

    @abstractmethod
    def dtype_of(self, operand: str) -> str | None:
        """Returns the dtype of an operand, None if it is absent."""

    @abstractmethod
    def operands(self) -> Operands:
        """Returns the operands as dense arrays; for operands in `laid_out`, before their view."""

    def normal(self, names: tuple[str, ...], random: np.random.Generator) -> Operands:
        """Returns operands of normal numbers; x is as wide as the place says, biases are rows."""
        shape, filled = self.place.shape, Operands()
        for name in names:
            if (dtype := self.dtype_of(name)) is None:
                filled[name] = None
                continue
            laid_out = self.place.layout.dense(shape) if name in self.laid_out else shape
            size = shape[-1:] if name.endswith("bias") else laid_out
            values = random.standard_normal(size)
            if name == "x":
                values = self.deviation * values
                if self.place.values == "wide":
                    values[::2] = random.uniform(-self.widest, self.widest, values[::2].shape)
            # In 0 dimensions, NumPy's arithmetic returns a scalar instead of an array.
            filled[name] = np.asarray(values, NUMPY[dtype])
        return filled

    def viewed(self, name: str, array: Any) -> Any:
        """Returns an operand in its layout; `array` is of NumPy, torch or JAX, or None."""
        if array is not None and name in self.laid_out:
            return self.place.layout.view(array, self.place.shape)
        return array

    def all_viewed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.viewed(name, array) for name, array in given.items()}

    @abstractmethod
    def call(self, ops: Any, p: Mapping[str, Any]) -> Any:
        """Calls the op on operands of a framework; `ops` is bridge.torch or bridge.jax."""

    def own_torch(self, p: Mapping[str, Any]) -> Any:
        """Computes the op as a user of torch writes it without bridge."""
        raise NotImplementedError

    def own_jax(self, p: Mapping[str, Any]) -> Any:
        """Computes the op as a user of JAX writes it without bridge."""
        raise NotImplementedError

    @abstractmethod
    def judge(self, given: Operands) -> Judge:
        """Returns the object that knows the true values of the quantities for these operands."""

    def random(self) -> np.random.Generator:
        """Returns a generator that is the same in every run, and different for each case."""
        name = f"{self.op} {self.dtypes} {self.form} {self.place.shape} {self.place.label}"
        return np.random.default_rng(zlib.crc32(name.encode()))


class Judge(ABC):
    @abstractmethod
    def errors(self, quantity: str, results: Mapping[str, Array]) -> Errors:
        """Returns the errors of a quantity; values that it is derived from come from `results`."""

    def misplaced(self, result: Array) -> int:
        """Counts elements that differ from bits fixed by the contract."""
        return 0


def special_values(dtype: str, count: int, infinite: bool = True) -> Array:
    """Returns zeros, denormals, extremes, infinities and NaN of both signs, repeated to `count`."""
    limits = ml_dtypes.finfo(NUMPY[dtype])
    least, tiny, most = map(float, (limits.smallest_subnormal, limits.tiny, limits.max))
    positive = [0.0, least, 3 * least, tiny - least, tiny, tiny * 1.5, 2.0**-20, 0.5, 1.0, 3.0]
    positive += [8.0, 40.0, most / 4, most]
    if infinite:
        positive += [np.inf, np.nan]
    both = np.array([*positive, *(-value for value in positive)])
    with np.errstate(all="ignore"):
        return np.resize(both, count).astype(NUMPY[dtype])


def spread(size: int, count: int) -> Any:
    """Returns up to `count` evenly spaced indices below `size`, both ends included."""
    if size <= count:
        return slice(None)
    return np.unique(np.linspace(0, size - 1, max(count, 2)).astype(int))


def rounded_sum(parts: list[Array], arithmetic: str) -> Array:
    """Returns the sum of arrays by the contract: computed and rounded in the arithmetic's dtype."""
    total = parts[0].astype(arithmetic)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total = total + part.astype(arithmetic)
    return total
