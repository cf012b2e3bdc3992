"""The ops that parity compares. To add an op, write a module like these and add a line here."""

from __future__ import annotations

from types import ModuleType

from bridge.cli.parity import bias_dropout_add, bias_gelu, catalogue, softmax

# Each module has FORMS, the names of its variants; cases(quick, forms), its grid; BOUNDS, the
# allowed errors, and BOUNDS_IN_WORDS, a description of them.
OPS: dict[str, ModuleType] = {
    "bias_gelu": bias_gelu,
    "softmax": softmax,
    "bias_dropout_add": bias_dropout_add,
    "catalogue": catalogue,
}
