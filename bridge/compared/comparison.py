"""`bridge.compare`: where a JAX port parts from its PyTorch original."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from bridge.compared import arguments
from bridge.compared.axes import error_of, in_order, order_of
from bridge.compared.causes import cause_of
from bridge.compared.conditioning import cancelled
from bridge.compared.found import SMALL, Found
from bridge.compared.recording.fingerprints import EQUAL
from bridge.compared.recording.jax_run import JaxSide
from bridge.compared.recording.torch_run import TorchSide, as_array, tensors_of
from bridge.compared.recording.values import Value
from bridge.compared.report import Part, Place, Report, Row
from bridge.compared.search import Search, begin

NARROW = "a constant or a table is held in float32"
SURE = 1e-7  # the same where both sides' constants were read and differ


def compare(
    torch_model: Any,
    jax_function: Any,
    *inputs: Any,
    torch_inputs: Any = None,
    jax_inputs: Any = None,
    gradients: bool = False,
    dtype: str = "float64",
) -> Report:
    """Finds the lines where a JAX port computes something else than its PyTorch original.

    Both models run in float64 on the same numbers, on copies of their parameters. Values are
    paired by the numbers that they hold, so neither names nor layouts need to agree.

    Args:
      torch_model: a `torch.nn.Module`, or a function that calls one.
      jax_function: any callable: a function, an nnx, Equinox or bound Linen module.
      inputs: arrays of NumPy, PyTorch or JAX, given to both.
      torch_inputs: a dict of keywords for torch beside `inputs`, or a tuple instead of them.
      jax_inputs: the same for JAX, where it takes another layout or other arguments.
      gradients: also compare the gradients of the sum of the outputs times fixed random numbers.
      dtype: the dtype of the run, "float64".

    Returns:
      A `Report`.

    Raises:
      TypeError: a model is not callable, or has no floating-point values.
      ValueError: the models lie on different devices, do not take the inputs, return different
        numbers of outputs, or change their parameters; or nothing could be paired.
    """
    arguments.check_models(torch_model, jax_function, dtype)
    args, kwargs = arguments.split(inputs, torch_inputs, "torch_inputs", arguments.to_tensors)
    torch_side = TorchSide(torch_model, args, kwargs, True)
    args, kwargs = arguments.split(inputs, jax_inputs, "jax_inputs", arguments.to_arrays)
    jax_side = JaxSide(jax_function, args, kwargs, True)
    arguments.check_devices(torch_model, jax_side.lifted.arrays, args, kwargs)
    report = Report()
    own = _run_as_they_are(torch_side, jax_side, report)
    if gradients:
        torch_side.cotangents, jax_side.cotangents = _cotangents(own)
    search = begin(torch_side, jax_side)
    _check_pairs(search)
    report.error = _output_error(search)
    search.run()
    _collect(search, report)
    return report


def _run_as_they_are(
    torch_side: TorchSide, jax_side: JaxSide, report: Report
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs both in their own dtype, counts outputs that differ; returns those of both."""
    with torch.random.fork_rng(devices=[]):
        ours = [as_array(t) for t in tensors_of(_called("torch_model", torch_side.run))]
    theirs = [np.asarray(a) for a in _called("jax_function", jax_side.run)]
    if len(ours) != len(theirs):
        raise ValueError(
            f"torch_model returns {len(ours)} tensors and jax_function {len(theirs)} arrays; "
            "compare needs the same number in the same order: wrap one in a lambda that picks them"
        )
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.size != b.size:
            raise ValueError(
                f"output {k} of torch_model has shape {a.shape} and that of jax_function {b.shape};"
                " compare needs the same number of elements"
            )
        _count(report, k, a, b)
    report.same_bits = report.differing == 0
    return list(zip(ours, theirs, strict=True))


def _called(name: str, run: Any) -> Any:
    try:
        return run()
    except (TypeError, ValueError, RuntimeError, LookupError, AssertionError) as error:
        if str(error).startswith(name):
            raise
        text = str(error).strip().splitlines()
        raise ValueError(
            f"{name} does not take the inputs: {text[0] if text else type(error).__name__}; give "
            f"it its own with {name.split('_')[0]}_inputs="
        ) from error


