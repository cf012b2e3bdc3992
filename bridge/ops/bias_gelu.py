r"""bias-GELU and all its derivatives as one op.

    results = (y, s),  y = gelu⁽ⁿ⁾(x + b) · ∏ᵢ (fᵢ + rᵢ),  s = Σ_rows y

Operands are pairs (full array, row vector): (x, b), then a pair for each factor; either member of a
factor may be absent. A tangent (t, t_b) of (x, b) makes one more factor and n one higher, and so
does a cotangent (g, g_s) of (y, s): every derivative of the op, forward or reverse, is a call of
the same op, and the fused backward kernel (dx and the bias gradient at once) is simply n = 1 with
the factor g and both results wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.ops.column_sums import column_sums_workspace_bytes
from bridge.ops.definition import Call, Operands, OpWithNamedResults, Role, Spec, shape_in
from bridge.ops.dtypes import FLOATING, promote

FORMS = {"tanh": 0, "none": 1, "sigmoid": 2}
MAX_FACTORS = 6
MAX_ORDER = 8

_ROLES = (Role.FULL, Role.ROW)
_FULL, _ROW = 0, 1


@dataclass(frozen=True)
class BiasGeluParams:
    """Parameters of a call.

    Attributes:
      form: "tanh", "none" (the exact form, with erf) or "sigmoid".
      order: n, which derivative of gelu, 0 to 8.
      full: dtype of the result y, or None when it is not wanted.
      row: dtype of the column sums s, or None when they are not wanted.
      batch_ndim: leading dimensions that have row vectors and column sums of their own.
    """

    form: str
    order: int = 0
    full: str | None = None
    row: str | None = None
    batch_ndim: int = 0

    def with_batch(self) -> BiasGeluParams:
        return replace(self, batch_ndim=self.batch_ndim + 1)

    def attributes(self) -> dict[str, int]:
        return {"form": FORMS[self.form], "order": self.order, "batch_ndim": self.batch_ndim}


class BiasGelu(OpWithNamedResults[BiasGeluParams]):
    """The op. See the module's docstring for what it computes."""

    name = "bias_gelu"
    operand_names: tuple[str, ...] = (
        "x",
        "bias",
        *(f"factor{i}{part}" for i in range(MAX_FACTORS) for part in ("", "_row")),
    )
    params_type = BiasGeluParams
    result_names: tuple[str, ...] = ("full", "row")

    def operand_roles(self, count: int, params: BiasGeluParams) -> tuple[Role, ...]:
        return _ROLES * (count // 2)

    def operand_count(self, used: int) -> int:
        return used + used % 2

    def result_roles(self, params: BiasGeluParams) -> tuple[Role, ...]:
        return _ROLES

    def needs_separate_batches(self, params: BiasGeluParams) -> bool:
        return params.row is not None

    def fixed_ndim(self, params: BiasGeluParams) -> int:
        return 0

    def is_linear_in(self, position: int, params: BiasGeluParams) -> bool:
        return position >= 2

    def workspace_bytes(self, operands: Sequence[Spec | None], params: BiasGeluParams) -> int:
        x = operands[0]
        if params.row is None or x is None or not x.shape:
            return 0
        dtypes = {params.full, params.row, *(spec.dtype for spec in operands if spec is not None)}
        return column_sums_workspace_bytes(x.shape, params.batch_ndim, "float64" in dtypes)

    def results(
        self, operands: Sequence[Spec | None], params: BiasGeluParams
    ) -> tuple[Spec | None, Spec | None]:
        x = operands[0]
        if x is None:
            raise TypeError("bias_gelu: the operand x is missing")
        if not 0 <= params.order <= MAX_ORDER:
            raise ValueError(
                f"bias_gelu: derivative order {params.order} is not available, expected 0 to "
                f"{MAX_ORDER}"
            )
        if len(operands) > len(self.operand_names):
            raise ValueError(
                f"bias_gelu: a derivative of order {len(operands) // 2 - 1}, expected at most "
                f"{MAX_FACTORS}"
            )
        shapes = {role: shape_in(role, x.shape, params.batch_ndim) for role in _ROLES}
        for operand, role in zip(operands, self.operand_roles(len(operands), params), strict=True):
            if operand is not None and not operand.has_shape(shapes[role]):
                raise ValueError(
                    f"bias_gelu: an operand has shape {list(operand.shape)}, expected "
                    f"{list(shapes[role])}"
                )
        return (
            None if params.full is None else Spec(x.shape, params.full),
            None if params.row is None else Spec(shapes[Role.ROW], params.row),
        )

    def jvp(
        self,
        operands: Operands,
        results: Operands,
        tangents: Operands,
        specs: Sequence[Spec | None],
        params: BiasGeluParams,
    ) -> list[Call[BiasGeluParams]]:
        calls = []
        for first in range(0, len(operands), 2):
            pair = tangents[first : first + 2]
            if pair[_FULL] is None and pair[_ROW] is None:
                continue
            calls.append(self._with_pair(operands, first, pair, params))
        return calls

    def vjp(
        self,
        operands: Operands,
        results: Operands,
        cotangents: Operands,
        wanted: Sequence[bool],
        specs: Sequence[Spec | None],
        params: BiasGeluParams,
    ) -> list[tuple[Call[BiasGeluParams], tuple[int | None, ...]]]:
        calls: list[tuple[Call[BiasGeluParams], tuple[int | None, ...]]] = []
        if all(cotangent is None for cotangent in cotangents):
            return calls
        for first in range(0, len(operands), 2):
            dtypes = [
                spec.dtype if spec is not None and wanted[first + i] else None
                for i, spec in enumerate(specs[first : first + 2])
            ]
            if dtypes == [None, None]:
                continue
            gradients = replace(params, full=dtypes[_FULL], row=dtypes[_ROW])
            call = self._with_pair(operands, first, cotangents, gradients)
            places = tuple(None if d is None else first + i for i, d in enumerate(dtypes))
            calls.append((call, places))
        return calls

    def _with_pair(
        self, operands: Operands, first: int, pair: Operands, params: BiasGeluParams
    ) -> Call[BiasGeluParams]:
        """The derivative of the call towards the pair at `first`, times (pair[0] + pair[1])."""
        if first == 0:  # through gelu: one order higher, one more factor
            return Call(self, (*operands, *pair), replace(params, order=params.order + 1))
        # A factor is linear: the new pair takes its place.
        return Call(self, (*operands[:first], *pair, *operands[first + 2 :]), params)

    def reference(self, operands: Sequence[Any], params: BiasGeluParams) -> tuple[Any, Any]:
        """The formula in float64 NumPy. Operands are NumPy arrays (any dtype) or None.

        Returns (y, s) in float64, both whether wanted or not.
        """
        import numpy as np

        def row(array: Any) -> Any:  # [*batch, d] seen from [*batch, *rows, d]
            middle = (1,) * (operands[0].ndim - array.ndim)
            shape = (*array.shape[: params.batch_ndim], *middle, *array.shape[params.batch_ndim :])
            return np.asarray(array, np.float64).reshape(shape)

        def pair(first: int) -> Any:
            full, vector = operands[first : first + 2]
            parts = [] if full is None else [np.asarray(full, np.float64)]
            return sum([*parts, *([] if vector is None else [row(vector)])])

        y = gelu_derivative(pair(0), params.form, params.order)
        for first in range(2, len(operands), 2):
            y = y * pair(first)
        axes = tuple(range(params.batch_ndim, max(y.ndim - 1, 0)))
        return y, y.sum(axis=axes) if y.ndim else y.reshape(1)


BIAS_GELU = BiasGelu()


def check_bias_gelu(x: Spec, bias: Spec | None, approximate: str) -> BiasGeluParams:
    """Checks the arguments of the public function and returns the parameters of the call.

    Raises:
      TypeError: for a dtype other than float16, bfloat16, float32, float64.
      ValueError: for an unknown `approximate` or a bias that is not `[d]`.
    """
    check_approximate("bias_gelu", approximate)
    for name, spec in (("x", x), ("bias", bias)):
        if spec is not None and spec.dtype not in FLOATING:
            raise TypeError(
                f"bias_gelu: {name} has dtype {spec.dtype}, expected one of {', '.join(FLOATING)}"
            )
    if bias is None:
        return BiasGeluParams(approximate, full=x.dtype)
    if not x.shape:
        raise ValueError(
            f"bias_gelu: x is 0-dimensional, expected at least one dimension to add bias of shape "
            f"{list(bias.shape)} to"
        )
    if not bias.has_shape(x.shape[-1:]):
        raise ValueError(
            f"bias_gelu: bias has shape {list(bias.shape)}, expected [{x.shape[-1]}], the last "
            f"dimension of x of shape {list(x.shape)}"
        )
    return BiasGeluParams(approximate, full=promote(x.dtype, bias.dtype))


def check_approximate(function: str, approximate: Any) -> None:
    """Raises ValueError unless this is the name of a form."""
    if not isinstance(approximate, str) or approximate not in FORMS:
        raise ValueError(
            f"{function}: approximate is {approximate!r}, expected one of "
            f"{', '.join(repr(form) for form in FORMS)}"
        )


def gelu_derivative(h: Any, form: str, order: int) -> Any:
    r"""gelu⁽ⁿ⁾(h) in float64, with the tails kept relative and the limits at ±∞ exact.

    tanh: h·σ(2√(2/π)(h + 0.044715 h³)); sigmoid: h·σ(1.702 h); none: h·Φ(h)
    (Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415). Derivatives of the
    logistic forms by truncated Taylor arithmetic, of the exact form by Φ′ = φ and
    dᵏ(φ·P)/dhᵏ = φ·(P′ − h·P).
    """
    import numpy as np

    h = np.asarray(h, np.float64)
    # Past this every derivative is 0 or its limit to the last bit of float64.
    bound = 500.0 if form == "sigmoid" else 40.0
    at = np.clip(h, -bound, bound)
    with np.errstate(all="ignore"):
        value = _erf_derivative(at, order) if form == "none" else _logistic(at, form, order)
        if order == 0:
            value = np.where(h > bound, h, np.where(h < -bound, -0.0, value))
    return value


def _erf_derivative(h: Any, order: int) -> Any:
    import numpy as np
    from scipy.special import ndtr

    density = np.exp(-0.5 * h * h) / math.sqrt(2.0 * math.pi)
    if order == 0:
        return h * ndtr(h)
    if order == 1:
        return ndtr(h) + h * density
    polynomial = np.polynomial.Polynomial([2.0, 0.0, -1.0])
    for _ in range(order - 2):
        polynomial = polynomial.deriv() - np.polynomial.Polynomial([0.0, 1.0]) * polynomial
    return density * polynomial(h)


def _logistic(h: Any, form: str, order: int) -> Any:
    import numpy as np

    a, b = (1.702, 0.0) if form == "sigmoid" else (2.0 * math.sqrt(2.0 / math.pi), 0.044715)
    # These are Taylor coefficients of the argument around h, then of s = σ(argument), which follow
    # from s′ = q·argument′ with q = s(1 − s).
    inner = [a * (h + b * h**3), a * (1.0 + 3.0 * b * h * h), a * 3.0 * b * h, a * b + 0.0 * h]
    small = np.exp(-np.abs(inner[0]))
    high, low = 1.0 / (1.0 + small), small / (1.0 + small)
    sigma = [np.where(inner[0] >= 0, high, low)]
    rest = [np.where(inner[0] >= 0, low, high)]  # 1 − σ, without cancellation
    for k in range(1, order + 1):
        q = [sum(sigma[i] * rest[j - i] for i in range(j + 1)) for j in range(k)]
        term = sum(j * inner[j] * q[k - j] for j in range(1, min(k, 3) + 1)) / k
        sigma.append(term)
        rest.append(-term)
    lower = sigma[order - 1] if order > 0 else 0.0
    return math.factorial(order) * (h * sigma[order] + lower)
