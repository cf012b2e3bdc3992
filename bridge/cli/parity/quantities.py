"""Names of the quantities of a case: the op, its gradients, tangents and second order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_WORDS = {
    "forward": "value",
    "jvp": "tangent along all inputs",
    "d2g": "grad of grad, towards the cotangent",
}
_OF_AN_INPUT = {
    "hvp_": "Hessian times vector, {}",
    "d2": "grad of grad, towards {}",
    "d": "gradient of {}",
}


def quantities(
    inputs: Sequence[str], second_order: bool = False, hessian: bool = False
) -> tuple[str, ...]:
    """Returns names: value, gradients, tangent; grad of grad; Hessian-vector products."""
    names = ["forward", *(f"d{name}" for name in inputs), "jvp"]
    if second_order:
        names += [*(f"d2{name}" for name in inputs), "d2g"]
    if hessian:
        names += [f"hvp_{name}" for name in inputs]
    return tuple(names)


def named(prefix: str, names: Sequence[str], values: Iterable[Any]) -> dict[str, Any]:
    """Returns values by the names of quantities of inputs."""
    return {f"{prefix}{name}": value for name, value in zip(names, values, strict=True)}


def order_of(quantity: str) -> tuple[str, str]:
    """Returns the prefix of a quantity of an input and the input; "" and g for other quantities."""
    if quantity in _WORDS:
        return "", "g"
    prefix = next(prefix for prefix in _OF_AN_INPUT if quantity.startswith(prefix))
    return prefix, quantity.removeprefix(prefix)


def words(quantity: str) -> str:
    """Returns a description of a quantity for the reader of a table."""
    prefix, operand = order_of(quantity)
    return _OF_AN_INPUT[prefix].format(operand) if prefix else _WORDS[quantity]
