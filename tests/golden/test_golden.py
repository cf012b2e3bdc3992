"""Every result has the bits stored in bits.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bridge import _native
from tests.cases import Case, Inputs
from tests.frameworks import FRAMEWORKS
from tests.golden.results import BITS, every, hashes, inputs_of

pytestmark = pytest.mark.whole
GOLDEN: dict[str, list[str]] = json.loads(BITS.read_text())
EVERY = list(every())
CASES = pytest.mark.parametrize(("name", "case", "dtypes"), EVERY, ids=[name for name, *_ in EVERY])


@pytest.fixture(params=_native.build_info()["cpu_isas"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        _native.set_cpu_isa(request.param)
    except ValueError:
        pytest.skip(f"this processor does not run {request.param}")
    yield request.param
    _native.set_cpu_isa(None)


def test_the_file_is_of_these_cases() -> None:
    assert list(GOLDEN) == [name for name, *_ in EVERY]


@CASES
def test_torch(isa: str, name: str, case: Case, dtypes: tuple[str, ...]) -> None:
    assert hashes(FRAMEWORKS[0], case, inputs_of(case, dtypes)) == GOLDEN[name]


@pytest.mark.sampled(len(EVERY) // 4)
@CASES
def test_jax(name: str, case: Case, dtypes: tuple[str, ...]) -> None:
    assert hashes(FRAMEWORKS[1], case, inputs_of(case, dtypes)) == GOLDEN[name]


def apart(array: Any) -> Any:
    """Returns the same numbers with a gap after each."""
    if array.ndim == 0:
        return array
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 77, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def swapped(array: Any) -> Any:
    """Returns the same numbers with the first dimension innermost."""
    # NumPy's function gives an array without dimensions one.
    return np.ascontiguousarray(array.T).T.reshape(array.shape)


@pytest.mark.parametrize("lay", [apart, swapped], ids=["apart", "swapped"])
@CASES
def test_layouts(lay: Any, name: str, case: Case, dtypes: tuple[str, ...]) -> None:
    inputs = inputs_of(case, dtypes)
    laid: dict[str, Any] = {
        field: [lay(array) for array in value] if isinstance(value, list) else lay(value)
        for field, value in vars(inputs).items()
    }
    assert hashes(FRAMEWORKS[0], case, Inputs(**laid)) == GOLDEN[name]


def test_a_bit_that_is_changed_is_seen() -> None:
    name, case, dtypes = next(found for found in EVERY if "(127" in repr(found[1]))
    inputs = inputs_of(case, dtypes)
    changed = [array.copy() for array in inputs.arguments]
    changed[0].reshape(-1)[5] = np.nextafter(changed[0].reshape(-1)[5], changed[0].dtype.type(9))
    other = dataclasses.replace(inputs, arguments=changed)
    assert hashes(FRAMEWORKS[0], case, other)[0] != GOLDEN[name][0]
