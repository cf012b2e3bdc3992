"""Runs one case and compares torch with JAX, both with float64, and with other ways to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import jax
import numpy as np
import torch

import bridge.jax
import bridge.torch
from bridge.cli.parity import in_jax, in_torch
from bridge.cli.parity.accuracy import Errors
from bridge.cli.parity.bounded_judge import BoundedJudge, judge_of
from bridge.cli.parity.grid import Case
from bridge.cli.parity.judge import Judge
from bridge.cli.parity.setting import Variant

Array = np.ndarray
Results = Mapping[str, Array]


@dataclass
class Row:
    """One quantity of one case.

    Attributes:
      values: the kind of values, and other text that distinguishes the place.
      differing: the number of elements whose bits differ between torch and JAX.
      variants: other ways to run the op (instruction set and threads, in pieces, mapped, on another
        device, with its rows on several), with the number of elements that differ from the first
        run.
      torch, jax: the errors of bridge's results.
      own_torch, own_jax: the errors of the frameworks' own ops, if measured.
    """

    op: str
    dtypes: str
    form: str
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


def measure(
    case: Case, device: str, variants: Sequence[Variant] = (), own_quick: bool = False
) -> list[Row]:
    """Returns a row for every quantity of a case.

    Args:
      own_quick: True to measure only value and gradients of the frameworks' own ops, which take
        long to compile.
    """
    given = case.operands()
    tensors = in_torch.tensors(case, given, device)
    arrays = in_jax.arrays(given, jax.devices(device)[0])
    jitted = in_jax.compiled(_in_jax(case), case)
    from_torch, from_jax = _torch(case, tensors), _jax(jitted, arrays)

    others: dict[str, Results] = {}
    for variant in variants:
        with variant.set():
            others[f"torch, {variant.name}"] = _torch(case, tensors)
            others[f"JAX, {variant.name}"] = _jax(jitted, arrays)
            if case.split:
                split = in_torch.pieces(_in_torch(case), case, tensors)
                others[f"torch in pieces, {variant.name}"] = _numpy(split)
    if case.mapped:
        mapped = in_torch.mapped(_in_torch(case), case, tensors)
        others["torch, vmap"] = _numpy(mapped)
        others["JAX, vmap"] = _jax(in_jax.mapped(_in_jax(case), case), arrays)
    if shards := in_jax.shards_of(case, device):
        first_order = in_jax.compiled(_in_jax(case), case, first_order=True)
        parts = in_jax.sharded(case, given, shards)
        others[f"JAX, rows on {len(shards)} devices"] = _jax(first_order, parts)
    if device == "cuda":
        others["CPU"] = _torch(case, in_torch.tensors(case, given, "cpu"))

    own: list[Results] = [{}, {}]
    if case.own:
        own_jax = in_jax.compiled(case.own_jax, case, first_order=own_quick)
        own = [_own_torch(case, tensors), _jax(own_jax, arrays)]

    def differing_in(name: str, other: Results) -> int:
        return differing_bits(case.compared(from_torch[name]), case.compared(other[name]))

    judge = judge_of(case, given)
    rows = []
    for name in case.quantities:
        differing = differing_in(name, from_jax)
        errors = _errors(judge, name, from_torch)
        both = [name in part for part in own]
        rows.append(
            Row(
                case.op,
                case.dtypes,
                case.form,
                name,
                list(case.place.shape),
                case.place.layout.name,
                case.place.label.removeprefix(f"{case.place.layout.name}, "),
                from_torch[name].size,
                differing,
                errors,
                _errors(judge, name, from_jax) if differing else errors,
                own_torch=judge.errors(name, own[0]) if all(both) else None,
                own_jax=judge.errors(name, own[1]) if all(both) else None,
                variants={
                    how: differing_in(name, other) for how, other in others.items() if name in other
                },
            )
        )
    return rows


def _errors(judge: Judge | BoundedJudge, name: str, results: Results) -> Errors:
    """Returns the errors of bridge's results, including differences from bits that are promised."""
    errors = judge.errors(name, results)
    return replace(errors, wrong=errors.wrong + judge.misplaced(results[name]))


def differing_bits(a: Array, b: Array) -> int:
    """Counts elements whose bits differ; all of them if shape or dtype differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.size, b.size, 1)
    unsigned = f"u{a.itemsize}"
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return int(np.count_nonzero(a.view(unsigned) != b.view(unsigned)))


def _in_torch(case: Case) -> in_torch.Function:
    return lambda p: case.call(bridge.torch, p)


def _in_jax(case: Case) -> in_jax.Function:
    return lambda p: case.call(bridge.jax, p)


def _numpy(results: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: in_torch.to_numpy(result) for name, result in results.items()}


def _torch(case: Case, p: Mapping[str, Any]) -> dict[str, Array]:
    return _numpy(in_torch.quantities(_in_torch(case), case, p))


def _own_torch(case: Case, p: Mapping[str, Any]) -> dict[str, Array]:
    return _numpy(in_torch.quantities(case.own_torch, case, p, forward_over_reverse=False))


def _jax(function: Any, p: Mapping[str, Any]) -> dict[str, Array]:
    return {name: in_jax.to_numpy(result) for name, result in function(p).items()}


def in_json(
    case: Case, device: str, variants: Sequence[Variant] = (), own_quick: bool = False
) -> list[dict[str, Any]]:
    """Returns the rows in JSON's types.

    Meanwhile JAX has float64, and on a GPU its matrix products use all digits of float32, like
    torch.
    """
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        return [row.to_json() for row in measure(case, device, variants, own_quick)]
