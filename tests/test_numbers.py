"""Arguments that are single numbers are refused with the same message in both frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

REFUSED: list[tuple[Any, str]] = [
    (None, "type NoneType"),
    ("0.5", "type str"),
    ([0.5], "type list"),
    (True, "type bool"),
    (0.5j, "type complex"),
    (np.True_, "dtype bool"),
    (np.complex64(0.5), "dtype complex64"),
    (np.asarray("0.5"), "dtype <U3"),
    (np.ones(1), "shape [1]"),
    (np.ones((2, 3), np.int32), "shape [2, 3]"),
]


def dropped(framework: Any, p: Any) -> Any:
    return framework.ops.bias_dropout_add(framework.array(np.ones((2, 4), np.float32)), p=p, seed=3)


def softmax(framework: Any, scale: Any) -> Any:
    return framework.ops.scaled_softmax(framework.array(np.ones((2, 4), np.float32)), scale)


@pytest.mark.parametrize(("value", "found"), REFUSED, ids=[found for _, found in REFUSED])
def test_what_is_no_number(framework: Any, value: Any, found: str) -> None:
    for _ in range(2):  # the second time too, with filled caches
        with pytest.raises(TypeError) as raised:
            dropped(framework, value)
        assert str(raised.value) == f"bias_dropout_add: p has {found}, expected a number"
        with pytest.raises(TypeError) as raised:
            softmax(framework, value)
        assert str(raised.value) == f"scaled_softmax: scale has {found}, expected a real number"


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 4)], ids=str)
def test_arrays_of_the_framework(framework: Any, shape: tuple[int, ...]) -> None:
    value = framework.array(np.ones(shape))
    with pytest.raises(TypeError) as raised:
        dropped(framework, value)
    assert str(raised.value) == f"bias_dropout_add: p has shape {list(shape)}, expected a number"
    with pytest.raises(TypeError) as raised:
        softmax(framework, value)
    expected = f"scaled_softmax: scale has shape {list(shape)}, expected a real number"
    assert str(raised.value) == expected


def test_out_of_range(framework: Any) -> None:
    for value, word in ((np.float32("nan"), "nan"), (10**400, "inf"), (-(10**400), "-inf")):
        expected = f"bias_dropout_add: p is {word}, expected a probability, from 0 to 1$"
        with pytest.raises(ValueError, match=expected):
            dropped(framework, value)
    for value, word in ((np.float32("nan"), "nan"), (np.float64("inf"), "inf")):
        expected = f"scaled_softmax: scale is {word}, expected a finite number$"
        with pytest.raises(ValueError, match=expected):
            softmax(framework, value)


def test_what_is_a_number(framework: Any) -> None:
    half = framework.numpy(dropped(framework, 0.5)), framework.numpy(softmax(framework, 0.5))
    for value in (np.float32(0.5), np.asarray(0.5), framework.array(np.asarray(0.5))):
        np.testing.assert_array_equal(framework.numpy(dropped(framework, value)), half[0])
        np.testing.assert_array_equal(framework.numpy(softmax(framework, value)), half[1])
    np.testing.assert_array_equal(framework.numpy(dropped(framework, 1)), np.zeros((2, 4)))
