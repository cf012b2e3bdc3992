"""Cases of the ops that are declarations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.lang.dtypes import promote
from tests.cases import Case


@dataclass(frozen=True)
class Declared(Case):
    """An op of the public functions of a framework.

    Attributes:
      name: the name of the op and its options.
      call: call(ops, *arrays).
      shapes: the shapes of the arrays.
      shape: the shape of the result; True if it has one number per row, in the arithmetic's type.
    """

    name: str
    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    is_of_rows: bool = False

    def __str__(self) -> str:
        return f"{self.name} {list(self.shapes[0])}"

    def argument_shapes(self) -> list[tuple[int, ...]]:
        return list(self.shapes)

    def function(self, framework: Any) -> Callable[..., Any]:
        return lambda *arrays: self.call(framework.ops, *arrays)

    def result_dtype(self, dtypes: list[str]) -> str:
        return promote(*dtypes, "float32") if self.is_of_rows else promote(*dtypes)


class LikeFirst(Declared):
    """An op whose result has the dtype of the first array."""

    def result_dtype(self, dtypes: list[str]) -> str:
        return dtypes[0]


class OneNan(Declared):
    """An op of two programs: the framework adds second derivatives, and XLA has NaNs of its own."""

    def compared(self, result: Any) -> Any:
        return np.where(np.isnan(result), result.dtype.type(np.nan), result)


def beside(x: Any, array: Any) -> Any:
    """Converts a NumPy array to the framework of x."""
    if hasattr(x, "new_tensor"):
        import torch

        return torch.from_numpy(array)
    return array


def labels_of(x: Any) -> Any:
    rows = x.shape[:-1]
    return beside(x, np.arange(int(np.prod(rows))).reshape(rows) * 7 % x.shape[-1])


def _mask(x: Any) -> Any:
    return beside(x, np.arange(int(np.prod(x.shape))).reshape(x.shape) * 5 % 7 < 3)


def _cross_entropy(ops: Any, x: Any) -> Any:
    options = {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 9.0}
    return ops.cross_entropy(x, labels_of(x), reduction="none", ignore_index=0, **options)


def _cases(shape: tuple[int, ...]) -> list[Declared]:
    rows, d = shape[:-1], shape[-1]
    wide = (*rows, 2 * d)
    one_each = (shape[0], *[1] * (len(shape) - 1))
    made = [
        Declared("rms_norm", lambda o, x, w: o.rms_norm(x, w, offset=1.0), (shape, (d,)), shape),
        Declared(
            "rms_norm with residual",
            lambda o, x, w, r: o.rms_norm(x, w, r, eps=1e-3)[0],
            (shape, (d,), shape),
            shape,
        ),
        Declared("layer_norm", lambda o, *a: o.layer_norm(*a), (shape, (d,), (d,)), shape),
        Declared(
            "layer_norm with residual",
            lambda o, x, w, r: o.layer_norm(x, w, residual=r)[0],
            (shape, (d,), shape),
            shape,
        ),
        Declared(
            "gated_rms_norm",
            lambda o, *a: o.gated_rms_norm(*a),
            (shape, shape, (d,)),
            shape,
        ),
        Declared(
            "gated_rms_norm of groups, gate first",
            lambda o, *a: o.gated_rms_norm(
                *a, activation="gelu", norm_first=False, groups=max(1, d)
            ),
            (shape, shape, (d,)),
            shape,
        ),
        Declared("dyt", lambda o, *a: o.dyt(*a), (shape, (), (d,), (d,)), shape),
        Declared("poly_norm", lambda o, *a: o.poly_norm(*a), (shape, (3,), (1,)), shape),
        OneNan(
            "group_norm",
            lambda o, x, *a: o.group_norm(
                x.reshape(int(np.prod(rows)), d, 2), 3 if d % 3 == 0 else 1, *a, activation="silu"
            ).reshape(x.shape),
            (wide, (d,), (d,)),
            wide,
        ),
        Declared("swiglu packed", lambda o, x: o.swiglu(x), (wide,), shape),
        Declared(
            "geglu with weight",
            lambda o, x, u, b, w: o.geglu(x, u, b, weight=w, limit=3.0, linear_offset=1.0),
            (shape, shape, (d,), rows),
            shape,
        ),
        Declared(
            "glu interleaved",
            lambda o, x, b: o.glu(x, None, b, activation="sigmoid", interleaved=True),
            (wide, wide[-1:]),
            shape,
        ),
        Declared(
            "swiglu packed with bias", lambda o, x, b: o.swiglu(x, bias=b), (wide, wide[-1:]), shape
        ),
        Declared("reglu packed", lambda o, x, w: o.reglu(x, weight=w), (wide, rows), shape),
        Declared("squared_relu", lambda o, x, w: o.squared_relu(x, w), (shape, rows), shape),
        Declared("log_softmax", lambda o, x: o.log_softmax(x, 0.5), (shape,), shape),
        Declared("logsumexp", lambda o, x: o.logsumexp(x), (shape,), rows, True),
        Declared("entropy", lambda o, x: o.entropy(x, scale=0.5), (shape,), rows, True),
        Declared("kl_div", lambda o, *a: o.kl_div(*a, temperature=1.5), (shape, shape), rows, True),
        Declared("js_div", lambda o, *a: o.js_div(*a, beta=0.3), (shape, shape), rows, True),
        Declared("tv_distance", lambda o, *a: o.tv_distance(*a), (shape, shape), rows, True),
        Declared(
            "policy_loss",
            lambda o, x, old, a, ref: o.policy_loss(
                x, old, a, _mask(x), clip=(0.2, 0.28), ref_log_probs=ref, kl=0.1, reduction="none"
            ),
            (shape, shape, rows, shape),
            shape,
        ),
        Declared(
            "policy_loss of sequences",
            lambda o, *a: o.policy_loss(*a, kind="gspo"),
            (shape, shape, rows),
            (),
            True,
        ),
        Declared(
            "preference_loss",
            lambda o, *a: o.preference_loss(
                *a, label_smoothing=0.1, margin=0.3, nll_weight=0.5, reduction="none"
            ),
            (shape, shape, shape, shape),
            shape,
        ),
        Declared(
            "preference_loss orpo",
            lambda o, c, r: o.preference_loss(c, r, kind="orpo"),
            (shape, shape),
            (),
            True,
        ),
        LikeFirst(
            "scaled_softmax with sink",
            lambda o, x, s: o.scaled_softmax(x, 0.3, sink=s),
            (shape, one_each),
            shape,
        ),
        LikeFirst(
            "scaled_causal_softmax with sink",
            lambda o, x, s: o.scaled_causal_softmax(x, sink=s),
            (shape, one_each),
            shape,
        ),
        LikeFirst(
            "scaled_masked_softmax with sink",
            lambda o, x, s: o.scaled_masked_softmax(x, _mask(x), 0.7, sink=s),
            (shape, one_each),
            shape,
        ),
        Declared("rotary", lambda o, *a: o.rotary(*a), (wide, (d,), (d,)), wide),
        Declared(
            "rotary interleaved",
            lambda o, *a: o.rotary(*a, interleaved=True),
            (wide, (d,), (d,)),
            wide,
        ),
        Declared(
            "rms_norm_rotary",
            lambda o, *a: o.rms_norm_rotary(*a, offset=1.0),
            (wide, wide[-1:], (d,), (d,)),
            wide,
        ),
        Declared(
            "rms_norm_rotary interleaved and partial",
            lambda o, *a: o.rms_norm_rotary(*a, interleaved=True),
            (wide, wide[-1:], (d // 2,), (d // 2,)),
            wide,
        ),
    ]
    if d > 0:
        made += [
            Declared(
                "token_log_probs",
                lambda o, x: o.token_log_probs(x, labels_of(x), scale=0.5),
                (shape,),
                rows,
                True,
            ),
            Declared("cross_entropy", _cross_entropy, (shape,), rows, True),
        ]
    return made


CATALOGUE = tuple(
    case for shape in ((5, 3), (17, 9), (2, 65, 17), (3, 0), (4, 1300)) for case in _cases(shape)
)
