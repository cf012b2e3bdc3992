"""The promises of a declared op. Each is a function that yields the name of each comparison."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bridge import _native
from bridge.checked.arrays import Array, Arrays
from bridge.checked.comparisons import hold_close, hold_same
from bridge.checked.derivatives import forward_mode, higher_order, reverse_mode, transpose
from bridge.checked.example import Example
from bridge.checked.roundings import hold_right, names_of_pulled
from bridge.lang import codes, roles
from bridge.lang.dtypes import DTYPES, FLOATING

_MIXES = (("bfloat16", "float32"), ("float32", "float16", "bfloat16"), ("float64", "float16"))


class DoesNotApplyError(Exception):
    """A promise does not apply to this op, for the reason in the message."""


def _bits(e: Example) -> Iterator[str]:
    if len(e.frameworks) == 1:
        raise DoesNotApplyError(f"{e.frameworks[0].name} alone is installed")
    e.pulled("value and gradients", e.arrays, e.cotangents(e.arrays))
    yield "value and gradients"


def _numpy(e: Example) -> Iterator[str]:
    # NumPy has bfloat16 only with ml_dtypes, which may not be installed.
    has_bfloat16 = any(array.dtype == "bfloat16" for array in e.arrays)
    arrays = e.cast(["float32"]) if has_bfloat16 else e.arrays
    found = [Array.of(result) for result in e.numpy(*[array.data for array in arrays])]
    expected = e.pulled("value and gradients", arrays, e.cotangents(arrays))[: len(found)]
    hold_same(f"{e.frameworks[0].name} and NumPy", expected, found)
    yield "value"


def _threads(e: Example) -> Iterator[str]:
    # A call uses one more thread for every 32 Ki elements: three of them here.
    rows = -(-(3 << 15) // max(e.space[-1], 1))
    arrays = e.resized((*(1 for _ in e.space[2:]), rows, e.space[-1]) if e.space[1:] else e.space)
    cotangents = e.cotangents(arrays)
    in_torch: Any = next((f for f in e.frameworks if f.name == "torch"), None)
    kept, first = _native.build_info()["cpu_isa"], None
    try:
        for isa in _native.build_info()["cpu_isas"]:
            try:
                _native.set_cpu_isa(isa)
            except ValueError:
                continue  # compiled in, and this processor lacks it
            found = [(isa, e.pulled(isa, arrays, cotangents))]
            for count in (1, 3) if in_torch else ():
                others = in_torch.pulled_on(count, arrays, cotangents)
                found.append((f"{isa}, {count} threads", others))
            first = first or found[0]
            for what, other in found:
                hold_same(f"{first[0]} and {what}", first[1], other)
                yield what
    finally:
        _native.set_cpu_isa(kept)


def _row_alone(e: Example) -> Iterator[str]:
    if codes.draws(e.program):
        raise DoesNotApplyError("random words are numbered by element of the whole array")
    cotangents = e.cotangents(e.arrays)
    whole = e.pulled("the batch", e.arrays, cotangents)
    own = [operand.role for operand in e.program.operands]
    of_results = [result.role for result in e.program.results]
    of_all = [*of_results, *(own[i] for i in e.smooth)]
    chosen = [i for i, role in enumerate(of_all) if role not in (roles.Row, roles.Table)]
    rows = [*np.ndindex(e.space[:-1])]
    for index in rows[:: max(1, len(rows) // 8)]:
        given = [
            c if role is roles.Row else e.row([c], [role], index)[0]
            for c, role in zip(cotangents, of_results, strict=True)
        ]
        alone = e.pulled(f"row {index}", e.row(e.arrays, own, index), given)
        part = e.row(whole, of_all, index)
        hold_same(
            f"row {list(index)} in its batch and alone",
            [part[i] for i in chosen],
            [alone[i] for i in chosen],
        )
        yield f"row {list(index)}"


def _vmap(e: Example) -> Iterator[str]:
    own = [operand.role for operand in e.program.operands]
    may = [role is not roles.Integer for role in own]
    choices = [may, *([i == j for i in range(len(own))] for j in range(len(own)) if may[j])]
    choices.append([False] * len(own))
    batches = [[_rolled(a, step) for a in e.arrays] for step in range(3)]
    cotangents = [e.cotangents(e.arrays) for _ in batches]
    stacked = _stacked(batches)
    for batched in dict.fromkeys(map(tuple, choices)):
        given = [
            [b if has else a for a, b, has in zip(e.arrays, batch, batched, strict=True)]
            for batch in batches
        ]
        looped = [e.pulled("a loop", *each) for each in zip(given, cotangents, strict=True)]
        arrays = [s if has else a for a, s, has in zip(e.arrays, stacked, batched, strict=True)]
        names = [o.name for o, has in zip(e.program.operands, batched, strict=True) if has]
        for framework in e.frameworks:
            found = framework.mapped(arrays, _stacked(cotangents), batched)
            what = f"{framework.name} over {', '.join([*names, 'cotangents'])}"
            hold_same(f"{what}: vmap and a loop", found, _stacked(looped))
            yield what


def _rolled(array: Array, step: int) -> Array:
    return Array(array.dtype, np.roll(array.data, step))


def _stacked(batches: Sequence[Arrays]) -> list[Array]:
    return [
        Array(parts[0].dtype, np.stack([part.data for part in parts]))
        for parts in zip(*batches, strict=True)
    ]


def _compilers(e: Example) -> Iterator[str]:
    cotangents = e.cotangents(e.arrays)
    for framework in e.frameworks:
        plain = framework.pulled(e.arrays, cotangents)
        for name, found in framework.compiled(e.arrays, cotangents):
            hold_same(f"{framework.name} and {name}", plain, found)
            yield name


def _unwritten(e: Example, what: str, arrays: Arrays, cotangents: Arrays) -> list[Array]:
    """Returns `pulled`, and checks that the operands keep their bits."""
    given = (*arrays, *cotangents)
    copies = [Array(array.dtype, array.data.copy()) for array in given]

    def run(framework: Any) -> list[Array]:
        found: list[Array] = framework.pulled(arrays, cotangents)
        hold_same(f"{what}: operands before and after {framework.name}", copies, given)
        return found

    return e.same(what, run)


def _gapped(data: Any) -> Any:
    wide = np.repeat(data, 2, axis=-1)
    return wide[..., ::2]


def _swapped(data: Any) -> Any:
    return np.array(data.T, order="C").T


def _expanded(data: Any) -> Any:
    strides = (0, *data.strides[1:])
    return np.lib.stride_tricks.as_strided(data[:1].copy(), data.shape, strides)


def _layouts(e: Example) -> Iterator[str]:
    cotangents = e.cotangents(e.arrays)
    for lay in (_gapped, _swapped, _expanded):
        laid, given = (
            [
                Array(a.dtype, lay(np.array(a.data, order="C")) if a.data.ndim else a.data)
                for a in arrays
            ]
            for arrays in (e.arrays, cotangents)
        )
        plain, weights = (
            [Array(a.dtype, np.array(a.data, order="C")) for a in arrays]
            for arrays in (laid, given)
        )
        expected = e.pulled("contiguous", plain, weights)
        what = lay.__name__.strip("_")
        hold_same(f"{what} and contiguous", _unwritten(e, what, laid, given), expected)
        yield what


def _dtypes(e: Example) -> Iterator[str]:
    mixes = _MIXES if len(e.smooth) > 1 else ()
    for dtypes in (*((dtype,) for dtype in FLOATING), *mixes):
        what = ", ".join(dtypes)
        hold_right(e, what, e.cast(dtypes))
        yield what


def _special_values(e: Example) -> Iterator[str]:
    kinds = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "0": 0.0, "-0": -0.0, "subnormal": None}
    for what, number in kinds.items():
        cotangents = e.cotangents(e.arrays)
        given = []
        for i, array in enumerate((*e.arrays, *cotangents)):
            data = array.data.copy()
            if i in e.smooth or i >= len(e.arrays):
                # In about every third row.
                count = -(-data.size // (3 * max(data.shape[-1:] or (1,))))
                places = e.rng.choice(data.size, count, replace=False)
                value = 3 * DTYPES[array.dtype].smallest if number is None else number
                data.reshape(-1)[places] = Array.rounded(value, array.dtype).data
            given.append(Array(array.dtype, data))
        operands, weights = given[: len(e.arrays)], given[len(e.arrays) :]
        found = _unwritten(e, what, operands, weights)
        yield what
        if number is None:
            continue  # its reciprocal is infinite in float32, not in float64
        names = names_of_pulled(e, what, len(weights))
        for name, array, right in zip(names, found, e.exact(operands, weights), strict=True):
            one, other = (np.isnan(values).astype(float) for values in (array.values, right))
            hold_close(f"{name}, 1 where it is NaN", one, other, 0.0)
            yield f"{what}: places of NaN"


def _sizes(e: Example) -> Iterator[str]:
    *rows, columns = e.space
    spaces = {"no columns": (*rows, 0), "one column": (*rows, 1), "1025 columns": (*rows, 1025)}
    if rows:
        spaces["no rows"] = (0, *rows[1:], columns)
        spaces["one row"] = (*(1 for _ in rows), columns)
    for what, space in spaces.items():
        hold_right(e, what, e.resized(space))
        yield what


PROMISES: dict[str, Callable[[Example], Iterator[str]]] = {
    "torch has the bits of JAX": _bits,
    "NumPy arrays": _numpy,
    "instruction sets and threads": _threads,
    "a row alone": _row_alone,
    "reverse mode": reverse_mode,
    "reverse is transposed forward": transpose,
    "forward mode": forward_mode,
    "second order": functools.partial(higher_order, 2),
    "third order": functools.partial(higher_order, 3),
    "vmap": _vmap,
    "compilers": _compilers,
    "layouts": _layouts,
    "dtypes": _dtypes,
    "special values": _special_values,
    "sizes": _sizes,
}
