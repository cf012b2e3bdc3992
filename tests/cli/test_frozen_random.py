"""The numbers of parity's operands depend on no package and no machine."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest

from bridge.cli.entries import rounded
from bridge.cli.frozen_random import FrozenRandom
from bridge.cli.parity.places import NUMPY


def words(seed: str, call: int, count: int) -> list[int]:
    found = hashlib.shake_128(f"{seed} {call}".encode()).digest(8 * count)
    return [int.from_bytes(found[i : i + 8], "little") for i in range(0, 8 * count, 8)]


def nearest(number: Fraction) -> float:
    return number.numerator / number.denominator  # Python rounds once


def test_numbers_follow_from_the_standard():
    """Python's integers and fractions compute the same numbers."""
    random = FrozenRandom("a seed")
    uniform = random.random((3, 5))
    assert uniform.ravel().tolist() == [word // 2**11 / 2**53 for word in words("a seed", 1, 15)]
    drawn = random.integers(-7, 64, (4,))
    assert drawn.tolist() == [word % 71 - 7 for word in words("a seed", 2, 4)]
    whole = random.integers(-(2**63), 2**63 - 1, (6,), endpoint=True)
    signed = [word - 2**64 if word >= 2**63 else word for word in words("a seed", 3, 6)]
    assert [number % 2**64 for number in whole.tolist()] == [
        (number - 2**63) % 2**64 for number in signed
    ]
    chosen = random.choice([-1, 1], (9,))
    assert chosen.tolist() == [(-1, 1)[word % 2] for word in words("a seed", 4, 9)]
    normal = random.standard_normal((7,))
    drawn = np.array(words("a seed", 5, 28), object).reshape(4, 7)
    sums = (drawn // 4 - 2**61).sum(0)
    assert normal.tolist() == [
        nearest(Fraction(float(total)) * Fraction(math.sqrt(3.0)) / 2**62) for total in sums
    ]


def test_the_numbers_of_a_seed_stay():
    random = FrozenRandom("1 log_softmax float32 161x129")
    assert random.standard_normal((2,)).tolist() == STORED
    assert FrozenRandom("2").random((3,)).tolist() != FrozenRandom("1").random((3,)).tolist()


STORED = [0.9826431498885111, -0.03639482960043622]


def test_normal_numbers_have_mean_0_and_variance_1():
    numbers = FrozenRandom("a").standard_normal((200_000,))
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.var() - 1) < 0.01
    assert 3.0 < np.abs(numbers).max() < 2 * math.sqrt(3.0)


def test_shapes_without_dimension_or_elements():
    random = FrozenRandom("a")
    for draw in (random.random, random.standard_normal):
        assert np.shape(draw(())) == ()
        assert draw((0, 3)).shape == (0, 3)
    for _ in range(9):
        drawn = random.integers(-7, 64, ())
        assert drawn.shape == ()
        assert -7 <= drawn < 64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_16_bit_operand_is_rounded_by_way_of_float32(dtype):
    """A float64 just above a tie of two neighbours is that tie in float32."""
    one = np.ones((), NUMPY[dtype])
    following = (one.view("u2") + np.uint16(1)).view(one.dtype)
    tie = (float(one) + float(following)) / 2
    above = np.array([tie * (1 + 2.0**-40)])
    assert float(above[0]) > tie
    assert rounded(above, one.dtype)[0] == one
