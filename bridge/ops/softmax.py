r"""Softmax of a scaled, masked row, and all its derivatives as one more op.

    softmax:             y = exp(scale·x − max) / Σ exp(scale·x − max), hidden elements 0
    softmax_derivative:  scale·(u∘v − u⟨v,w⟩ − v⟨u,w⟩ − w⟨u,v⟩), the terms that are asked for,
                         with ⟨a,b⟩ = Σ a∘b over the row

The derivative of softmax towards t is scale·(y∘t − y⟨t,y⟩), in forward mode; as that matrix is
symmetric, the same with a cotangent in reverse mode. It is `softmax_derivative` with u = w = y and
v = t. All further derivatives are calls of `softmax_derivative` again: it is linear in u and in v,
and towards w only the first term goes. In the adjoint towards one operand the cotangent takes its
place, and the other two terms change places. Only y is kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bridge.lang.dtypes import FLOATING, OF_MASKS
from bridge.ops.definition import Call, Operands, Places, Role, Spec
from bridge.ops.op_in_parts import OpInParts
from bridge.ops.program_params import ProgramParams
from bridge.ops.scalars import real_number
from bridge.ops.softmax_programs import derivative_program, jacobian_program, softmax_program

# The terms of softmax_derivative have these numbers in bridge.h too.
PRODUCT, TERM_U, TERM_V, TERM_W = 1, 2, 4, 8
JACOBIAN = PRODUCT | TERM_U

_POLARITY = "True (non-zero) hides an element"
MASK_EXPECTED = f"{' or '.join(OF_MASKS)}; {_POLARITY}"


@dataclass(frozen=True)
class SoftmaxParams:
    """Parameters of a call of `softmax`.

    Attributes:
      scale: what x is multiplied by; finite.
      causal: whether column j is hidden from row i of `[..., rows, columns]` where
        j > i + (columns − rows).
      y: dtype of the result.
    """

    scale: float
    causal: int = 0
    y: str | None = None

    batch_ndim: ClassVar[int] = 0  # a batch is more rows

    def with_batch(self) -> SoftmaxParams:
        return self

    def attributes(self) -> dict[str, float | int]:
        return {"scale": self.scale, "causal": self.causal}


@dataclass(frozen=True)
class SoftmaxDerivativeParams:
    """Parameters of a call of `softmax_derivative`.

    Attributes:
      scale, causal: as for softmax.
      terms: sum of PRODUCT, TERM_U, TERM_V, TERM_W.
      full: dtype of the result.
    """

    scale: float
    causal: int = 0
    terms: int = JACOBIAN
    full: str | None = None

    batch_ndim: ClassVar[int] = 0

    def with_batch(self) -> SoftmaxDerivativeParams:
        return self

    def attributes(self) -> dict[str, float | int]:
        return {"scale": self.scale, "causal": self.causal, "terms": self.terms}


class Softmax(OpInParts[SoftmaxParams]):
    """The op. See the module's docstring for what it computes."""

    name = "softmax"
    operand_names: tuple[str, ...] = ("x", "mask")
    params_type = SoftmaxParams
    result_names: tuple[str, ...] = ("y",)

    def operand_roles(self, count: int, params: SoftmaxParams) -> tuple[Role, ...]:
        return (Role.FULL, Role.MASK)[:count]

    def operand_count(self, used: int) -> int:
        return 2

    def result_roles(self, params: SoftmaxParams) -> tuple[Role, ...]:
        return (Role.FULL,)

    def needs_separate_batches(self, params: SoftmaxParams) -> bool:
        return False

    def fixed_ndim(self, params: SoftmaxParams) -> int:
        return 1 + params.causal

    def without_causal_rule(self, params: SoftmaxParams) -> SoftmaxParams | None:
        return replace(params, causal=0) if params.causal else None

    def is_linear_in(self, position: int, unknown: Sequence[int], params: SoftmaxParams) -> bool:
        return False

    def workspace_bytes(self, operands: Sequence[Spec | None], params: SoftmaxParams) -> int:
        x = operands[0]
        if x is None or not x.shape:
            return 0
        in_registers = 16384 if x.dtype == "float64" else 32768
        return _nodes_workspace_bytes(x.shape[-1], in_registers, 2)  # the largest, the sum

    def results(
        self, operands: Sequence[Spec | None], params: SoftmaxParams
    ) -> tuple[Spec | None, ...]:
        x, mask = (*operands, None)[:2]
        if x is None:
            raise TypeError("softmax: the operand x is missing")
        if mask is not None:
            _check_mask("softmax", x, mask)
        return (None if params.y is None else Spec(x.shape, params.y),)

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: SoftmaxParams,
    ) -> list[Call[Any]]:
        if tangents[0] is None:
            return []
        return [self._jacobian(results[0], tangents[0], params, params.y)]

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: SoftmaxParams,
    ) -> list[tuple[Call[Any], Places]]:
        x = specs[0]
        if cotangents[0] is None or not wanted[0] or x is None:
            return []
        return [(self._jacobian(results[0], cotangents[0], params, x.dtype), (0,))]

    def program(
        self, present: Sequence[bool], params: SoftmaxParams, is_causal: bool
    ) -> ProgramParams:
        assert params.y is not None
        return softmax_program(params.scale, params.y, (present[1], is_causal))

    def _jacobian(
        self, y: Any, direction: Any, params: SoftmaxParams, dtype: str | None
    ) -> Call[Any]:
        derivative = SoftmaxDerivativeParams(params.scale, params.causal, JACOBIAN, dtype)
        return Call(SOFTMAX_DERIVATIVE, (y, direction, None), derivative)

    def reference(self, operands: Sequence[Any], params: SoftmaxParams) -> tuple[Any]:
        """The formula in float64 NumPy. Operands are NumPy arrays (any dtype) or None."""
        import numpy as np

        x, mask = (*operands, None)[:2]
        shape = np.shape(x)
        visible = np.broadcast_to(visible_columns(shape, params.causal), shape)
        if mask is not None:
            visible = visible & (np.broadcast_to(np.asarray(mask), shape) == 0)
        with np.errstate(all="ignore"):
            z = np.where(visible, params.scale * np.asarray(x, np.float64), -np.inf)
            largest = np.max(z, axis=-1, keepdims=True, initial=-np.inf)
            shift = np.where(largest == -np.inf, 0.0, largest)
            e = np.where(visible, np.exp(z - shift), 0.0)
            total = e.sum(axis=-1, keepdims=True)
            y = np.where(visible & (total != 0.0), e / total, 0.0)
        return (y,)


