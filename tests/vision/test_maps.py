"""The kernels of maps between places have the bits of gathers and programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bridge import _native
from bridge.catalogue.vision.plans import direction_of, text_of, weights_of, window_of
from bridge.catalogue.vision.taps import Options
from bridge.torch._ops.vision.layouts import taps
from tests.frameworks import DTYPES
from tests.isas import ISAS

_WINDOW = (5, 7), (3, 2), (2, 1), (1, 1), (1, 2), True
TEXTS = {
    "average": text_of("average", *_WINDOW, False, None),
    "parts": text_of("parts", (5, 7), (3, 4)),
    "resize": text_of("resize", 35, 24, "bicubic", False, True, None, -0.5),
}
LARGEST = text_of("largest", *_WINDOW)


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    flat = x.reshape(-1)
    for place, value in enumerate((float("nan"), -0.0, float("inf"), 0.0, -float("inf"))):
        flat[place * 41 % flat.numel()] = value
    return x.to(getattr(torch, dtype))


def _forward(isa: str, x: torch.Tensor, options: Options) -> torch.Tensor:
    rules: Any = taps.sums.rules
    _native.set_cpu_isa(isa)
    try:
        return rules.forward((x,), options)  # type: ignore[no-any-return]
    finally:
        _native.set_cpu_isa(None)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for equal bits, but for the sign and payload of NaN."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    signs = torch.equal(torch.signbit(one.nan_to_num()), torch.signbit(other.nan_to_num()))
    return signs and bool(((one == other) | (one.isnan() & other.isnan())).all())


def shape_of(places: int, inner: int) -> tuple[int, ...]:
    # More planes than a group has, and a last group of a few.
    return (3, places, inner) if inner else (23, places)


def options_of(text: str, inner: int, back: bool = False) -> Options:
    return Options(text, inner > 0, back)


CASES = pytest.mark.parametrize("inner", [0, 1, 5, 37, 130])
DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", list(TEXTS))
@CASES
@DTYPE
def test_sums(dtype: str, inner: int, name: str, back: bool, isa: str) -> None:
    options = options_of(TEXTS[name], inner, back)
    direction = direction_of(options.text, back)
    outputs = direction_of(options.text, not back).places.shape[1]
    x = numbers(shape_of(outputs, inner), dtype, 1)
    wide = "float64" if dtype == "float64" else "float32"
    tables = [direction.places, weights_of(options.text, back, wide)]
    rules: Any = taps.sums.rules
    expected = rules._by_gathers(options, x, *map(torch.from_numpy, tables))
    found = _forward(isa, x, options)
    assert found.dtype == expected.dtype
    assert same(found, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("places", [1, 31, 257, 1000, 1024, 2300, 5150])
@pytest.mark.parametrize("inner", [0, 5, 67])
@DTYPE
def test_the_mean_of_all_places(dtype: str, inner: int, places: int, isa: str) -> None:
    options = options_of(text_of("mean", (places,)), inner)
    x = numbers(shape_of(places, inner), dtype, 4)
    x[0] = numbers(tuple(x[0].shape), "float64", 5).nan_to_num(0.5, 1e9, -1e9).to(x.dtype)
    rules: Any = taps.sums.rules
    expected = rules._row_mean(options, x)
    found = _forward(isa, x, options)
    assert found.shape[1] == 1
    assert same(found, expected)
    back = Options(options.text, options.inner, True)
    wide = found if dtype == "float64" else found.float()
    shares = (wide / places).to(x.dtype).expand(x.shape)
    assert same(rules.forward((found,), back), shares)


@CASES
@DTYPE
def test_largest_and_its_gradient(dtype: str, inner: int) -> None:
    options = options_of(LARGEST, inner)
    x = numbers(shape_of(35, inner), dtype, 2).mul(2).round()  # many are equal
    table = torch.from_numpy(window_of(LARGEST))
    rules: Any = taps.largest.rules
    chosen = rules.forward((x,), options)
    assert same(chosen, rules._by_gathers(options, x, table))
    values: Any = taps.chosen.rules
    y = values.forward((x, chosen), options)
    assert same(y, values._by_gathers(options, x, chosen))
    g = numbers(tuple(y.shape), dtype, 3)
    back: Any = values.transposed.__self__.rules
    assert same(back.forward((g, chosen), options), back._by_gathers(options, g, chosen))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {
                "kind": 7,
                "table": None,
                "weights": None,
                "chosen": torch.zeros(3, 6, dtype=torch.int32),
            },
            "a kind that is no map",
        ),
        ({"table": None}, "the table is missing"),
        ({"table": torch.zeros(2, 5, dtype=torch.int32)}, "do not fit"),
        ({"weights": torch.zeros(2, 4, dtype=torch.float64)}, "do not fit"),
        ({"chosen": torch.zeros(3, 4, dtype=torch.int32)}, "chosen is given"),
        ({"result": torch.zeros(3, 4, dtype=torch.float64)}, "do not fit"),
        ({"x": torch.zeros(6, 3).T}, "x is not compact"),
    ],
)
def test_a_wrong_call_is_refused(changed: dict[str, Any], words: str) -> None:
    given = {
        "kind": 0,
        "x": torch.zeros(3, 6),
        "table": torch.zeros(2, 4, dtype=torch.int32),
        "weights": torch.zeros(2, 4),
        "chosen": None,
        "result": torch.zeros(3, 4),
        "has_inner": False,
        "threads": 1,
    }
    with pytest.raises(ValueError, match=words):
        _native.run_taps(*{**given, **changed}.values())
