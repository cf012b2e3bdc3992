"""The difference behind a part as a sentence, where it is one of the known mistakes.

"Here" is torch, "there" is JAX.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bridge.compared.found import SMALL
from bridge.lang.dtypes import OF_16_BITS

if TYPE_CHECKING:
    from bridge.compared.found import Found
    from bridge.compared.state import State


_GELU = ("erf", "tanh", "sigmoid")
# torch's ops, and the words for them.
_ACTIVATIONS = {
    "relu": "ReLU",
    "silu": "SiLU",
    "sigmoid": "the logistic function",
    "tanh": "the hyperbolic tangent",
}
_ACTIVATIONS |= {"leaky_relu": "leaky ReLU", "elu": "ELU", "softplus": "softplus", "mish": "Mish"}
_ACTIVATIONS |= {"hardswish": "hard swish", "threshold": "ReLU", "relu6": "ReLU6"}


@dataclass(frozen=True)
class Cause:
    """A sentence; `is_certain` where it was read off the operations of both sides."""

    text: str = ""
    is_certain: bool = False


def cause_of(found: Found, search: State) -> Cause:
    """Returns the known mistake that a part shows, an empty sentence for others."""
    for rule in _RULES:
        cause = rule(found, search)
        if cause is not None:
            return cause
    return Cause()


def _region(found: Found, search: State) -> list[Any]:
    """Returns the steps of JAX from the first wrong value to the one that both go on with."""
    if found.jax is None:
        return []
    tape = search.tape
    last = found.jax_join.index if found.jax_join is not None else found.jax.index + 40
    behind = {last}
    for k in range(min(last, len(tape.values) - 1), found.jax.index - 1, -1):
        if k in behind:
            behind.update(p for p in tape.values[k].parents if p >= found.jax.index)
    places = sorted({tape.maker[k] for k in behind if k in tape.maker})
    return [tape.steps[k] for k in places]


def _equations(found: Found, search: State) -> Iterator[Any]:
    for step in _region(found, search):
        run = getattr(step.run, "inner", step.run)
        if hasattr(run, "eqn"):
            yield run.eqn


def _literals(found: Found, search: State) -> list[tuple[str, float]]:
    """Returns the constants in the first steps of JAX, with the operations that take them."""
    values = []
    for step in _region(found, search):
        for literal in getattr(step.run, "literals", {}).values():
            if np.ndim(literal) == 0 and np.asarray(literal).dtype.kind == "f":
                values.append((step.key[0], float(literal)))
    return values


def _options(found: Found) -> dict[str, Any]:
    return found.torch.place.options if found.torch is not None and found.torch.place else {}


def _gradient(found: Found, search: State) -> Cause | None:
    """Names the parameters whose gradient torch has and JAX has not."""
    is_joined = found.jax_join is not None
    if found.torch is None or is_joined or found.torch.index < search.recording.forward:
        return None
    values = search.recording.values
    names = []
    for name in search.unpaired_gradients()[0]:
        behind = {search.recording.gradients[name]}
        for k in range(max(behind), found.torch.index, -1):
            if k in behind:
                behind.update(values[k].parents)
        if found.torch.index in behind:
            names.append(name)
    return Cause(f"no gradient in JAX equals that of {' and '.join(names)}") if names else None


def _rounding(found: Found, search: State) -> Cause | None:
    names = []
    for eqn in _equations(found, search):
        if eqn.primitive.name == "convert_element_type":
            names.append(str(np.dtype(eqn.params["new_dtype"])))
        names += [str(getattr(var.aval, "dtype", "")) for var in eqn.outvars]
    for name in names:
        if name in OF_16_BITS:
            return Cause(f"rounded to {name} there", True)
    return None


def _eps(found: Found, search: State) -> Cause | None:
    eps = _options(found).get("eps")
    if eps is None or found.jax is None or not isinstance(eps, float):
        return None
    names = [step.key[0] for step in _region(found, search)]
    for op, literal in _literals(found, search):
        if op in ("add", "max") and 0 < literal < 1e-2:
            if "sqrt" in names and names.index("sqrt") < names.index("add"):
                return Cause(f"eps {eps:g} inside the root here, outside of it there", True)
            if abs(literal - eps) > 1e-3 * eps:
                return Cause(f"eps {eps:g} here, {literal:g} there", True)
    return None


def _momentum(found: Found, search: State) -> Cause | None:
    """Running statistics: the weight of the batch's own."""
    options = _options(found)
    here = options.get("momentum")
    if not isinstance(here, float) or not options.get("training"):
        return None
    values = search.tape.values
    for step in _region(found, search):
        weights = [float(v) for v in getattr(step.run, "literals", {}).values() if np.ndim(v) == 0]
        if step.key[0] != "mul" or len(weights) != 1 or not 0 < weights[0] < 1:
            continue
        is_old = values[step.inputs[0]].kind == "leaf"
        there = 1 - weights[0] if is_old else weights[0]
        if abs(there - here) > 1e-6:
            text = f"momentum: the batch has the weight {here:g} here, {there:g} there"
            return Cause(text, True)
    return None