class SoftmaxDerivative(OpInParts[SoftmaxDerivativeParams]):
    """The op. See the module's docstring for what it computes."""

    name = "softmax_derivative"
    operand_names: tuple[str, ...] = ("u", "v", "w")
    params_type = SoftmaxDerivativeParams
    result_names: tuple[str, ...] = ("full",)

    def operand_roles(self, count: int, params: SoftmaxDerivativeParams) -> tuple[Role, ...]:
        return (Role.FULL,) * count

    def operand_count(self, used: int) -> int:
        return 3

    def result_roles(self, params: SoftmaxDerivativeParams) -> tuple[Role, ...]:
        return (Role.FULL,)

    def needs_separate_batches(self, params: SoftmaxDerivativeParams) -> bool:
        return False

    def fixed_ndim(self, params: SoftmaxDerivativeParams) -> int:
        return 1 + params.causal

    def without_causal_rule(
        self, params: SoftmaxDerivativeParams
    ) -> SoftmaxDerivativeParams | None:
        return replace(params, causal=0) if params.causal else None

    def is_linear_in(
        self, position: int, unknown: Sequence[int], params: SoftmaxDerivativeParams
    ) -> bool:
        # It is not linear in u where that stands for w as well: but then u is the value of a
        # softmax, and nothing asks for a transpose towards that.
        return position < 2 or not params.terms & PRODUCT

    def workspace_bytes(
        self, operands: Sequence[Spec | None], params: SoftmaxDerivativeParams
    ) -> int:
        u, _, w = (*operands, None)[:3]
        if u is None or not u.shape:
            return 0
        if w is not None:
            return _nodes_workspace_bytes(u.shape[-1], 1024, 3)
        in_registers = {"float64": 8192, "float32": 16384}.get(u.dtype, 32768)
        return _nodes_workspace_bytes(u.shape[-1], in_registers, 1)

    def results(
        self, operands: Sequence[Spec | None], params: SoftmaxDerivativeParams
    ) -> tuple[Spec | None, ...]:
        u, v, w = (*operands, None)[:3]
        if u is None or v is None:
            raise TypeError("softmax_derivative: the operands u and v must be there")
        if not 0 < params.terms < 16 or (w is None and params.terms != JACOBIAN):
            raise ValueError(f"softmax_derivative: terms is {params.terms}, which w does not fit")
        for operand in (v, w):
            if operand is None:
                continue
            if operand.dtype != u.dtype or not operand.has_shape(u.shape):
                raise ValueError(
                    f"softmax_derivative: an operand is {operand.dtype}{list(operand.shape)}, "
                    f"expected {u.dtype}{list(u.shape)}"
                )
        return (None if params.full is None else Spec(u.shape, params.full),)

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: SoftmaxDerivativeParams,
    ) -> list[Call[Any]]:
        u, v, w = operands
        t_u, t_v, t_w = tangents
        calls = []
        if t_u is not None:
            # Where u stands for w too, −u⟨v,w⟩ has the derivative −t⟨v,u⟩ − u⟨v,t⟩.
            terms = params.terms if w is not None else params.terms | TERM_W
            calls.append(self._call((t_u, v, u if w is None else w), terms, params))
        if t_v is not None:
            calls.append(self._call((u, t_v, w), params.terms, params))
        if t_w is not None and params.terms & ~PRODUCT:
            calls.append(self._call((u, v, t_w), params.terms & ~PRODUCT, params))
        return calls

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: SoftmaxDerivativeParams,
    ) -> list[tuple[Call[Any], Places]]:
        h = cotangents[0]
        calls: list[tuple[Call[Any], Places]] = []
        if h is None:
            return calls
        u, v, w = operands  # None where they are the ones that are wanted
        terms, w_is_u = params.terms, specs[2] is None
        if wanted[0] and w_is_u:
            # ⟨h, t∘v − t⟨v,u⟩ − u⟨v,t⟩⟩ as a function of t.
            calls.append((self._call((h, v, u), PRODUCT | TERM_U | TERM_V, params), (0,)))
        elif wanted[0]:
            calls.append((self._call((h, v, w), _swapped(terms, TERM_V, TERM_W), params), (0,)))
        if wanted[1] and w_is_u:
            calls.append((self._call((u, h, None), terms, params), (1,)))
        elif wanted[1]:
            calls.append((self._call((u, h, w), _swapped(terms, TERM_U, TERM_W), params), (1,)))
        if wanted[2] and terms & ~PRODUCT:
            adjoint = _swapped(terms & ~PRODUCT, TERM_U, TERM_V)
            calls.append((self._call((u, v, h), adjoint, params), (2,)))
        return calls

    def program(
        self, present: Sequence[bool], params: SoftmaxDerivativeParams, is_causal: bool
    ) -> ProgramParams:
        assert params.full is not None
        if not present[2]:
            return jacobian_program(params.scale, params.full, is_causal)
        product, *factors = (bool(params.terms & t) for t in (PRODUCT, TERM_U, TERM_V, TERM_W))
        return derivative_program(params.scale, params.full, product, tuple(factors), is_causal)

    def _call(
        self, operands: Operands, terms: int, params: SoftmaxDerivativeParams
    ) -> Call[SoftmaxDerivativeParams]:
        return Call(self, operands, replace(params, terms=terms))

    def reference(self, operands: Sequence[Any], params: SoftmaxDerivativeParams) -> tuple[Any]:
        """The formula in float64 NumPy. Operands are NumPy arrays (any dtype) or None."""
        import numpy as np

        first, second, third = (*operands, None)[:3]
        full = [
            np.asarray(o, np.float64) for o in (first, second, first if third is None else third)
        ]
        shape = np.shape(first)
        visible = np.broadcast_to(visible_columns(shape, params.causal), shape)
        if third is None:
            visible = visible & (full[0] != 0.0)
        u, v, w = (np.where(visible, o, 0.0) for o in full)

        def dot(a: Any, b: Any) -> Any:
            return np.sum(a * b, axis=-1, keepdims=True)

        with np.errstate(all="ignore"):
            total = u * v if params.terms & PRODUCT else np.zeros(shape)
            if params.terms & TERM_U:
                total = total - u * dot(v, w)
            if params.terms & TERM_V:
                total = total - v * dot(u, w)
            if params.terms & TERM_W:
                total = total - w * dot(u, v)
            return (np.where(visible, params.scale * total, 0.0),)


