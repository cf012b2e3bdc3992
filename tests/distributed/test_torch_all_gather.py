"""`bridge.torch.all_gather` in one, two, three and four processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.gather_checks"

WORLD_SIZES = (1, 2, 3, 4)

# Dtypes and layouts of cotangents.
_CASES = [
    *((dtype, "contiguous") for dtype in ("float32", "bfloat16", "float16", "float64")),
    *((dtype, layout) for dtype in ("float32", "complex64") for layout in ("sliced", "expanded")),
    ("float32", "transposed"),
    ("complex64", "contiguous"),
]


@pytest.fixture(scope="module", params=WORLD_SIZES, ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, processes: Any) -> Any:
    return lambda: processes(JOIN, request.param)


@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "stacked"])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_values(ranks: Any, dim: int, tiled: bool) -> None:
    ranks().run(f"{_CHECKS}:values", dim=dim, tiled=tiled)


@pytest.mark.long
@pytest.mark.sampled(60)
@pytest.mark.parametrize(("dtype", "cotangent"), _CASES)
@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "stacked"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients(ranks: Any, dim: int, tiled: bool, dtype: str, cotangent: str) -> None:
    ranks().run(f"{_CHECKS}:gradients", dim=dim, tiled=tiled, dtype_name=dtype, cotangent=cotangent)


@pytest.mark.parametrize(
    "check", ["integers_have_no_gradient", "no_gradient_without_asking", "strided_inputs", "large"]
)
def test_all_gather(ranks: Any, check: str) -> None:
    ranks().run(f"{_CHECKS}:{check}")


def test_no_third_copy(processes: Any) -> None:
    """The peak of a call is its input and output; along another dimension also a packed input."""
    for peaks in processes(JOIN, 3).run(f"{_CHECKS}:memory"):
        assert max(peaks.values()) > 90, "the measurement sees nothing"
        assert all(peak < 112 for name, peak in peaks.items() if name != "along 1"), peaks
        assert peaks["along 1"] < 144, peaks
