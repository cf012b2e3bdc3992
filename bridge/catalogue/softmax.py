r"""Softmax of a scaled, masked row, and all its derivatives: a family of programs.

    softmax:     y = exp(scale·x − max) / Σ exp(scale·x − max), hidden elements 0
    derivative:  scale·(u∘v − u⟨v,w⟩ − v⟨u,w⟩ − w⟨u,v⟩), the terms that are asked for,
                 with ⟨a,b⟩ = Σ a∘b over the row

The derivative of softmax towards t is scale·(y∘t − y⟨t,y⟩), in forward mode; as that matrix is
symmetric, the same with a cotangent in reverse mode. It is the derivative with u = w = y and v = t,
the jacobian. All further derivatives have that form again: it is linear in u and in v, and towards
w the first term is a constant. In the adjoint towards one operand the cotangent takes its place,
and the other two terms change places. Only y is saved for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bridge.catalogue.softmax_programs import (
    derivative_program,
    jacobian_program,
    params_of,
)
from bridge.lang.dtypes import FLOATING, OF_MASKS
from bridge.ops.definition import Call, Operands, Places, Spec
from bridge.ops.families import FAMILIES
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.scalars import real_number

_POLARITY = "True (non-zero) hides an element"
MASK_EXPECTED = f"{' or '.join(OF_MASKS)}; {_POLARITY}"

# The terms of a derivative: the product, and the factors of the inner products.
Terms = tuple[bool, bool, bool, bool]


class SoftmaxFamily:
    """The derivative rules. See the module's docstring."""

    def jvp(
        self,
        place: tuple[Any, ...],
        operands: Operands,
        results: Operands,
        tangents: Operands,
        params: ProgramParams,
    ) -> list[Call[ProgramParams]]:
        kind, scale, has_last, *terms = place
        dtype, last, calls = params.dtypes, operands[-1] if has_last else None, []
        if kind == "softmax":
            if tangents[0] is None:
                return []
            return [_jacobian(scale, dtype, results[0], tangents[0], last)]
        (u, v, w), (t_u, t_v, t_w) = _vectors(kind, operands), _vectors(kind, tangents)
        product, *factors = terms or (True, True, False, False)
        if t_u is not None:
            # In the jacobian w is u too, and −u⟨v,u⟩ has the derivative −t⟨v,u⟩ − u⟨v,t⟩.
            of_u, of_v, of_w = factors
            moved = (product, of_u, of_v, of_w or kind == "jacobian")
            second = u if kind == "jacobian" else w
            calls.append(_derivative(scale, dtype, moved, t_u, v, second, last))
        if t_v is not None and kind == "jacobian":
            calls.append(_jacobian(scale, dtype, u, t_v, last))
        elif t_v is not None:
            calls.append(_derivative(scale, dtype, (product, *factors), u, t_v, w, last))
        if t_w is not None and any(factors):
            calls.append(_derivative(scale, dtype, (False, *factors), u, v, t_w, last))
        return calls

    def vjp(
        self,
        place: tuple[Any, ...],
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
    ) -> list[tuple[Call[ProgramParams], Places]]:
        kind, scale, has_last, *terms = place
        h, first = cotangents[0], specs[0]
        if h is None or first is None:
            return []
        dtype, last = first.dtype, operands[-1] if has_last else None
        if kind == "softmax":
            return [(_jacobian(scale, dtype, results[0], h, last), (0,))] if wanted[0] else []
        u, v, w = _vectors(kind, operands)  # None for an operand that is wanted
        calls: list[tuple[Call[ProgramParams], Places]] = []
        if kind == "jacobian":
            if wanted[0]:
                # ⟨h, t∘v − t⟨v,u⟩ − u⟨v,t⟩⟩ as a function of t.
                moved = (True, True, True, False)
                calls.append((_derivative(scale, dtype, moved, h, v, u, last), (0,)))
            if wanted[1]:
                calls.append((_jacobian(scale, dtype, u, h, last), (1,)))
            return calls
        product, of_u, of_v, of_w = terms
        if wanted[0]:
            asked = (product, of_u, of_w, of_v)
            calls.append((_derivative(scale, dtype, asked, h, v, w, last), (0,)))
        if wanted[1]:
            asked = (product, of_w, of_v, of_u)
            calls.append((_derivative(scale, dtype, asked, u, h, w, last), (1,)))
        if wanted[2] and (of_u or of_v or of_w):
            asked = (False, of_v, of_u, of_w)
            calls.append((_derivative(scale, dtype, asked, u, v, h, last), (2,)))
        return calls

    def is_linear_in(self, place: tuple[Any, ...], position: int) -> bool:
        # The jacobian is not linear in u, which stands for w as well: but then u is the value of a
        # softmax, and nothing asks for a transpose towards that.
        kind, _, _, *terms = place
        return kind != "softmax" and (position < 2 or (position == 2 and not (terms or [True])[0]))


