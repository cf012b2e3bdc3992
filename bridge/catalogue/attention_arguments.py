"""The arguments of attention: shapes, dtypes and options, checked before anything runs."""

from __future__ import annotations

from typing import Any

from bridge.catalogue import checks
from bridge.catalogue.attention import NAME, default_scale
from bridge.catalogue.attention_scores import Options
from bridge.catalogue.sinks import SoftmaxWithSink
from bridge.catalogue.softmax import MASK_EXPECTED, check_scale
from bridge.lang.dtypes import FLOATING, OF_MASKS
from bridge.ops.arrays import Arrays
from bridge.ops.definition import Spec
from bridge.ops.scalars import LARGEST_FLOAT32, LEAST_FLOAT32, whole_number

_softcap = checks.optional(
    checks.number(
        "a positive number that float32 has",
        lambda value: LEAST_FLOAT32 <= value <= LARGEST_FLOAT32,
    )
)
_LAYOUT = {
    "q": "[..., heads, queries, d]",
    "k": "[..., key heads, keys, d]",
    "v": "[..., key heads, keys, d of v]",
}


def checked_options(arrays: Arrays, d: int, causal: Any, *numbers: Any) -> Options:
    """Returns the options, from d and causal, window, scale and softcap.

    Raises:
      TypeError, ValueError: an option is not allowed, or traced.
    """
    window, scale, softcap = (
        arrays.known(NAME, name, value)
        for name, value in zip(("window", "scale", "softcap"), numbers, strict=True)
    )
    causal = arrays.known(NAME, "causal", causal, "True or False")
    if type(causal) is not bool:
        raise TypeError(f"{NAME}: causal is {causal!r}, expected True or False")
    if window is not None:
        # No call has more keys, and int32 has the difference of a place and the window.
        window = min(whole_number(NAME, "window", window, 1), 2**30)
        if not causal:
            raise ValueError(
                f"{NAME}: window is {window} and causal is False, expected causal=True: a window "
                "counts back from the last key that a query sees under the causal rule"
            )
    scale = default_scale(d) if scale is None else check_scale(NAME, scale)
    softcap = _softcap(NAME, "softcap", softcap)
    # -0.0 becomes 0.0, because equal options are the same call.
    return Options(scale or 0.0, softcap or 0.0, causal, window or 0)


def check_operands(q: Spec, k: Spec, v: Spec, mask: Spec | None) -> None:
    """Raises TypeError or ValueError for operands that do not fit each other."""
    named = {"q": q, "k": k, "v": v}
    for name, spec in named.items():
        if spec.dtype not in FLOATING:
            raise TypeError(
                f"{NAME}: {name} has dtype {spec.dtype}, expected one of {', '.join(FLOATING)}"
            )
        if spec.dtype != q.dtype:
            raise TypeError(f"{NAME}: {name} has dtype {spec.dtype}, expected {q.dtype}, that of q")
        if len(spec.shape) < 3:
            raise ValueError(
                f"{NAME}: {name} has shape {list(spec.shape)}, expected {_LAYOUT[name]}"
            )
    *batch, heads, queries, d = q.shape
    *_, key_heads, keys, _ = k.shape
    if tuple(k.shape[:-3]) != tuple(batch) or k.shape[-1] != d:
        expected = [*batch, "key heads", "keys", d]
        raise ValueError(
            f"{NAME}: k has shape {list(k.shape)}, expected {_shown(expected)}: q has shape "
            f"{list(q.shape)}"
        )
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(
            f"{NAME}: v has shape {list(v.shape)}, expected {_shown([*k.shape[:-1], 'd of v'])}: k "
            f"has shape {list(k.shape)}"
        )
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(
            f"{NAME}: q has {heads} heads and k has {key_heads}, expected heads of k that divide "
            "those of q"
        )
    if mask is None:
        return
    if mask.dtype not in OF_MASKS:
        raise TypeError(f"{NAME}: mask has dtype {mask.dtype}, expected {MASK_EXPECTED}")
    scores = (*batch, heads, queries, keys)
    if not mask.broadcasts_to(scores):
        raise ValueError(
            f"{NAME}: mask has shape {list(mask.shape)}, which does not broadcast to the scores "
            f"{list(scores)}; True (non-zero) hides a key"
        )


def _shown(sizes: list[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


class Prepared:
    """Checks the operands of attention and brings them into the form of `Attention`."""

    def __init__(self, arrays: Arrays, with_sink: SoftmaxWithSink) -> None:
        self._arrays, self._with_sink = arrays, with_sink

    def operands(self, q: Any, k: Any, v: Any, mask: Any, sink: Any) -> tuple[Any, ...]:
        """Returns q, k, v, the sinks of all queries, and the mask with all dimensions.

        Raises:
          TypeError, ValueError: operands that do not fit each other.
        """
        spec_of = self._arrays.spec_of
        check_operands(spec_of(q), spec_of(k), spec_of(v), None if mask is None else spec_of(mask))
        if mask is not None:
            shape = tuple(mask.shape)
            mask = mask.reshape((1,) * (q.ndim - len(shape)) + shape)
        if sink is not None:
            sink = self._sinks(q, sink)
        return q, k, v, sink, mask

    def _sinks(self, q: Any, sink: Any) -> Any:
        spec = self._arrays.spec_of(sink)
        if spec.dtype not in FLOATING:
            raise TypeError(
                f"{NAME}: sink has dtype {spec.dtype}, expected one of {', '.join(FLOATING)}"
            )
        heads = q.shape[-3]
        if len(spec.shape) and not spec.has_shape((heads,)):
            raise ValueError(
                f"{NAME}: sink has shape {list(spec.shape)}, expected [{heads}], one for each head "
                "of q, or a number"
            )
        dtype = self._arrays.dtype_of(q)
        wide = "float64" if "float64" in (dtype, spec.dtype) else "float32"
        table = sink.reshape((heads, 1) if len(spec.shape) else (1,))
        return self._with_sink.of_rows(q, table, tuple(q.shape[:-1]), wide)
