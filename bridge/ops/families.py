"""Families of programs with derivative rules of their own.

The derivatives of most programs are traced from them. The programs of a family are closed under
differentiation instead: each derivative is a call of another program of the family, which may be
shorter, or more accurate, than the traced one. A serialized program names its family and its place
in it, so that a program in a traced graph or an exported file keeps its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bridge.lang import codes
from bridge.ops.definition import Call, Operands, Places, Spec
from bridge.ops.program_params import ProgramParams


class Family(Protocol):
    """The rules of a family. `place` names a program of the family: numbers and text."""

    def jvp(
        self,
        place: tuple[Any, ...],
        operands: Operands,
        results: Operands,
        tangents: Operands,
        params: ProgramParams,
    ) -> list[Call[ProgramParams]]:
        """See `Op.jvp`."""
        ...

    def vjp(
        self,
        place: tuple[Any, ...],
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
    ) -> list[tuple[Call[ProgramParams], Places]]:
        """See `Op.vjp`."""
        ...

    def is_linear_in(self, place: tuple[Any, ...], position: int) -> bool:
        """See `Op.is_linear_in`."""
        ...


# The families by name. A module that states one adds it; bridge.torch and bridge.jax import all.
FAMILIES: dict[str, Family] = {}


def family_of(params: ProgramParams) -> tuple[Family, tuple[Any, ...]] | None:
    """Returns a program's family and its place there; None for a program without one."""
    family = codes.parse(params.code).family
    return (FAMILIES[family[0]], family[1:]) if family else None