FAMILIES["softmax"] = SoftmaxFamily()
_COUNT = {"softmax": 1, "jacobian": 2, "derivative": 3}


def _vectors(kind: str, operands: Operands) -> Operands:
    """Returns u, v and w, which the jacobian lacks."""
    return (*operands[: _COUNT[kind]], None)[:3]


def _jacobian(scale: float, dtype: str, u: Any, v: Any, last: Any) -> Call[ProgramParams]:
    params = jacobian_program(scale, dtype, last is not None)
    return Call(PROGRAM, (u, v) if last is None else (u, v, last), params)


def _derivative(
    scale: float, dtype: str, terms: Sequence[bool], u: Any, v: Any, w: Any, last: Any
) -> Call[ProgramParams]:
    product, *factors = terms
    params = derivative_program(scale, dtype, product, tuple(factors), last is not None)
    return Call(PROGRAM, (u, v, w) if last is None else (u, v, w, last), params)


def check_softmax(
    function: str,
    x: Spec,
    mask: Spec | None,
    scale: Any,
    *,
    causal: bool = False,
    argument: str = "x",
) -> float:
    """Checks the arguments of a public function and returns the scale.

    `argument` is the function's name for x.

    Raises:
      TypeError: for a dtype of x other than float16, bfloat16, float32, float64; a mask that is
        neither bool nor uint8; a scale that is no real number.
      ValueError: for x of too few dimensions, a mask that does not broadcast to x, or a scale that
        is not finite.
    """
    if x.dtype not in FLOATING:
        raise TypeError(
            f"{function}: {argument} has dtype {x.dtype}, expected one of {', '.join(FLOATING)}"
        )
    if len(x.shape) < (2 if causal else 1):
        expected = "two dimensions, queries and keys" if causal else "one dimension"
        raise ValueError(
            f"{function}: {argument} has shape {list(x.shape)}, expected at least {expected}"
        )
    if mask is not None:
        _check_mask(function, x, mask)
    # -0.0 becomes 0.0, because equal parameters are the same call. Any other number stays the same
    # object, by which a call with a sink is found again.
    return check_scale(function, scale) or 0.0


def forward_params(
    function: str, scale: Any, x: Spec, mask: Spec | None = None, *, causal: bool = False
) -> ProgramParams:
    """Checks the arguments; returns the parameters of the call on x, mask and `last`.

    Operands that are absent are left out; `last` is there if `causal`.

    Raises:
      TypeError, ValueError: as `check_softmax`.
    """
    scale = check_softmax(function, x, mask, scale, causal=causal)
    return params_of("softmax", scale, x.dtype, (mask is not None, causal))


def check_scale(function: str, scale: Any) -> float:
    """Returns the scale as a float.

    Raises:
      TypeError: if it is no real number.
      ValueError: if it is not finite.
    """
    scale = real_number(function, "scale", scale, "a real number")
    if not math.isfinite(scale):
        raise ValueError(f"{function}: scale is {scale}, expected a finite number")
    return scale


def backward_params(
    function: str, scale: Any, y: Spec, g: Spec, *, causal: bool = False
) -> ProgramParams:
    """Checks the arguments; returns the parameters of the backward pass on y, g and `last`.

    `last` is there if `causal`.

    Raises:
      TypeError, ValueError: as `check_softmax` does for y; also if g has another dtype or shape.
    """
    scale = check_softmax(function, y, None, scale, causal=causal, argument="y")
    if g.dtype != y.dtype:
        raise TypeError(f"{function}: g has dtype {g.dtype}, expected {y.dtype}, the dtype of y")
    if not g.has_shape(y.shape):
        raise ValueError(
            f"{function}: g has shape {list(g.shape)}, expected {list(y.shape)}, the shape of y"
        )
    return params_of("jacobian", scale, y.dtype, causal)


def _check_mask(function: str, x: Spec, mask: Spec) -> None:
    if mask.dtype not in OF_MASKS:
        raise TypeError(f"{function}: mask has dtype {mask.dtype}, expected {MASK_EXPECTED}")
    if not mask.broadcasts_to(x.shape):
        raise ValueError(
            f"{function}: mask has shape {list(mask.shape)}, which does not broadcast to x of "
            f"shape {list(x.shape)}; {_POLARITY}"
        )
