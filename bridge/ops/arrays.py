"""The functions of arrays that a composition of ops needs, the same in both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bridge.ops.definition import Spec


class Arrays(Protocol):
    """The interface of bridge/torch/_adapter/arrays.py and bridge/jax/_adapter/arrays.py."""

    def entry(self, op: Any, name: str = "") -> Any:
        """Returns an object whose run(operands, out, *static) computes a declared op.

        Args:
          name: the public function's name in messages, in place of the declaration's.
        """

    def known(self, function: str, name: str, value: Any, expected: str = "a number") -> Any:
        """Returns a static argument; raises TypeError if it is known only at run time."""

    def checked(
        self, name: str, required: int, integers: Sequence[str] = (), /, **arrays: Any
    ) -> tuple[Any, ...]:
        """Returns the arguments as arrays; all after the first `required` may be None.

        Args:
          integers: the names of arrays of integers.

        Raises:
          TypeError, ValueError: an argument is not an array; `name` is the function in messages.
        """

    def autocast(self, *arrays: Any) -> tuple[Any, ...]:
        """Returns the arrays, in the dtype of torch's autocast where that is on."""

    def spec_of(self, array: Any) -> Spec:
        """Returns shape and dtype."""

    def dtype_of(self, array: Any) -> str:
        """Returns the name of the dtype, one object for all arrays of a dtype."""

    def cast(self, x: Any, dtype: str) -> Any:
        """Returns x in another dtype."""

    def constant(self, x: Any) -> Any:
        """Returns x without its derivatives."""

    def concatenated(self, first: Any, *others: Any) -> Any:
        """Joins arrays along the last dimension, in the dtype of the first."""

    def parts(self, x: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Cuts x along the last dimension; the gradient is one concatenation."""

    def packed(self, codes: Any) -> Any:
        """Joins codes of 4 bits, two in a byte: the first in the low bits."""

    def unpacked(self, values: Any) -> Any:
        """Returns the codes of such bytes, as int8; None for an array of another dtype."""

    def with_whole_rows(self, x: Any) -> Any:
        """Returns x with rows that no sharding type splits, for a slice of columns."""

    def zeros(self, like: Any, shape: Sequence[int], dtype: str) -> Any:
        """Returns zeros on the device of `like`."""

    def last_columns(self, x: Any) -> Any:
        """Returns `[*rows]`: the last column that each row of x sees causally."""
