"""The interface of an op, without any framework: `bridge.torch` and `bridge.jax` lower it.

A call has a tuple of operands, some of which may be absent (`None`), and a hashable record of
parameters. It returns a tuple of results, of which the caller may want only some. The derivatives
of a call are calls of ops too. That is the whole interface: an adapter which can run a call, batch
it, and follow the two derivative rules has every transform of its framework.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar


class Role(enum.Enum):
    """Shape of an operand or result of a call whose row space is `[*batch, *rows, d]`."""

    FULL = "full"  # [*batch, *rows, d]
    HALVES = "halves"  # [*batch, *rows, 2d]: two arrays of the space side by side
    PAIRS = "pairs"  # the same, the two alternating along the last dimension
    PER_ROW = "per_row"  # floats [*batch, *rows]
    LABEL = "label"  # integers of any dtype [*batch, *rows]
    ROW = "row"  # [*batch, d]: one vector for all rows of a batch
    TABLE = "table"  # floats of any shape that broadcasts to FULL from the right
    MASK = "mask"  # truth values of any such shape
    PER_BLOCK_16 = "per_block_16"  # one number for each 16 columns [*batch, *rows, d / 16]
    PER_BLOCK_32 = "per_block_32"
    PER_BLOCK_64 = "per_block_64"
    PER_BLOCK_128 = "per_block_128"
    INTEGER = "integer"  # int64 [*batch], or uint32 [*batch, 2], the low word first

    @property
    def is_discrete(self) -> bool:
        """True for integer and boolean roles, which have no gradient."""
        return self in (Role.LABEL, Role.MASK, Role.INTEGER)

    @property
    def fills_space(self) -> bool:
        """True if there is a number at every place of the space, as the first operand must have."""
        return self is Role.FULL or self.is_double

    @property
    def is_double(self) -> bool:
        """True for two arrays of the space in one array."""
        return self in (Role.HALVES, Role.PAIRS)

    @property
    def block(self) -> int:
        """The columns that share a number; 0 for roles without blocks."""
        return int(self.value.removeprefix("per_block_")) if "block" in self.value else 0

    @property
    def has_all_rows(self) -> bool:
        """True if an array has all dimensions of the space, except perhaps the columns."""
        return self.fills_space or self.block > 0 or self in (Role.PER_ROW, Role.LABEL)

    @property
    def broadcasts(self) -> bool:
        """True if an array has its own shape, which broadcasts to the space from the right."""
        return self in (Role.TABLE, Role.MASK)


def space_of(shape: Sequence[int], role: Role) -> tuple[int, ...]:
    """Returns the space `[*batch, *rows, d]` of an array that fills it."""
    if role.is_double:
        return (*shape[:-1], shape[-1] // 2)
    return tuple(shape)


def shape_in(role: Role, space: tuple[int, ...], batch_ndim: int) -> tuple[int, ...]:
    """Returns the shape of an array of a role in this space; an INTEGER counts as int64.

    Raises:
      ValueError: for a role whose arrays have a shape of their own.
    """
    if role is Role.FULL:
        return space
    if role is Role.ROW:
        return (*space[:batch_ndim], *space[-1:]) if space else (1,)
    if role.is_double:
        return (*space[:-1], 2 * space[-1])
    if role.block:
        return (*space[:-1], space[-1] // role.block)
    if role.broadcasts:
        raise ValueError(f"a {role.value} has a shape of its own")
    return space[:batch_ndim] if role is Role.INTEGER else space[:-1]


@dataclass(frozen=True)
class Spec:
    """Shape and dtype name of an array: the only properties that a rule may read.

    Sizes may be symbolic. Shapes are compared only by these methods; a framework that traces with
    symbolic sizes overrides them.
    """

    shape: tuple[int, ...]
    dtype: str

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        return self.shape == shape

    def broadcasts_to(self, shape: tuple[int, ...]) -> bool:
        """True if the array broadcasts to that shape from the right."""
        return len(self.shape) <= len(shape) and all(
            own == 1 or own == full
            for own, full in zip(reversed(self.shape), reversed(shape), strict=False)
        )


class Parameters(Protocol, Hashable):
    """Parameters of a call; each index of the `batch_ndim` dimensions has its own row vectors."""

    @property
    def batch_ndim(self) -> int: ...

    def with_batch(self) -> Any:
        """Returns the parameters with one more batch dimension in front."""
        ...

    def attributes(self) -> dict[str, Any]:
        """Returns the kernel's attributes besides its arrays: names to int, float or str."""
        ...