def _nodes_workspace_bytes(columns: int, in_registers: int, nodes: int) -> int:
    """Bytes that the CUDA kernels never exceed for rows of `columns`, which may be symbolic.

    Rows that a block cannot hold in its registers are cut into segments of 8192 columns, each of
    which leaves `nodes` numbers. Several rows share a launch while they have at most 24 MiB
    together: then all their segments are fewer than 4700, of 4 bytes (2000, of 8, which the sums
    of float32 have too: they come in two parts). A row longer
    than that has at most columns/8192 · (1 + 1/1000) + 8 numbers of 8 bytes, the upper levels of
    its tree included.
    """
    if isinstance(columns, int) and columns <= in_registers:
        return 0
    return nodes * (columns // 512 + 32768)


def _swapped(terms: int, a: int, b: int) -> int:
    """`terms` with the terms a and b in each other's place."""
    swapped = terms & ~(a | b)
    return swapped | (b if terms & a else 0) | (a if terms & b else 0)


def visible_columns(shape: tuple[int, ...], causal: int) -> Any:
    """Booleans that broadcast to `shape`: what the causal rule leaves visible."""
    import numpy as np

    if not causal:
        return np.ones((1,) * len(shape), bool)
    rows, columns = shape[-2:]
    return np.arange(columns) <= np.arange(rows)[:, None] + (columns - rows)


SOFTMAX = Softmax()
SOFTMAX_DERIVATIVE = SoftmaxDerivative()


def check_softmax(
    function: str,
    x: Spec,
    mask: Spec | None,
    scale: Any,
    *,
    causal: bool = False,
    argument: str = "x",
) -> SoftmaxParams:
    """Checks the arguments of a public function and returns the parameters of the call.

    `argument` is what the function calls x.

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
    # -0.0 becomes 0.0, which it equals: equal parameters are the same call. Others stay the object
    # that they are, by which a call beside a sink is found again.
    return SoftmaxParams(check_scale(function, scale) or 0.0, int(causal), x.dtype)


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


def check_softmax_backward(
    function: str, g: Spec, y: Spec, scale: Any, *, causal: bool = False
) -> SoftmaxDerivativeParams:
    """The same for the cotangent g of a value y of softmax.

    Raises:
      TypeError, ValueError: as `check_softmax` does for y; also if g has another dtype or shape.
    """
    params = check_softmax(function, y, None, scale, causal=causal, argument="y")
    if g.dtype != y.dtype:
        raise TypeError(f"{function}: g has dtype {g.dtype}, expected {y.dtype}, the dtype of y")
    if not g.has_shape(y.shape):
        raise ValueError(
            f"{function}: g has shape {list(g.shape)}, expected {list(y.shape)}, the shape of y"
        )
    return SoftmaxDerivativeParams(params.scale, params.causal, JACOBIAN, y.dtype)


def _check_mask(function: str, x: Spec, mask: Spec) -> None:
    if mask.dtype not in OF_MASKS:
        raise TypeError(f"{function}: mask has dtype {mask.dtype}, expected {MASK_EXPECTED}")
    if not mask.broadcasts_to(x.shape):
        raise ValueError(
            f"{function}: mask has shape {list(mask.shape)}, which does not broadcast to x of "
            f"shape {list(x.shape)}; {_POLARITY}"
        )