def _activation(found: Found, search: State) -> Cause | None:
    """Names the activations of both sides; forms of GELU by their functions."""
    if found.torch is None:
        return None
    op = found.torch.op.removesuffix("_backward")
    if op == "gelu":
        here = "erf" if _options(found).get("approximate") == "none" else "tanh"
    elif op in _ACTIVATIONS:
        here = _ACTIVATIONS[op]
    else:
        return None
    names = {eqn.primitive.name for eqn in _equations(found, search)}
    literals = _literals(found, search)
    there = ""
    if names & {"erf", "erfc"}:
        there = "erf"
    elif "tanh" in names:
        is_gelu = "integer_pow" in names or any(abs(x - 0.044715) < 1e-4 for _, x in literals)
        there = "tanh" if is_gelu else _ACTIVATIONS["tanh"]
    elif "logistic" in names:
        is_gelu = any(abs(x - 1.702) < 1e-3 for _, x in literals)
        there = "sigmoid" if is_gelu else _ACTIVATIONS[_of_logistic(found, search)]
    elif ("max", 0.0) in literals:
        there = _ACTIVATIONS["relu"]
    if not there or here == there:
        return None
    if here in _GELU and there in _GELU:
        return Cause(f"GELU: {here} here, {there} there", True)
    here, there = (f"GELU ({x})" if x in _GELU else x for x in (here, there))
    return Cause(f"{here} here, {there} there", True)


def _of_logistic(found: Found, search: State) -> str:
    """Returns the activation of JAX that a logistic function is a part of."""
    for step in _region(found, search):
        if step.key[0] == "logistic":
            (x,), (y,) = step.inputs, step.outputs
            if any(each.key[0] == "mul" and {x, y} <= {*each.inputs} for each in search.tape.steps):
                return "silu"
    return "sigmoid"


def _window(found: Found, search: State) -> Cause | None:
    """Convolutions and pools: strides, padding and dilation."""
    options = _options(found)
    if "stride" not in options or "padding" not in options:
        return None
    for eqn in _equations(found, search):
        p = eqn.params
        here: dict[str, Any] = {}
        there: dict[str, Any] = {}
        if eqn.primitive.name == "conv_general_dilated":
            there = {
                "padding": [tuple(pair) for pair in p["padding"]],
                "stride": list(p["window_strides"]),
                "dilation": list(p["rhs_dilation"]),
            }
        elif eqn.primitive.name.startswith("reduce_window"):
            inner = [k for k, n in enumerate(p["window_dimensions"]) if n > 1]
            there = {
                "padding": [tuple(p["padding"][k]) for k in inner],
                "stride": [p["window_strides"][k] for k in inner],
            }
        if not there:
            continue
        n = len(there["stride"])
        padding = _each(options["padding"], n)
        here = {"padding": [(k, k) for k in padding], "stride": _each(options["stride"], n)}
        if "dilation" in there:
            here["dilation"] = _each(options.get("dilation", 1), n)
        differing = [
            f"{name} {here[name]} here, {value} there"
            for name, value in there.items()
            if here[name] != value
        ]
        if differing:
            return Cause("; ".join(differing), True)
    if options.get("count_include_pad") is not None:
        names = [eqn.primitive.name for eqn in _equations(found, search)]
        counts = "counts" if options["count_include_pad"] else "does not count"
        if any("div" in name for name in names):
            return Cause(f"the average {counts} the padding here, the other way there")
    return None


def _each(value: Any, n: int) -> list[int]:
    row = list(value) if isinstance(value, list | tuple) else [value]
    return row * n if len(row) == 1 else row


def _axis(found: Found, search: State) -> Cause | None:
    options = _options(found)
    if found.torch is None or "softmax" not in found.torch.op:
        return None
    axis = options.get("dim")
    for eqn in _equations(found, search):
        if eqn.primitive.name in ("reduce_max", "reduce_sum"):
            n = len(eqn.invars[0].aval.shape)
            there = eqn.params["axes"][0]
            if axis is not None and there != axis % n and n == len(options["self"].shape):
                return Cause(f"softmax over axis {axis % n} here, {there} there")
    return None


def _interpolation(found: Found, search: State) -> Cause | None:
    if found.torch is None or not found.torch.op.startswith("upsample"):
        return None
    kind = found.torch.op.removeprefix("upsample_").removeprefix("_").split(".")[0]
    if "aa" in found.torch.op:
        return Cause(f"{kind}: antialias is on here")
    if "bicubic" in kind:
        return Cause(
            "bicubic: coefficient -0.75 and no antialias here; jax.image.resize has -0.5, and "
            "antialias where it makes smaller"
        )
    return Cause(f"{kind}: no antialias here; jax.image.resize has it where it makes smaller")


