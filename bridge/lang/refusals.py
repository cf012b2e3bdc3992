"""Array operations that values refuse; each error says what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from bridge.lang.errors import MissingAttribute, refuse
from bridge.lang.suggestions import INTEGERS, MATRICES, NUMBER, instead_of_attribute


def _no_function_of(library: str) -> str:
    return (
        f"{library}'s functions do not work on values: use those of bridge.lang; "
        "arrays come in as operands"
    )


class Foreign:
    """Refuses the functions of PyTorch, JAX and NumPy, through the protocol of each library."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(_no_function_of("PyTorch"))

    @property
    def __jax_array__(self) -> NoReturn:
        """Raises at JAX's first protocol check, before JAX tries any other conversion."""
        raise refuse(_no_function_of("JAX"))

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(_no_function_of("NumPy"))

    if not TYPE_CHECKING:  # type checkers shall report an unknown attribute themselves

        def __getattr__(self, name: str) -> NoReturn:
            # Libraries look up protocols under such names and expect an AttributeError.
            if name.startswith("__"):
                raise AttributeError(f"{type(self).__name__} has no {name}")
            raise refuse(self._instead_of(name), MissingAttribute)

    def _instead_of(self, name: str) -> str:
        return instead_of_attribute(name)


class NoNumber(Foreign):
    """Refuses operations that need a value's numbers, its elements or its shape."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise refuse(
            "a value is neither true nor false while the op is declared, so `if`, `while`, `and`, "
            "`or`, `not`, `max()` and `min()` cannot test it: write bl.where(condition, a, b), "
            "&, |, ~, bl.maximum(a, b) and bl.minimum(a, b)"
        )

    def __float__(self) -> NoReturn:
        raise refuse(NUMBER)

    __int__ = __index__ = __complex__ = __float__

    def __format__(self, specification: str) -> str:
        if specification:
            raise refuse("a value has no digits while the op is declared: compute with it as it is")
        return str(self)

    def __iter__(self) -> NoReturn:
        raise refuse(
            "a value is not iterable: bl.sum, bl.max and bl.mean go along its row; an operand of "
            "two halves is declared as bridge.Halves or Pairs"
        )

    def __getitem__(self, key: Any) -> NoReturn:
        raise refuse("a value has no elements to choose: write bl.where(bl.column() == k, x, 0.0)")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise refuse("a value cannot be written to: write bl.where(bl.column() == k, y, x)")

    def __contains__(self, key: Any) -> NoReturn:
        raise refuse(
            "a value has no elements to look through: write bl.max(bl.where(x == k, 1.0, 0.0))"
        )

    def __len__(self) -> NoReturn:
        raise refuse("the length of a row is not known when the op is declared: write bl.columns()")

    def __matmul__(self, other: Any) -> NoReturn:
        raise refuse(MATRICES)

    __rmatmul__ = __matmul__

    def __floordiv__(self, other: Any) -> NoReturn:
        raise refuse(INTEGERS)

    __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __floordiv__

    def __round__(self, digits: Any = None) -> NoReturn:
        raise refuse(INTEGERS)

    def __rpow__(self, base: Any) -> NoReturn:
        raise refuse(
            "no powers whose exponent is a value: write bl.exp2(x), or bl.exp(p * bl.log(base))"
        )

    def __xor__(self, other: Any) -> NoReturn:
        raise refuse("no ^ of values: write (a | b) & ~(a & b)")

    __rxor__ = __xor__


class Unusable(Foreign):
    """A value that allows no further operation; `instead` is the advice in its error message."""

    instead = ""
    __hash__ = object.__hash__

    def refused(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refuse(self.instead)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __float__ = refused
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = refused
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = __invert__ = refused
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __rand__ = __or__ = __ror__ = refused
    __eq__ = __ne__ = __bool__ = __len__ = __getitem__ = refused  # type: ignore[assignment]
    __array_ufunc__ = refused

    def _instead_of(self, name: str) -> str:
        return self.instead
