"""The paths from the public functions of gated units and quantised norms into their ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.catalogue.gates import FORMS, OPERANDS, Glu, one_a_row
from bridge.catalogue.quantized_gates import QuantizedGates
from bridge.catalogue.quantized_norms import QuantizedNorms
from bridge.declared import DeclaredOp
from bridge.torch._adapter import arrays
from bridge.torch._adapter.checks import check_tensors
from bridge.torch._adapter.declared import DeclaredEntry
from bridge.torch._adapter.overrides import hand_over, is_overridden

_norms = QuantizedNorms(arrays)


def quantized_norm(name: str, operands: tuple[Any, ...], out: Any, *static: Any) -> Any:
    """Runs a norm with `quantize`, the last of the static arguments."""
    if is_overridden(given := (*operands, out)):
        return hand_over(given, depth=2)
    _refuse_out(name, out)
    return getattr(_norms, name)(*operands, *static)


class GluEntry(DeclaredEntry):
    """The path from a public function into `glu`, in one of three forms."""

    def __init__(self, name: str, forms: Sequence[DeclaredOp] = FORMS) -> None:
        super().__init__(forms[0], name)
        self._glu = Glu(arrays, name, forms)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        *static, interleaved, _ = values
        entry, operands = self._glu.form(operands, interleaved)
        return entry.resolve(operands, *static)

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        blocks = values[-1]
        is_one = type(blocks) is int and blocks == 1
        return None if is_one else self._glu.run(operands, out, *values)


class PublicGlu(GluEntry):
    """The same with `quantize`, the last of the static arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._quantized = QuantizedGates(arrays, name)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        return super().resolve(operands, *values[:-1])

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        *static, interleaved, blocks, quantize = values
        if quantize is None:
            return super().composed(operands, out, *values[:-1])
        check_tensors(self.name, 1, **dict(zip(OPERANDS, operands, strict=True)))
        _refuse_out(self.name, out)
        return self._quantized.glu(operands, quantize, tuple(static), interleaved, blocks)


def _refuse_out(name: str, out: Any) -> None:
    if out is not None:
        raise ValueError(f"{name}: out is given with quantize, expected one of the two")


class SquaredReLU(DeclaredEntry):
    _quantized = QuantizedGates(arrays, "squared_relu")

    def composed(self, operands: tuple[Any, ...], out: Any, *values: Any) -> Any:
        if (quantize := values[0]) is None:
            return None
        check_tensors(self.name, 1, x=operands[0], weight=operands[1])
        _refuse_out(self.name, out)
        return self._quantized.squared_relu(operands[0], operands[1], quantize)

    def resolve(self, operands: tuple[Any, ...], *values: Any) -> Any:
        x, weight = operands
        return super().resolve((x, one_a_row(x, weight)), *values[1:])
