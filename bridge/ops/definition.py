"""What an op is, without any framework: the form that `bridge.torch` and `bridge.jax` lower.

An op is called with a tuple of operands, some of which may be absent (`None`), and a hashable
record of parameters, and returns a tuple of results, some of which may not be wanted. Its
derivatives are calls of ops again. That is the whole interface: an adapter which can run a call,
batch it, and follow the two derivative rules has every transform of its framework.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar


class Role(enum.Enum):
    """How an operand or result lies in a call whose space has shape `[*batch, *rows, d]`."""

    FULL = "full"  # [*batch, *rows, d]
    HALVES = "halves"  # [*batch, *rows, 2d]: two arrays of the space side by side
    PAIRS = "pairs"  # the same, the two alternating along the last dimension
    PER_ROW = "per row"  # floats [*batch, *rows]
    LABEL = "label"  # integers of any dtype [*batch, *rows]
    ROW = "row"  # [*batch, d]: one vector for all rows of a batch
    TABLE = "table"  # floats of any shape that broadcasts to FULL from the right
    MASK = "mask"  # truth values of any such shape
    INTEGER = "integer"  # int64 [*batch], or uint32 [*batch, 2], the low word first

    @property
    def is_discrete(self) -> bool:
        """Whether nothing is differentiated towards operands of this role."""
        return self in (Role.LABEL, Role.MASK, Role.INTEGER)

    @property
    def fills_space(self) -> bool:
        """Whether there is a number at every place of the space: the first operand's role does."""
        return self is Role.FULL or self.is_double

    @property
    def is_double(self) -> bool:
        """Whether it is two arrays of the space in one."""
        return self in (Role.HALVES, Role.PAIRS)

    @property
    def has_all_rows(self) -> bool:
        """Whether an array has all dimensions of the space but, maybe, that of the columns."""
        return self.fills_space or self in (Role.PER_ROW, Role.LABEL)

    @property
    def broadcasts(self) -> bool:
        """Whether an array lies against the space from the right, with a shape of its own."""
        return self in (Role.TABLE, Role.MASK)