def cause_of_numbers(found: Found) -> Cause | None:
    """Returns the mistake that the arrays of the joined values show."""
    if found.expected is None or found.got is None:
        return None
    return _turned(found.expected, found.got) or _shifted(found, found.expected, found.got)


def _numbers(found: Found, search: State) -> Cause | None:
    return found.numbers or cause_of_numbers(found)


def _turned(a: np.ndarray, b: np.ndarray) -> Cause | None:
    ours, theirs = ([x.max(), x.min()] if x.size else [0, 0] for x in (a, b))
    if not np.allclose(ours, theirs, rtol=1e-9, atol=1e-12):
        return None
    if a.size and np.allclose(np.sort(a, axis=None), np.sort(b, axis=None), rtol=1e-9, atol=1e-12):
        orders = itertools.permutations(range(a.ndim))
        if any(a.transpose(o).shape == b.shape and np.allclose(a.transpose(o), b) for o in orders):
            return Cause("transposed: the same numbers in another order")
        for axis in range(a.ndim):
            if np.allclose(np.sort(a, axis), np.sort(b, axis), rtol=1e-9, atol=1e-12):
                return Cause(f"the same numbers at other places along JAX's axis {axis}")
        return Cause("the same numbers at other places")
    return None


def _shifted(found: Found, a: np.ndarray, b: np.ndarray) -> Cause | None:
    """A factor, a summand, or one that varies along one axis."""
    if a.size < 4:
        return None
    with np.errstate(all="ignore"):
        ratio = a / b
        ratio = ratio[np.isfinite(ratio) & (np.abs(b) > 1e-3 * np.abs(b).max())]
    if ratio.size > 2 and np.ptp(ratio) <= 1e-7 * abs(ratio[0]) and abs(ratio[0] - 1) > SMALL:
        return _factor(float(ratio[0]), found)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    difference = a - b
    scale = float(np.abs(a).max()) or 1.0
    if np.ptp(difference) <= 1e-9 * scale:
        return Cause(f"torch's is greater by {difference.ravel()[0]:g} everywhere")
    for axis in range(a.ndim):
        others = tuple(k for k in range(a.ndim) if k != axis)
        if others and a.shape[axis] < a.size:
            spread = float(np.max(np.ptp(difference, axis=others)))
            if spread <= 1e-9 * scale:
                return Cause("a bias is added here and not there, or another one")
    return None


def _factor(ratio: float, found: Found) -> Cause:
    for n in _counts(found):
        if abs(ratio - n / (n - 1)) < 1e-9:
            return Cause(f"the variance over n − 1 here, over n there (n = {n})", True)
        if abs(ratio - (n - 1) / n) < 1e-9:
            return Cause(f"the variance over n here, over n − 1 there (n = {n})", True)
        root = math.sqrt(n / (n - 1))
        if abs(ratio - root) < 1e-9 or abs(ratio - 1 / root) < 1e-9:
            return Cause(f"a variance over n − 1 on one side, over n on the other (n = {n})", True)
    return Cause(f"a factor: torch's is {ratio:.6g} times that of JAX")


def _counts(found: Found) -> list[int]:
    counts = set()
    for value in _options(found).values():
        shape = tuple(getattr(value, "shape", ()))
        for first in range(len(shape)):
            counts.add(math.prod(shape[first:]))
        if len(shape) > 2:
            counts.add(shape[0] * math.prod(shape[2:]))
        counts.update(shape)
    return sorted(n for n in counts if n > 1)


def _dropout(found: Found, search: State) -> Cause | None:
    for step in _region(found, search):
        line = step.key[1]
        if line is not None and line in search.tape.random:
            return Cause(_drawn("there", line in search.dropout), True)
    if search.recording.random and found.torch is not None:
        line = found.torch.place.line if found.torch.place else None
        if line in search.recording.random:
            return Cause(_drawn("here", line in search.dropout), True)
    return None


def _drawn(side: str, is_dropout: bool) -> str:
    return f"random numbers are drawn {side}" + (": dropout is on" if is_dropout else "")


def _choice(found: Found, search: State) -> Cause | None:
    if found.torch is None or found.torch.printed is None or not found.torch.printed.is_whole:
        return None
    return found.numbers or Cause("other whole numbers, and no value behind them differs")


def cause_of_choice(expected: np.ndarray, got: np.ndarray) -> Cause:
    """Returns the first of two choices that differ although the numbers behind them are equal."""
    place = tuple(np.argwhere(expected != got)[0])
    text = f"chosen from equal numbers, first {expected[place]} here, {got[place]} there"
    return Cause(text, True)


_RULES: list[Callable[[Any, Any], Cause | None]] = [
    _dropout,
    _choice,
    _gradient,
    _rounding,
    _momentum,
    _activation,
    _eps,
    _window,
    _axis,
    _interpolation,
    _numbers,
]
