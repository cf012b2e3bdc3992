"""Runs one case and compares: torch with JAX, with float64, and with other ways to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from bridge import _native
from bridge.cli.parity import accuracy, in_jax, in_torch
from bridge.cli.parity.accuracy import Errors
from bridge.cli.parity.grid import ROW_OPERANDS, Case, operands
from bridge.cli.parity.quantities import (
    Quantity,
    quantities_of,
    rounded_sum,
    true_values,
)

Array = np.ndarray

# Elements of a case that are compared with float64; bits are compared on all.
SAMPLE = 1 << 15


@dataclass
class Row:
    """One quantity of one case.

    Attributes:
      differing: elements whose bits differ between torch and JAX.
      variants: how the op was run besides (instruction set and threads, in pieces, on another
        device), and how many elements differ from the first run.
      torch, jax: errors of bridge's results; own_torch, own_jax: of the frameworks' own ops, where
        they are measured.
    """

    dtypes: str
    approximate: str
    quantity: str
    shape: list[int]
    layout: str
    values: str
    elements: int
    differing: int
    torch: Errors
    jax: Errors
    own_torch: Errors | None = None
    own_jax: Errors | None = None
    variants: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return (
            self.differing == 0
            and self.torch.passed
            and self.jax.passed
            and not any(self.variants.values())
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class Variant:
    """Another way to run that must give the same bits."""

    isa: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.isa}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def measure(
    case: Case, device: str, variants: Sequence[Variant] = (), own_quick: bool = False
) -> list[Row]:
    """Returns a row for every quantity of a case.

    Args:
      own_quick: measures value and gradients alone of the frameworks' own ops, which take long to
        compile.
    """
    given = operands(case)
    in_memory = in_torch.tensors(case, given, device)
    from_torch = _torch(case, in_memory)
    jitted = in_jax.compiled(in_jax.bridged(case.approximate), case)
    jax_operands = in_jax.arrays(given, jax.devices(device)[0])
    from_jax = _jax(jitted, jax_operands)

    others: dict[str, Mapping[str, Array]] = {}
    for variant in variants:
        with _as(variant):
            others[f"torch, {variant.name}"] = _torch(case, in_memory)
            others[f"JAX, {variant.name}"] = _jax(jitted, jax_operands)
            if len(case.place.shape) > 1:
                split = in_torch.pieces(in_torch.bridged(case.approximate), in_memory)
                others[f"torch in pieces, {variant.name}"] = _numpy(split)
    if device == "cuda":
        others["CPU"] = _torch(case, in_torch.tensors(case, given, "cpu"))

    own: list[Mapping[str, Array]] = [{}, {}]
    if case.place.own and case.bias == case.x:
        wanted = ("forward", "dx", "dbias") if own_quick else None
        jitted = in_jax.compiled(in_jax.own(case.approximate), case, wanted)
        own = [_own_torch(case, in_memory), _jax(jitted, jax_operands)]
        if wanted is not None:
            own[0] = {name: own[0][name] for name in wanted}

    judge = _Judge(case, given)
    rows = []
    for name, quantity in quantities_of(case).items():
        of_own = [judge.errors(quantity, part[name]) if name in part else None for part in own]
        rows.append(
            Row(
                case.dtypes,
                case.approximate,
                name,
                list(case.place.shape),
                case.place.layout.name,
                case.place.values,
                from_torch[name].size,
                differing_bits(from_torch[name], from_jax[name]),
                judge.errors(quantity, from_torch[name]),
                judge.errors(quantity, from_jax[name]),
                own_torch=of_own[0],
                own_jax=of_own[1],
                variants={
                    how: differing_bits(from_torch[name], other[name])
                    for how, other in others.items()
                    if name in other
                },
            )
        )
    return rows


def differing_bits(a: Array, b: Array) -> int:
    """Counts elements that are not the same bits; all, where shape or dtype differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.size, b.size, 1)
    unsigned = f"u{a.itemsize}"
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return int(np.count_nonzero(a.view(unsigned) != b.view(unsigned)))


class _Judge:
    """True values of a case, on a sample where the case is large."""

    def __init__(self, case: Case, given: Mapping[str, Array | None]) -> None:
        self.case = case
        columns = case.place.shape[-1]
        rows = int(np.prod(case.place.shape[:-1]))
        self.flat: dict[str, Array | None] = {}
        for name, array in given.items():
            if array is None or name in ROW_OPERANDS:
                self.flat[name] = array
                continue
            if name in ("x", "g"):
                array = case.place.layout.view(array, case.place.shape)
            self.flat[name] = np.ascontiguousarray(array).reshape(rows, columns)
        self.rows, self.columns = rows, columns
        few_rows = _spread(rows, SAMPLE // max(columns, 1))
        few_columns = _spread(columns, SAMPLE // max(rows, 1))
        everything = slice(None)
        self.samples = {False: (few_rows, everything), True: (everything, few_columns)}
        self.known: dict[bool, tuple[dict[str, Array | None], Array, dict[int, Array]]] = {}

    def errors(self, quantity: Quantity, result: Array) -> Errors:
        summed = quantity.column_sum
        rows, columns = self.samples[summed]
        if summed not in self.known:
            part = {
                name: None if a is None else (a[columns] if a.ndim == 1 else a[rows][:, columns])
                for name, a in self.flat.items()
            }
            pair = [a for a in (part["x"], part["bias"]) if a is not None]
            h = rounded_sum(pair, self.case.arithmetic)
            with np.errstate(all="ignore"):
                derivatives = accuracy.derivatives(h, self.case.approximate)
            self.known[summed] = part, h, derivatives
        with np.errstate(all="ignore"):
            true = true_values(quantity, *self.known[summed], self.case)
            dtype = self.case.dtype_of(quantity.like)
            assert dtype is not None
            if summed:
                return accuracy.of_sums(result[columns], true, dtype, self.case.arithmetic)
            flat = result.reshape(self.rows, self.columns)
            return accuracy.of_elements(flat[rows], true, dtype)


def _spread(size: int, count: int) -> Any:
    """Up to `count` of the indices below `size`, both ends included, spread evenly."""
    if size <= count:
        return slice(None)
    return np.unique(np.linspace(0, size - 1, max(count, 2)).astype(int))


def _numpy(results: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: in_torch.to_numpy(result) for name, result in results.items()}


def _torch(case: Case, p: Mapping[str, Any]) -> dict[str, Array]:
    return _numpy(in_torch.quantities(in_torch.bridged(case.approximate), p))


def _own_torch(case: Case, p: Mapping[str, Any]) -> dict[str, Array]:
    return _numpy(in_torch.quantities(in_torch.own(case.approximate), p, False))


def _jax(function: Any, p: Mapping[str, Any]) -> dict[str, Array]:
    return {name: in_jax.to_numpy(result) for name, result in function(p).items()}


class _as:
    """Runs the body under an instruction set and thread count."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    def __enter__(self) -> None:
        self.isa, self.threads = _native.cpu_isa(), torch.get_num_threads()
        _native.set_cpu_isa(self.variant.isa)
        torch.set_num_threads(self.variant.threads)

    def __exit__(self, *_: object) -> None:
        _native.set_cpu_isa(self.isa)
        torch.set_num_threads(self.threads)


def measure_all(
    cases: Sequence[Case], device: str, variants: Sequence[Variant] = (), own_quick: bool = False
) -> Iterator[list[Row]]:
    """Yields the rows of each case in turn. float64 in JAX is switched on for the time of it."""
    for case in cases:
        with jax.enable_x64(True):
            rows = measure(case, device, variants, own_quick)
        yield rows