def space_of(shape: Sequence[int], role: Role) -> tuple[int, ...]:
    """The space `[*batch, *rows, d]` of an array that fills it."""
    if role.is_double:
        return (*shape[:-1], shape[-1] // 2)
    return tuple(shape)


def shape_in(role: Role, space: tuple[int, ...], batch_ndim: int) -> tuple[int, ...]:
    """The shape of an array of a role in this space; of integers, where they are no word pairs.

    Raises:
      ValueError: for a role whose arrays have a shape of their own.
    """
    if role is Role.FULL:
        return space
    if role is Role.ROW:
        return (*space[:batch_ndim], *space[-1:]) if space else (1,)
    if role.is_double:
        return (*space[:-1], 2 * space[-1])
    if role.broadcasts:
        raise ValueError(f"a {role.value} has a shape of its own")
    return space[:batch_ndim] if role is Role.INTEGER else space[:-1]


@dataclass(frozen=True)
class Spec:
    """Shape and dtype name of an array, all that a rule may look at.

    Sizes may be symbolic. Shapes are compared by the methods alone, which a framework whose tracing
    has rules of its own for that overrides.
    """

    shape: tuple[int, ...]
    dtype: str

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        return self.shape == shape

    def broadcasts_to(self, shape: tuple[int, ...]) -> bool:
        """Whether the array, repeated along dimensions of size 1 and in front, has that shape."""
        return len(self.shape) <= len(shape) and all(
            own == 1 or own == full
            for own, full in zip(reversed(self.shape), reversed(shape), strict=False)
        )


class Parameters(Protocol, Hashable):
    """Parameters of a call. `batch_ndim` leading dimensions have row vectors of their own."""

    @property
    def batch_ndim(self) -> int: ...

    def with_batch(self) -> Any:
        """The same call with one more batch dimension in front."""
        ...

    def attributes(self) -> dict[str, Any]:
        """What the kernel is told besides its arrays: names to int, float or str."""
        ...


P = TypeVar("P", bound=Parameters)
Operands = tuple[Any, ...]  # arrays of one framework, Spec or None, by position


@dataclass(frozen=True)
class ZerosLike:
    """Stands in a call of a derivative rule for zeros of an operand's shape and dtype."""

    position: int


@dataclass(frozen=True)
class Call(Generic[P]):
    """An op applied to operands: what a derivative rule answers with.

    Without an op the results are the operands themselves: an array is passed on, not copied.
    """

    op: Op[P] | None
    operands: Operands
    params: P | None = None


# Of each result of a call the operand that it belongs to, operands, or None.
Places = tuple[int | tuple[int, ...] | None, ...]


def each_place(places: Places) -> list[tuple[int, int]]:
    """(result, operand) for all that belong to each other."""
    found = []
    for i, place in enumerate(places):
        if place is not None:
            found += [(i, each) for each in (place if isinstance(place, tuple) else (place,))]
    return found


def passed_on(*operands: Any) -> Call[Any]:
    """The call whose results are its operands."""
    return Call(None, operands)


class Op(Protocol[P]):
    """The rules of one op. Instances are stateless singletons.

    The first operand fills the space of the call. Without a tuple of `result_names` the number of
    results depends on the parameters.
    """

    name: str
    # Operands have these names by position; all but the first may be absent.
    operand_names: tuple[str, ...]
    # Its parameters are this (frozen) dataclass. Fields are str, int, float, or `str | None`.
    params_type: type[P]
    result_names: tuple[str, ...] | None

    @property
    def kernel_name(self) -> str:
        """What the native module calls the kernel."""
        return self.name

    def words(self, params: P) -> tuple[str, tuple[str, ...]]:
        """What messages call the op, and its operands by position."""
        return self.name, self.operand_names

    def code(self, params: P, dtypes: Sequence[str | None]) -> bytes | None:
        """What the kernel is told besides arrays and attributes: 32-bit words of this machine.

        `dtypes` are those of the operands, by position. None, always or never: there is none.
        """
        return None

    def ask_for_machine_code(
        self, params: P, dtypes: Sequence[str | None], platform: str, function: str = ""
    ) -> None:
        """Has machine code made for what `code` says, before the first call on "cpu" or "cuda".

        `function` is the public one that was called, if that is known: messages name it.
        """
        return

    def operand_roles(self, count: int, params: P) -> tuple[Role, ...]:
        """Roles of `count` operands, by position."""
        ...

    def operand_count(self, used: int) -> int:
        """Number of operands of a call whose last present operand is the `used`-th."""
        ...

    def result_roles(self, params: P) -> tuple[Role, ...]:
        """Roles of all results, wanted or not: their shapes follow from the space."""
        ...

    def result_dtypes(self, params: P) -> tuple[str | None, ...]:
        """Dtypes of all results, None for one that is not wanted."""
        ...

    def with_dtypes(self, params: P, dtypes: Sequence[str | None]) -> P:
        """The same call with results of these dtypes."""
        ...

    def summands(self, params: P, dtype: str) -> P:
        """Parameters of the call that gives what the wanted sums over rows are sums of.

        Its wanted results are as many FULL arrays of this dtype, in the order of the sums.
        """
        raise TypeError(f"{self.name} has no sums over rows")

    def saving(self, params: P) -> P:
        """The same call with further results behind its own, which derivative rules may place.

        It runs where derivatives follow, and `results` of `jvp` and `vjp` has all of them. They are
        constants to rules: a call that takes one as an operand answers for it as a function of its
        other operands. So no rule gives a tangent of such a result, or looks at a cotangent. A call
        that saves may itself be differentiated; it saves nothing more.
        """
        return params

    def results(self, operands: Sequence[Spec | None], params: P) -> tuple[Spec | None, ...]:
        """Shapes and dtypes of the results; None where one is not wanted.

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
        """Calls whose results add up to the tangents of this call's results.

        Here and in `vjp` a rule places operands and results (those of the call, None for the
        unwanted), it computes nothing: it may look at which are None and at the dtypes in `specs`
        (of the operands), at nothing else, so that an adapter may ask once and remember the answer.
        What no rule places needs not be kept for the derivatives.
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
        """Calls that give the cotangents of the wanted operands.

        Each comes with the operand position, or positions, that each of its results belongs to.
        That of a TABLE is a FULL array in the dtype of the arithmetic, which the adapter sums over
        what the table was repeated along and rounds (`tables.summed`). A linear operand's
        cotangent never needs the value of that operand, which may then be None; `ZerosLike` asks
        for its shape alone.
        """
        ...

    def needs_separate_batches(self, params: P) -> bool:
        """Whether another batch dimension is more than more rows to this call.

        So it is with sums over rows, and with what counts elements from the start of a batch.
        """
        ...

    def fixed_ndim(self, params: P) -> int:
        """How many last dimensions of the array are told apart.

        Another dimension that comes before them all is only more rows, wherever it is.
        """
        ...

    def tells_columns_apart(self, params: P) -> bool:
        """True for a call whose result in a column depends on other columns, or on its number."""
        return self.fixed_ndim(params) > 0

    def counts_from(self, params: P) -> int | None:
        """The position of the operand that says how many elements are in front of the array's.

        None for a call to which the number of an element makes no difference. The others have a
        parameter `index_cols`: the length of rows of the array in which elements are counted, 0 for
        that of the call's own rows.
        """
        return None

    def reductions(self, params: P, columns: int) -> tuple[tuple[str, ...], ...] | None:
        """What a call on rows of so many columns reduces along the row, by stage.

        Each is a "sum", "max" or "argmax". A later stage needs those of the earlier ones. None for
        a call that is not made in stages: where columns are told apart, it must have whole rows.
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
        hidden: Any | None,
    ) -> Call[Any]:
        """The call of a stage on a part of the columns; behind the last it gives the results.

        Its results are, in the dtype of the arithmetic: for a sum, that over the part as PER_ROW
        where `is_summed`, else its terms as FULL; for the largest number, that of the part; for its
        place, the largest number of the part and its place in the part.

        Args:
          operands: parts of those of the whole call.
          known: the reductions of earlier stages, PER_ROW; places are LABEL.
          first: gives the number of the part's first column, an INTEGER.
          columns: of the whole row.
          hidden: the elements of the part that the causal rule hides, a MASK; None without it.
        """
        raise TypeError(f"{self.name} is not made in stages")

    def without_causal_rule(self, params: P) -> P | None:
        """The parameters without the rule that hides later keys from a query; None: it has none.

        An op that takes a mask then needs one that hides them. To any other what is hidden is 0.
        """
        return None

    def workspace_bytes(self, operands: Sequence[Spec | None], params: P) -> int:
        """Bytes of scratch memory that the CUDA kernel never exceeds.

        Known without the CUDA library, as a program may be compiled where there is none. Sizes may
        be symbolic.
        """
        ...

    def is_linear_in(self, position: int, unknown: Sequence[int], params: P) -> bool:
        """Whether the results are linear in this operand, but for what the others add.

        `unknown`: the operands that nothing may be read of, this one among them.
        """
        ...

    def reference(self, operands: Sequence[Any], params: P) -> tuple[Any, ...]:
        """The same in float64 NumPy, straight from the formula: what right is."""
        ...


class OpWithNamedResults(Op[P]):
    """An op with one set of results.

    Its parameters have a field for each, of its name: its dtype, or None where it is not wanted.
    """

    result_names: tuple[str, ...]

    def result_dtypes(self, params: P) -> tuple[str | None, ...]:
        return tuple([getattr(params, name) for name in self.result_names])

    def with_dtypes(self, params: P, dtypes: Sequence[str | None]) -> P:
        fields: Any = dict(zip(self.result_names, dtypes, strict=True))
        return replace(params, **fields)  # type: ignore[type-var]
