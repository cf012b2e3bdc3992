"""The classes of a timed case, and of an op's module of cases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from bridge.lang.dtypes import DTYPES, FLOATING

BYTES = {name: DTYPES[name].bytes for name in FLOATING}
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX"}
OLD = {"torch": "out=", "jax": "donated"}  # ways to write results into existing memory
HUGGINGFACE = "huggingface"  # not an op: a model whose layers are replaced
BORDER = "border"  # not an op: conversions between the frameworks
CHAIN = 101  # calls chained inside one jit
TINY = (2, 8)
SHARDED = (4, 4, 512, 512)  # arrays that are split along the first dimension
# Contenders that are no peers: a copy of x, an addition, and the cost of an empty call in XLA.
BESIDE = ("copy", "add", "empty")


@dataclass(frozen=True)
class Case:
    """One row of the bench.

    Attributes:
      op: the name of the op.
      framework: "torch" or "jax".
      what: "forward", "backward" (with all gradients), "forward+backward"; in JAX also "chain",
        calls one after the other inside one jit, and "outside jit", a call of the public function
        compared with a jitted expression.
      dtype, form, shape: of x; every other floating array has its dtype.
      memory: "new" memory for every result, or "old" memory for the large ones (`out=` in torch,
        donated in JAX).
      part: "main"; "tiny", which times the call itself; "growth", the same elements in rows of
        other lengths; "sharded", split over several devices under jit, compared with shard_map by
        hand.
      compiled: True if torch.compile, which takes seconds to compile, is a contender.
      peak: True if the memory of the contenders is measured too.
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
    """Yields the cases with enough rows that x takes at least `least` bytes.

    Cases that become equal are merged. Only cases whose cost is in their arrays are yielded.
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
        """Returns normal numbers in the dtype of the case."""

    @abstractmethod
    def wide(self, *shape: int) -> Any:
        """Returns normal numbers in float32, or in float64 if the case is in float64."""

    @abstractmethod
    def below(self, count: int, *shape: int) -> Any:
        """Returns integers from 0 to `count` − 1."""

    @abstractmethod
    def hidden(self, *shape: int) -> Any:
        """Returns booleans, True for the last fifth of each row: padding."""

    @abstractmethod
    def upper(self, rows: int, columns: int) -> Any:
        """Returns booleans, True above the diagonal that ends in the last corner."""

    @abstractmethod
    def key(self) -> Any:
        """Returns the source of random numbers: None in torch, a key in JAX."""


class Op(ABC):
    """The measurement of an op. Instances are stateless.

    Functions take the inputs, which are differentiated, and then the other `operands`.
    """

    name: str
    # In JAX: True if the backward pass starts from the residuals of the forward pass, False if it
    # starts from the operands, which is the same work if the derivative does not need the value.
    starts_from_kept = False

    @abstractmethod
    def cases(self, framework: str, quick: bool) -> Iterator[Case]:
        """Yields the cases of a framework."""

    def extremes(
        self, framework: str, quick: bool, form: str, tiny: Iterable[str]
    ) -> Iterator[Case]:
        """Yields the tiny cases of a form, and the case that is split over devices."""
        for what in tiny:
            yield Case(self.name, framework, what, "float32", form, TINY, part="tiny")
        if framework == "jax" and not quick:
            how = ("forward+backward", "float32", form, SHARDED)
            yield Case(self.name, framework, *how, part="sharded")

    def bytes(self, case: Case) -> int:
        """The fewest bytes that the case can move; 0 if the case is not about memory traffic."""
        moved = dict(zip(("forward", "backward"), self.moved(case), strict=True))
        arrays = sum(moved.get(what, 0.0) for what in case.what.split("+"))
        return int(arrays * math.prod(case.shape)) * BYTES[case.dtype]

    @abstractmethod
    def moved(self, case: Case) -> tuple[float, float]:
        """Returns the number of arrays of x's size that each pass moves, forward and backward."""

    @abstractmethod
    def operands(self, case: Case, make: Make) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns (inputs, rest), x first."""

    def cotangent(self, case: Case, make: Make) -> Any:
        """Returns the cotangent of the result; a tuple for several results."""
        return make.normal(*case.shape)

    @abstractmethod
    def bridged(self, case: Case, ops: Any) -> Function:
        """Returns the op; `ops` is bridge.torch or bridge.jax."""

    @abstractmethod
    def in_torch(self, case: Case) -> Function:
        """Returns the code that a user of torch writes without bridge."""

    @abstractmethod
    def in_jax(self, case: Case) -> Function:
        """Returns the code that a user of JAX writes without bridge."""

    def into(self, name: str, case: Case, out: Any) -> Function | None:
        """Returns a contender in torch that writes into `out`, or None if it cannot.

        It is a function of the operands for forward, and of the cotangent and the value for
        backward.
        """
        raise NotImplementedError

    def library(self, name: str, case: Case) -> Function:
        """Returns the op of another library.

        Raises:
          LookupError: if the library does not have it.
        """
        raise LookupError(f"it has no {self.name}")