P = TypeVar("P", bound=Parameters)
Operands = tuple[Any, ...]  # arrays of one framework, Spec or None, by position


@dataclass(frozen=True)
class ZerosLike:
    """Placeholder in a call of a derivative rule: zeros with an operand's shape and dtype."""

    position: int


@dataclass(frozen=True)
class Call(Generic[P]):
    """An op applied to operands, the answer of a derivative rule.

    If `op` is None the results are the operands themselves: an array is passed on, not copied.
    """

    op: Op[P] | None
    operands: Operands
    params: P | None = None


# For each result of a call, the operand or operands whose cotangent it is, or None.
Places = tuple[int | tuple[int, ...] | None, ...]


def each_place(places: Places) -> list[tuple[int, int]]:
    """Lists the pairs (result, operand) of `places`."""
    found = []
    for i, place in enumerate(places):
        if place is not None:
            found += [(i, each) for each in (place if isinstance(place, tuple) else (place,))]
    return found


def passed_on(*operands: Any) -> Call[Any]:
    """Returns the call whose results are its operands."""
    return Call(None, operands)


class Op(Protocol[P]):
    """The rules of one op. Instances are stateless singletons.

    The first operand fills the space of the call. If `result_names` is None, the number of results
    depends on the parameters.
    """

    name: str
    # Names of the operands, by position; all but the first operand may be absent.
    operand_names: tuple[str, ...]
    # The parameters, a frozen dataclass. Fields are str, int, float, or `str | None`.
    params_type: type[P]
    result_names: tuple[str, ...] | None

    if TYPE_CHECKING:  # which does not take a protocol for hashable

        def __hash__(self) -> int:
            return 0

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in the native module."""
        return self.name

    def words(self, params: P) -> tuple[str, tuple[str, ...]]:
        """Returns the names of the op and its operands, by position, for messages."""
        return self.name, self.operand_names

    def code(self, params: P, dtypes: Sequence[str | None]) -> bytes | None:
        """Returns the bytecode of the kernel: 32-bit words in this machine's byte order.

        `dtypes` are the operands' dtypes, by position. An op without bytecode returns None for all
        parameters.
        """
        return None

    def ask_for_machine_code(
        self, params: P, dtypes: Sequence[str | None], platform: str, function: str = ""
    ) -> None:
        """Requests machine code for the bytecode of `code` before the first call on a platform.

        `platform` is "cpu" or "cuda". `function` is the public function that was called, if known;
        messages name it.
        """
        return

    def operand_roles(self, count: int, params: P) -> tuple[Role, ...]:
        """Returns the roles of `count` operands, by position."""
        ...

    def operand_count(self, used: int) -> int:
        """Returns the number of operands of a call whose last present operand is the `used`-th."""
        ...

    def result_roles(self, params: P) -> tuple[Role, ...]:
        """Returns the roles of all results, wanted or not; the space determines their shapes."""
        ...

    def result_dtypes(self, params: P) -> tuple[str | None, ...]:
        """Returns the dtypes of all results, None for a result that is not wanted."""
        ...

    def with_dtypes(self, params: P, dtypes: Sequence[str | None]) -> P:
        """Returns the parameters with other dtypes of the results."""
        ...

    def summands(self, params: P, dtype: str) -> P:
        """Returns parameters of a call that returns the terms of the wanted sums over rows.

        The terms are FULL arrays of this dtype, in the order of the sums.
        """
        raise TypeError(f"{self.name} has no sums over rows")

    def saving(self, params: P) -> P:
        """Returns the parameters with residuals as further results, for derivative rules.

        Such a call runs if derivatives follow, and `results` of `jvp` and `vjp` includes the
        residuals. Rules treat residuals as constants: a call with a residual as an operand is
        differentiated as a function of its other operands. So no rule returns a tangent of a
        residual or reads a cotangent of one. A call that saves residuals may be differentiated
        itself; it saves no more than these.
        """
        return params

    def results(self, operands: Sequence[Spec | None], params: P) -> tuple[Spec | None, ...]:
        """Returns shapes and dtypes of the results; None for a result that is not wanted.

        Raises:
          TypeError, ValueError: if the operands do not fit each other or the parameters.
        """
        ...

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: P,
    ) -> list[Call[Any]]:
        """Returns calls whose results add up to the tangents of this call's results.

        Here and in `vjp` a rule only arranges operands and results of the call (None for a result
        that is not wanted). It may read which of them are None, and the operands' dtypes in
        `specs`, and nothing else, so that an adapter may ask once and cache the answer. An array
        that no rule uses need not be saved for the derivatives.
        """
        ...

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: P,
    ) -> list[tuple[Call[Any], Places]]:
        """Returns calls that compute the cotangents of the wanted operands.

        Each call comes with the operand position, or positions, of each of its results. The
        cotangent of a TABLE is a FULL array in the arithmetic dtype; the adapter sums it over the
        repeated dimensions and rounds it (`tables.summed`). The cotangent of a linear operand never
        needs the value of that operand, which may then be None; `ZerosLike` asks for its shape
        alone.
        """
        ...

    def needs_separate_batches(self, params: P) -> bool:
        """True if another batch dimension cannot be treated as more rows of one call.

        That holds for sums over rows, and for element numbers that start again with each batch.
        """
        ...

    def fixed_ndim(self, params: P) -> int:
        """Returns the number of trailing dimensions of the array that have a meaning to the op.

        The dimensions in front of these are only rows, in any order.
        """
        ...

    def tells_columns_apart(self, params: P) -> bool:
        """True for a call whose result in a column depends on the column or on other columns."""
        return self.fixed_ndim(params) > 0

    def counts_from(self, params: P) -> int | None:
        """Returns the position of the operand with the number of the array's first element.

        None for a call that does not number elements. The parameters of other calls have a field
        `index_cols`: the length of the rows by which elements are numbered, 0 for the call's own
        rows.
        """
        return None

    def reductions(self, params: P, columns: int) -> tuple[tuple[str, ...], ...] | None:
        """Lists the row reductions of a call on rows of `columns` elements, by stage.

        Each is a "sum", "max" or "argmax". A later stage needs the results of earlier stages. None
        for a call that cannot run in stages: if `tells_columns_apart` it must have whole rows.
        """
        return None

    def stage(
        self,
        operands: Operands,
        params: P,
        number: int,
        known: Sequence[Any],
        first: Callable[[], Any],
        columns: int,
        is_summed: bool,
    ) -> Call[Any]:
        """Returns the call of stage `number` on a part of the columns, or of the ending after them.

        The results of a stage are, in the arithmetic dtype: for a sum, the partial sum as PER_ROW
        if `is_summed`, else its terms as FULL; for a max, the largest number of the part; for an
        argmax, the largest number of the part and its column within the part. The ending returns
        the results of the whole call.

        Args:
          operands: the parts of the whole call's operands.
          known: the reductions of earlier stages, PER_ROW; columns are LABEL.
          first: returns the number of the part's first column, an INTEGER.
          columns: the columns of a whole row.
        """
        raise TypeError(f"{self.name} is not made in stages")

    def workspace_bytes(self, operands: Sequence[Spec | None], params: P) -> int:
        """Returns an upper bound on the scratch memory of the CUDA kernel, in bytes.

        It needs no CUDA library, because a program may be compiled on a machine without one. Sizes
        may be symbolic.
        """
        ...

    def is_linear_in(self, position: int, unknown: Sequence[int], params: P) -> bool:
        """True if the results are linear in this operand, apart from terms of other operands.

        `unknown`: the operands whose values may not be read, this one among them.
        """
        ...

    def reference(self, operands: Sequence[Any], params: P) -> tuple[Any, ...]:
        """Evaluates the formula directly in float64 NumPy, as the reference of tests."""
        ...
