"""The description of a scalar operation: everything that differs from one to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """The time of an instruction.

    Attributes:
      cpu: in cheap instructions; 0 for an access to memory, 1 if the instruction costs no more than
        to read its value from where it was saved.
      cuda: in short instructions.
      takes_long: True if it takes many times as long as an addition.
    """

    cpu: int
    cuda: int
    takes_long: bool = False


MEMORY = Cost(cpu=0, cuda=1)
SHORT = Cost(cpu=1, cuda=1)
CONVERSION = Cost(cpu=8, cuda=1)
ROOT = Cost(cpu=8, cuda=10)
COARSE = Cost(cpu=8, cuda=1, takes_long=True)
RANDOM = Cost(cpu=8, cuda=10, takes_long=True)
FUNCTION = Cost(cpu=8, cuda=25, takes_long=True)
ANGLE = Cost(cpu=8, cuda=80, takes_long=True)


@dataclass(frozen=True)
class Halves:
    """The two halves of a function in C++; one loop starts it, another one finishes it.

    Attributes:
      first: the operation after which the first half is named; operations may share it.
      start, finish: the halves as expressions of `a`, and of `a` and `started`.
    """

    first: str
    start: str
    finish: str


@dataclass(frozen=True)
class Scalar:
    """An operation on the numbers of one element.

    Attributes:
      name: its name in the bytecode.
      arity: the number of inputs.
      cost: its time.
      cpp: its value in C++, an expression of the numbers `a`, `b` and `c`.
      formula: its value in float64 NumPy; None for a step of softmax or log Σ eˣ.
      rule: its partial derivatives; None if derivatives.py treats it by itself.
      expansion: the operation written as other operations, to be differentiated; instead of a rule.
      symbol: its name in C++ without the k; by default its name in camel case.
      inline: its value in C++ where truth values are of type bool; "" if that is a call of `cpp`.
      halves: its halves, if kernels may split it.
      of: operation and static parameter of the nodes that it computes, if not (name, None).
      is_for_16_bits: True if it stands for a more accurate one in programs of a 16-bit type.
      is_public: True if bridge.lang has a function of the operation's name.
    """

    name: str
    arity: int
    cost: Cost
    cpp: str
    formula: Callable[..., Any] | None = None
    rule: Callable[..., Sequence[Any]] | None = None
    expansion: Callable[..., Any] | None = None
    symbol: str = ""
    inline: str = ""
    halves: Halves | None = None
    of: tuple[tuple[str, Any], ...] = ()
    is_for_16_bits: bool = False
    is_public: bool = False

    @property
    def nodes(self) -> tuple[tuple[str, Any], ...]:
        """Operation and static parameter of the nodes that it computes."""
        return self.of or ((self.name, None),)
