"""The reason why logsumexp of split columns needs two exchanges: docs/sharding.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.lang import codes, functions, roles
from bridge.lang.applied import apply
from bridge.lang.tracing import declared, trace
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.torch._adapter.dispatcher import dispatch


def terms(x: roles.Full, largest: roles.PerRow) -> Any:
    return apply("log_sum_term", x, largest)


def sums(x: roles.Full, largest: roles.PerRow) -> Any:
    return functions.sum(terms(x, largest))


def result(x: roles.Full, sum: roles.PerRow, count: roles.PerRow, largest: roles.PerRow) -> Any:
    return apply("log_sum", sum, count, largest)


def run(function: Callable[..., Any], *operands: Tensor) -> tuple[Tensor, ...]:
    """Returns the result of a stage with this function; stages have no derivatives."""
    program = trace(declared(function), [True] * len(operands), {})
    count, columns = len(program.results), operands[0].shape[-1]
    code = codes.stage(codes.code_of(program), (True,) * count, 0, columns, True)
    params = ProgramParams(code, "float32", ",".join(["float32"] * count))
    return dispatch(PROGRAM, operands, params)  # type: ignore[no-any-return]


def brought_to(largest: Tensor, own: Tensor) -> Tensor:
    """Returns the power of two between the shift of a part and the shift of the row."""
    exponent, own_exponent = (torch.round(x.double() * np.log2(np.e)) for x in (largest, own))
    return torch.exp2(own_exponent - exponent).float()


def test_terms_under_another_shift_are_the_same_but_for_a_power_of_two(
    rng: np.random.Generator,
) -> None:
    for centre, is_same in ((0.0, True), (400.0, True), (600.0, False)):
        x = torch.tensor(rng.standard_normal((50, 1024)) * 4 + centre, dtype=torch.float32)
        own = x.amax(-1)
        largest = own + torch.tensor(rng.random(50) * 9, dtype=torch.float32)
        (found,), (expected,) = run(terms, x, own), run(terms, x, largest)
        same = found * brought_to(largest, own)[:, None] == expected
        assert bool(same[x < own[:, None]].all()) is is_same


def test_sums_under_a_shift_of_each_part_have_other_bits() -> None:
    """The largest number of a part is added after its others, not in its place among them."""
    rng, rows = np.random.default_rng(0), 20000
    parts = [
        torch.tensor(rng.standard_normal((rows, 1024)) * 4, dtype=torch.float32) for _ in range(2)
    ]
    own = [x.amax(-1) for x in parts]
    largest = torch.maximum(*own)
    expected, found = torch.zeros(rows), torch.zeros(rows)
    for x, shift in zip(parts, own, strict=True):
        expected += run(sums, x, largest)[0]
        (alone,) = run(terms, shift[:, None], largest)
        found += run(sums, x, shift)[0] * brought_to(largest, shift) + alone[:, 0]
    count = torch.ones(rows)
    (a,), (b,) = (run(result, parts[0], each, count, largest) for each in (expected, found))
    torch.testing.assert_close(a, b)
    assert (found != expected).double().mean() > 0.1
    assert (a != b).any()