def _count(report: Report, k: int, a: np.ndarray, b: np.ndarray) -> None:
    report.outputs += a.size
    if a.dtype.kind in "biu" or b.dtype.kind in "biu":
        b = b.reshape(a.shape)
        differing = np.argwhere(a != b)
        report.differing += len(differing)
        if len(differing):
            # The last axis is that of the text: the earliest token of all rows comes first.
            place = min((tuple(map(int, row)) for row in differing), key=lambda row: row[::-1])
            at = place[0] if len(place) == 1 else place
            report.tokens.append(
                f"output {k}: {len(differing)} of {a.size} tokens or other whole numbers differ, "
                f"first at {at}: {a[place]} here, {b[place]} there"
            )
        return
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    order = order_of(a64, b64)
    turned = a64.reshape(b64.shape) if order is None else in_order(a64, order, b64.shape)
    differs = (turned != b64) & ~(np.isnan(turned) & np.isnan(b64))
    report.differing += int(differs.sum())
    report.own_error = max(report.own_error, error_of(turned, b64))


def _cotangents(
    outputs: list[tuple[np.ndarray, np.ndarray]],
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the same random numbers for the outputs of both sides, each in its layout."""
    random = np.random.default_rng(0)
    ours, theirs = [], []
    for a, b in outputs:
        if a.dtype.kind in "fcV":
            ours.append(random.standard_normal(a.shape))
            order = order_of(a.astype(np.float64), b.astype(np.float64))
            turned = ours[-1] if order is None else in_order(ours[-1], order, b.shape)
            theirs.append(turned.reshape(b.shape))
    return ours, theirs


def _check_pairs(search: Search) -> None:
    kinds = {v.index for v in search.recording.values if v.kind in ("op", "move", "fine")}
    inputs = [v for v in search.recording.values if v.kind == "leaf" and v.tells]
    some = sum(v.index in search.torch_pairs for v in inputs)
    # A port that is wrong from its first operation on still has the parameters of its original.
    if kinds & set(search.torch_pairs) or some > 1 or not inputs:
        return
    raise ValueError(
        f"nothing could be paired: {some} of {len(inputs)} parameters and inputs of torch_model "
        f"are found in jax_function, and none of {len(kinds)} values computed from them; compare "
        "needs a port with the same parameters and inputs: check that the weights were copied"
    )


def _output_error(search: Search) -> float:
    """Returns the largest difference of two outputs by their fingerprints."""
    most = 0.0
    for t, j in zip(search.recording.outputs, search.tape.outputs, strict=True):
        a, b = search.recording.values[t].printed, search.tape.values[j].printed
        if a is not None and b is not None and not a.is_whole:
            most = max(most, a.distance(b))
    return most


def _collect(search: Search, report: Report) -> None:
    """Fills the report with parts and notes."""
    torch_parts, jax_parts = set(), set()
    for found in sorted(search.found, key=_place_of):
        cause = cause_of(found, search)
        part = _part(found, cause, search)
        torch_parts.add(found.torch.index if found.torch else -1)
        # In another layer the first wrong value is not looked for: the joined one stands for it.
        is_again = found.jax is not None and found.jax.index in jax_parts
        shown = found.jax_join if is_again else found.jax
        jax_parts.add(shown.index if shown else -1)
        if part.error < EQUAL and not found.rounded:
            continue
        if part.error < (SURE if cause.is_certain else SMALL):
            where = part.jax.source or part.torch.source
            note = (
                f"{part.error:.0e} of the scale at {where} ({part.jax.op or part.torch.op}): "
                + (cause.text or (NARROW if part.error >= EQUAL else "rounding"))
                + (f"; {found.rounded}" if found.rounded else "")
            )
            if note not in report.notes:
                report.notes.append(note)
            continue
        old = next((p for p in report.parts if _is_at(p, part)), None)
        if old is None:
            report.parts.append(part)
        else:
            old.count += 1
            old.error = max(old.error, part.error)
            old.cause = old.cause or part.cause
    report.gradients = list(search.parameters or dict.fromkeys(search.unpaired_gradients()[0]))
    if not report.parts:
        search.pair_nearly()
    report.paired = sum(search.recording.values[k].tells for k in search.torch_pairs)
    report.values = sum(v.tells for v in search.recording.values)
    _add_notes(search, report)
    report.rows = _rows(search, torch_parts, jax_parts)


def _place_of(found: Found) -> float:
    """Returns a key that puts parts in the order of execution in JAX."""
    return found.jax.index if found.jax else math.inf


def _is_at(old: Part, new: Part) -> bool:
    """True for parts of one line of JAX, in which the same operation of a side is wrong."""
    return old.jax.source == new.jax.source and (
        old.jax.op == new.jax.op or old.torch.op == new.torch.op
    )


def _add_notes(search: Search, report: Report) -> None:
    for side, forced in (("torch", search.recording.forced), ("JAX", search.tape.forced)):
        if forced:
            first = next(iter(forced))
            lines = f"{len(forced)} lines, first" if len(forced) > 1 else "one line,"
            report.notes.append(
                f"{side} casts to float32 at {lines} {first.source}; compare ran it in float64"
            )
    report.notes += cancelled(search)
    report.notes += search.boundaries
    report.notes += search.jax_side.notes
    for op, count in search.tape.narrow.items():
        report.notes.append(f"JAX's {op} has no float64 here and ran as it is ({count} times)")
    for side, random in (("torch", search.recording.random), ("JAX", search.tape.random)):
        switch = "model.eval()" if side == "torch" else "deterministic=True"
        for line in random:
            text = f"{side} draws random numbers at {line.source}: "
            if line in search.dropout:
                text += f"dropout is on, switch it off ({switch}) for a comparison"
            else:
                text += "the other side has others; give both the same numbers as an input"
            report.warnings.insert(0, text)
    if report.parts and not search.is_joined:
        report.notes.append(
            "behind the last part the two could not be joined again: mend the parts above and "
            "compare again"
        )


def _part(found: Found, cause: Any, search: Search) -> Part:
    here, there = Place(), Place()
    name = ""
    if found.torch is not None:
        place = found.torch.place
        line = place.line
        op = found.torch.op
        here = Place(place.module, op, line.source if line else "", line.code if line else "")
        name = place.module
    if found.jax is not None:
        line = found.jax.place
        there = Place(
            line.function if line else "",
            found.jax.op,
            line.source if line else "",
            line.code if line else "",
        )
        name = _recorded_name(found, search) or name
    return Part(here, there, found.error, 1, name, cause.text)


def _recorded_name(found: Found, search: Search) -> str:
    """Returns the name of the first recorded value that a part leads to.

    It is recorded at the latest behind the result of torch's operation that the part lies in.
    """
    assert found.jax is not None
    first = last = found.jax.index
    if found.jax_join is not None and found.torch_join is not None:
        result = found.torch_join.index
        while search.recording.values[result].kind == "fine":
            result += 1
        last = max(last, found.jax_join.index, search.torch_pairs.get(result, -1))
    below = {first}
    for value in search.tape.values[first:]:
        is_below = value.index == first or not below.isdisjoint(value.parents)
        if is_below and (value.index <= last or value.kind == "move"):
            if value.op == "name":
                return value.name
            below.add(value.index)
    return ""


def _rows(search: Search, torch_parts: set[int], jax_parts: set[int]) -> list[Row]:
    """Returns the values of both sides as the page shows them."""
    rows = []

    def add(side: str, value: Value, line: Any, partner: int, is_part: bool) -> None:
        if (value.kind in ("op", "leaf") and value.tells) or is_part:
            source, code = (line.source, line.code) if line else (value.name, "")
            rows.append(
                Row(side, value.index, value.op, value.shape, source, code, partner, is_part)
            )

    for value in search.recording.values:
        line = value.place.line if value.place else None
        partner = search.torch_pairs.get(value.index, -1)
        add("torch", value, line, partner, value.index in torch_parts)
    for value in search.tape.values:
        partner = search.jax_pairs.get(value.index, -1)
        add("jax", value, value.place, partner, value.index in jax_parts)
    return rows
