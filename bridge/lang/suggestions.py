"""Replacements for functions and attributes of other libraries, by their names there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from bridge.lang.operations import PUBLIC

# Functions of bridge.lang that other libraries also have as array methods.
_FUNCTIONS = (
    *(name for name, arity in PUBLIC.items() if arity == 1),
    *("argmax", "argmin", "column_sum", "log_softmax", "logsumexp", "max", "mean", "min", "relu"),
    "sum",
)
_SHAPE = "bl.columns() is the length of a row; an op depends on no other size"
_DTYPE = (
    "a declaration is for all dtypes: bl.rounded(x, dtype) rounds to one, and "
    "bl.like(x, operand) returns the dtype of an operand"
)
_LAYOUT = "an op computes on whole rows: reshape arrays before or after the call"
INTEGERS = (
    "nothing is rounded to integers: x / y divides; pass a pattern of columns as a Mask or a "
    "Table, and even and odd columns as Pairs"
)
MATRICES = (
    "no product of matrices: an op sees one row at a time, and bl.sum(x * y) is the product of two "
    "rows; multiply matrices before or after the call"
)
_POWER = "write x**2, for integers, or bl.exp(p * bl.log(x))"
_CLIP = "write bl.clip(x, low, high)"
_ELEMENT = "write bl.sum(bl.where(bl.column() == k, x, 0.0))"
_CONSTANT = "write the number: it broadcasts"
NUMBER = (
    "a value has no number while the op is declared: compute with it as it is, by operators and "
    "functions of bridge.lang (bl.exp(x), not math.exp(x))"
)

_INSTEAD = {
    **{name: f"write bl.{name}(x)" for name in _FUNCTIONS},
    **dict.fromkeys(("maximum", "minimum"), "write bl.maximum(x, y) or bl.minimum(x, y)"),
    "where": "write bl.where(condition, x, y)",
    "amax": "write bl.max(x)",
    "amin": "write bl.min(x)",
    "var": "write bl.mean(c * c), with d = x - bl.mean(x) and c = d - bl.mean(d)",
    "std": "write bl.sqrt(bl.mean(c * c)), with d = x - bl.mean(x) and c = d - bl.mean(d)",
    "norm": "write bl.sqrt(bl.sum(x * x))",
    "softmax": "write bl.exp(bl.log_softmax(x))",
    "relu6": "write bl.clip(x, 0.0, 6.0)",
    "leaky_relu": "write bl.where(x > 0.0, x, slope * x)",
    "elu": "write bl.where(x > 0.0, x, bl.expm1(x))",
    "swish": "write bl.silu(x)",
    **dict.fromkeys(("logistic", "expit"), "write bl.sigmoid(x)"),
    "sign": "write bl.where(x > 0.0, 1.0, bl.where(x < 0.0, -1.0, 0.0))",
    "square": "write x * x",
    **dict.fromkeys(("pow", "power"), _POWER),
    "reciprocal": "write 1.0 / x",
    **dict.fromkeys(("clip", "clamp"), _CLIP),
    "tan": "write bl.sin(x) / bl.cos(x)",
    "sinc": "write bl.where(x == 0.0, 1.0, bl.sin(math.pi * x) / (math.pi * x))",
    "dropout": "write bl.where(bl.dropout_keep(p, seed), x / (1.0 - p), 0.0)",
    "isnan": "write x != x",
    "arange": "write bl.column()",
    "one_hot": "write bl.column() == label",
    **dict.fromkeys(("gather", "take", "take_along_axis"), _ELEMENT),
    **dict.fromkeys(("zeros", "ones", "full", "zeros_like", "ones_like", "array"), _CONSTANT),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "rint"), INTEGERS),
    **dict.fromkeys(("matmul", "dot", "einsum"), MATRICES),
    **dict.fromkeys(("shape", "size", "ndim", "dim", "numel"), _SHAPE),
    **dict.fromkeys(("dtype", "astype", "to", "type", "float", "half", "double"), _DTYPE),
    **dict.fromkeys(("T", "mT", "transpose", "permute", "swapaxes", "movedim"), _LAYOUT),
    **dict.fromkeys(("reshape", "view", "flatten", "ravel", "squeeze", "unsqueeze"), _LAYOUT),
    **dict.fromkeys(("expand", "expand_dims", "repeat", "broadcast_to"), _LAYOUT),
    **dict.fromkeys(("item", "tolist", "numpy"), NUMBER),
    **dict.fromkeys(("chunk", "split"), "annotate the operand with bridge.Halves or Pairs"),
    **dict.fromkeys(("cat", "concatenate", "stack"), "return bl.halves(first, second)"),
    "detach": "write bl.stop_gradient(x)",
}


def instead_of_attribute(name: str) -> str:
    """Returns the message for an attribute or a method that a value does not have."""
    otherwise = "values have Python's operators and the functions of bridge.lang"
    return f"a value has no {name}: {_INSTEAD.get(name, otherwise)}"


def instead_of_function(name: str, known: Sequence[str]) -> str:
    """Returns the message for a missing function of bridge.lang; `known` are its existing names."""
    instead = _INSTEAD.get(name)
    if instead is None:
        close = difflib.get_close_matches(name, known)
        instead = f"it has {', '.join(close or known)}"
    return f"bridge.lang has no {name}: {instead}"
