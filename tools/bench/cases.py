"""The form of a timed case, and of an op's module of cases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
OLD = {"torch": "out=", "jax": "donated"}  # how results go into memory that is there
HUGGINGFACE = "huggingface"  # no op, but a model whose layers are replaced
BORDER = "border"  # no op, but the tensors that go from one framework to the other
CHAIN = 101  # calls chained inside one jit
TINY = (2, 8)
SHARDED = (4, 4, 512, 512)  # of arrays that are split along the first dimension
# These contenders are no peers: a copy of x, an addition, and what XLA itself takes for a call.
BESIDE = ("copy", "add", "empty")


@dataclass(frozen=True)
class Case:
    """One row of the bench.

    Attributes:
      op: name of the op.
      framework: "torch" or "jax".
      what: "forward", "backward" (with all gradients), "forward+backward"; in JAX also "chain",
        calls one after the other inside one jit, and "outside jit", a call of the public function
        beside a jitted expression.
      dtype, form, shape: of x; every other floating array has its dtype.
      memory: "new" memory for every result, "old" memory for the large ones (`out=` in torch,
        donated in JAX).
      part: "main"; "tiny", where the call itself is timed; "growth", the same elements in rows of
        other lengths; "sharded", split over several devices under jit, beside shard_map by hand.
      compiled: whether torch.compile, which takes seconds to compile, is a contender.
      peak: whether the memory that the contenders take is measured too.
    """

    op: str
    framework: str
    what: str
    dtype: str
    form: str
    shape: tuple[int, ...]
    memory: str = "new"
    part: str = "main"
    compiled: bool = True
    peak: bool = False

    @property
    def label(self) -> str:
        size = "×".join(map(str, self.shape))
        old = f", {OLD[self.framework]}" if self.memory == "old" else ""
        split = " on several devices" if self.part == "sharded" else ""
        return f"{self.what}{old} {self.dtype} {self.form} {size}{split}"


LARGE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}


def enlarged(cases: Iterable[Case], least: int) -> Iterator[Case]:
    """Yields the cases with more rows, so many that x takes at least so many bytes.

    Cases that become alike are one; only those are taken whose arrays are what costs.
    """
    seen = set()
    for case in cases:
        if case.part not in ("main", "growth"):
            continue
        first, *rest = case.shape
        row_bytes = math.prod(rest) * BYTES[case.dtype]
        larger = replace(case, shape=(max(first, -(-least // row_bytes)), *rest))
        if larger not in seen:
            seen.add(larger)
            yield larger


Function = Callable[..., Any]


class Make(ABC):
    """Makes arrays of a framework on the device."""

    @abstractmethod
    def normal(self, *shape: int) -> Any:
        """Normal numbers in the dtype of the case."""

    @abstractmethod
    def wide(self, *shape: int) -> Any:
        """Normal numbers in float32, in float64 where the case is."""

    @abstractmethod
    def below(self, count: int, *shape: int) -> Any:
        """Integers from 0 on."""

    @abstractmethod
    def hidden(self, *shape: int) -> Any:
        """Booleans, True for the last fifth of each row: padding."""

    @abstractmethod
    def upper(self, rows: int, columns: int) -> Any:
        """Booleans, True above the diagonal that ends in the last corner."""

    @abstractmethod
    def key(self) -> Any:
        """The source of random numbers: None in torch, a key in JAX."""


class Op(ABC):
    """The measurement of an op. Instances are stateless.

    Functions take the inputs, which are differentiated, and then the rest of `operands`.
    """

    name: str
    # This says of JAX whether the backward pass starts from what the forward pass kept, or from the
    # operands again, which is the same work where the derivative does not need the value.
    starts_from_kept = False

    @abstractmethod
    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        """Yields the cases of a framework."""

    def extremes(
        self, framework: str, quick: bool, form: str, tiny: Iterable[str]
    ) -> Iterator[Case]:
        """Yields the tiny cases of a form, and the one that is split over devices."""
        for what in tiny:
            yield Case(self.name, framework, what, "float32", form, TINY, part="tiny")
        if framework == "jax" and not quick:
            how = ("forward+backward", "float32", form, SHARDED)
            yield Case(self.name, framework, *how, part="sharded")

    def bytes(self, case: Case) -> int:
        """The fewest bytes that the case can move; 0 where they are not what it is about."""
        moved = dict(zip(("forward", "backward"), self.moved(case), strict=True))
        arrays = sum(moved.get(what, 0.0) for what in case.what.split("+"))
        return int(arrays * math.prod(case.shape)) * BYTES[case.dtype]

    @abstractmethod
    def moved(self, case: Case) -> tuple[float, float]:
        """Returns how many arrays of x's size each pass reads or writes, forward and backward."""

    @abstractmethod
    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns (inputs, rest), x first."""

    def cotangent(self, case: Case, make: Make) -> Any:
        """The cotangent of the result; a tuple for several results."""
        return make.normal(*case.shape)

    @abstractmethod
    def bridged(self, case: Case, ops: Any) -> Function:
        """The op; `ops` is bridge.torch or bridge.jax."""

    @abstractmethod
    def in_torch(self, case: Case) -> Function:
        """The code that a user of torch writes without bridge."""

    @abstractmethod
    def in_jax(self, case: Case) -> Function:
        """The code that a user of JAX writes without bridge."""

    def into(self, name: str, case: Case, out: Any) -> Function | None:
        """A contender in torch that writes into `out`; None where it cannot.

        Forward, a function of the operands; backward, one of the cotangent and the value.
        """
        raise NotImplementedError

    def library(self, name: str, case: Case) -> Function:
        """The op of another library.

        Raises:
          LookupError: if it has none; says so.
        """
        raise LookupError(f"it has no {self.name}")
