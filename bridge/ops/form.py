"""Checks of the operands of a declared op, before it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.lang import codes, roles
from bridge.lang.dtypes import FLOATING, INTEGERS, OF_8_BITS, OF_MASKS, promote
from bridge.lang.program import Program, largest_block
from bridge.ops.definition import Role, Spec, shape_in, space_of
from bridge.ops.program_params import ROLES, ProgramParams


@dataclass(frozen=True)
class Form:
    """The dtypes and shapes that a declared op expects, in types that torch.compile can trace.

    Attributes:
      names, roles, dtypes: of the operands; `dtypes` lists the allowed ones.
      fills_space: for each result, True if it has a number at every place of the space.
      like: for each result, the operand whose dtype it has; -1: the dtype follows from its role.
      fixed: for each result, its dtype if the program names it, or "".
      block: the most columns of a block, 0 without blocks.
      takes_number: True if the first operand may be 0-dimensional.
    """

    names: tuple[str, ...]
    roles: tuple[Role, ...]
    dtypes: tuple[tuple[str, ...], ...]
    fills_space: tuple[bool, ...]
    like: tuple[int, ...]
    fixed: tuple[str, ...]
    block: int
    takes_number: bool

    @classmethod
    def of(cls, program: Program) -> Form:
        operands = program.operands
        return cls(
            tuple(operand.name for operand in operands),
            tuple(ROLES[operand.role] for operand in operands),
            tuple(dtypes_of_role(operand.role) for operand in operands),
            tuple(ROLES[result.role].fills_space for result in program.results),
            tuple(result.like for result in program.results),
            tuple(result.dtype for result in program.results),
            largest_block(program),
            {each.role for each in operands} | {each.role for each in program.results}
            <= {roles.Full, roles.Table, roles.Mask, roles.Integer}
            and not codes.tells_columns_apart(program),
        )


def dtypes_of_role(role: type[roles.Annotation]) -> tuple[str, ...]:
    """Returns the names of the dtypes that an operand may have."""
    if role is roles.Mask:
        return OF_MASKS
    if role is roles.Quantized:
        return OF_8_BITS
    if role is roles.Scale or issubclass(role, roles.PerBlock):
        return (*FLOATING, *OF_8_BITS)
    return INTEGERS if role.integer else FLOATING


def check_operands(
    function: str, form: Form, specs: Sequence[Spec], texts: dict[str, str]
) -> ProgramParams:
    """Checks the operands of a declared op, all present, and returns the parameters of the call.

    Args:
      function: the name of the public function, for messages.
      texts: the serialized programs, a result of `codes.texts_of`.

    Raises:
      TypeError: for a dtype that the operand's role does not have.
      ValueError: for a shape that does not fit the first operand.
    """
    floating = []
    for name, dtypes, spec in zip(form.names, form.dtypes, specs, strict=True):
        if spec.dtype not in dtypes:
            raise TypeError(
                f"{function}: {name} has dtype {spec.dtype}, expected one of {', '.join(dtypes)}"
            )
        if spec.dtype in FLOATING:
            floating.append(spec.dtype)
    check_shapes(function, form, specs)
    arithmetic = "float64" if "float64" in floating else "float32"
    promoted = promote(*floating) if floating else "float32"
    results = [
        fixed or (specs[like].dtype if like >= 0 else promoted if fills_space else arithmetic)
        for fills_space, like, fixed in zip(form.fills_space, form.like, form.fixed, strict=True)
    ]
    is_one = all(dtype == promoted for dtype in floating)
    code = texts.get(promoted, texts[""]) if is_one else texts[""]
    return ProgramParams(code, arithmetic, ",".join(results))


def as_per_row(form: Form, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the operands; one number a row may be `[*rows, 1]`, and becomes `[*rows]`."""
    if not any(role in _PER_ROW for role in form.roles):
        return operands
    ndim = len(operands[0].shape)
    return tuple(
        [
            operand.reshape(operand.shape[:-1])
            if role in _PER_ROW and ndim and _is_column(operand.shape, operands[0].shape)
            else operand
            for role, operand in zip(form.roles, operands, strict=True)
        ]
    )


_PER_ROW = (Role.PER_ROW, Role.LABEL)


def _is_column(shape: Sequence[int], first: Sequence[int]) -> bool:
    """True for the shape `[*rows, 1]`, for a first operand `[*rows, d]`."""
    return len(shape) == len(first) and shape[-1] == 1 and shape[:-1] == first[:-1]


def check_shapes(function: str, form: Form, specs: Sequence[Spec]) -> None:
    """Raises ValueError for an operand whose shape does not fit the first one."""
    first = specs[0]
    if not first.shape and not form.takes_number:
        raise ValueError(
            f"{function}: {form.names[0]} is 0-dimensional, expected at least one dimension"
        )
    if form.roles[0].is_double and first.shape[-1] % 2:
        parts = "pairs" if form.roles[0] is Role.PAIRS else "two halves of one size"
        raise ValueError(
            f"{function}: {form.names[0]} has shape {list(first.shape)}, expected {parts} in "
            "the last dimension"
        )
    space = space_of(first.shape, form.roles[0])
    if form.block and space[-1] % form.block:
        raise ValueError(
            f"{function}: {form.names[0]} has shape {list(first.shape)}, expected a last dimension "
            f"that is {'twice ' if form.roles[0].is_double else ''}a multiple of {form.block}, the "
            "columns of a block"
        )
    for name, role, spec in zip(form.names, form.roles, specs, strict=True):
        if role is Role.INTEGER:  # checked when it was converted
            continue
        if role.broadcasts:
            fits = spec.broadcasts_to(space)
        else:
            fits = spec.has_shape(shape_in(role, space, 0))
        if not fits:
            expected = list(space if role.broadcasts else shape_in(role, space, 0))
            raise ValueError(
                f"{function}: {name} has shape {list(spec.shape)}, expected "
                f"{'one that broadcasts to ' if role.broadcasts else ''}{expected}: "
                f"{form.names[0]} has shape {list(first.shape)}"
            )
