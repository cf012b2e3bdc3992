"""interpolate: torch's own in float64, jax.image.resize, and the same bits in both frameworks."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bridge.jax
import bridge.torch
from tests.catalogue.formulas import assert_near_and_same_bits, assert_transforms, drawn
from tests.catalogue.refusals import Refusal, assert_refused
from tests.vision.test_pooling import in_layout, laid
from tests.vision.torch_samples import samples_of

# Shapes with the channels second, and arguments.
FORMS: list[Any] = [
    ((2, 3, 7, 5), {"size": (4, 9), "mode": "nearest-exact"}),
    ((2, 3, 8, 4), {"size": (4, 8), "mode": "nearest"}),
    ((2, 3, 7, 5), {"size": (4, 9), "mode": "area"}),
    ((2, 3, 7), {"size": 11, "mode": "linear"}),
    ((2, 3, 7), {"size": 11, "mode": "linear", "align_corners": True}),
    ((2, 3, 7, 5), {"size": (4, 9), "mode": "bilinear"}),
    ((1, 2, 5, 4), {"scale_factor": (2.3, 0.7), "mode": "bilinear"}),
    ((1, 2, 5, 4), {"scale_factor": 2.3, "mode": "bicubic", "recompute_scale_factor": True}),
    ((1, 2, 11, 9), {"size": (4, 5), "mode": "bilinear", "antialias": True}),
    ((1, 2, 40, 9), {"size": (1, 5), "mode": "bicubic", "antialias": True}),
    ((2, 3, 7, 5), {"size": (4, 9), "mode": "bicubic", "align_corners": True}),
    ((1, 2, 3, 4, 5), {"size": (5, 3, 7), "mode": "trilinear"}),
]


def of_torch(last: bool, options: Any) -> Any:
    def formula(x: Any) -> Any:
        y = F.interpolate(x.movedim(-1, 1) if last else x, **options)
        return y.movedim(1, -1) if last else y

    return formula


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_modes(form: Any, last: bool, dtype: str, rng: Any) -> None:
    shape, options = form
    x = laid(drawn(rng, (shape,), dtype)[0], last)
    call = in_layout("interpolate", last, **options)
    (g,) = drawn(rng, (call(bridge.jax, x).shape,), dtype)
    assert_near_and_same_bits(call, of_torch(last, options), (x,), g, units=20.0)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(4, 5), (18, 11)], ids=str)
def test_antialias_of_jax(mode: str, size: Any, rng: Any) -> None:
    (x,) = drawn(rng, ((1, 9, 7, 2),), "float32")
    options = {"mode": mode, "antialias": True, "coefficient": -0.5}
    found = bridge.jax.interpolate(x, size, **options)
    right = jax.image.resize(x, (1, *size, 2), mode, antialias=True)
    np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("last", [False, True])
def test_derivatives_and_transforms(last: bool) -> None:
    call = in_layout("interpolate", last, (5, 2), mode="bicubic")
    assert_transforms(call, ((1, 3, 4, 2),), (False,))


def test_vmap_and_layout(rng: Any) -> None:
    (x,) = drawn(rng, ((3, 2, 4, 5, 2),), "float32")
    call = in_layout("interpolate", True, (3, 7), mode="bilinear")
    found = torch.func.vmap(lambda a: call(bridge.torch, a))(torch.from_numpy(x))
    own = jax.vmap(lambda a: call(bridge.jax, a))(jnp.asarray(x))
    each = np.stack([np.asarray(call(bridge.jax, a)) for a in x])
    assert np.array_equal(found, each)
    assert np.array_equal(own, each)
    first = torch.from_numpy(x[0]).movedim(-1, 1)  # channels last in memory
    y = bridge.torch.interpolate(first, 6, mode="bilinear")
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, bridge.torch.interpolate(first.contiguous(), 6, mode="bilinear"))


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear", "area"])
def test_samples_of_torch(mode: str) -> None:
    """The samples with which torch tests its own interpolate."""
    tried = 0
    for sample in itertools.islice(samples_of("nn.functional.interpolate"), 400):
        options = {"mode": "nearest", **sample.kwargs}
        if options["mode"] != mode or 0 in sample.input.shape:
            continue
        expected = F.interpolate(sample.input, *sample.args, **sample.kwargs)
        found = bridge.torch.interpolate(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        tried += 1
    assert tried or mode == "area"


REFUSED: dict[str, Refusal] = {
    "no size": (
        lambda f, a: f.interpolate(a(1, 8, 8)),
        ValueError,
        "size is None and scale_factor is None, expected one of them",
    ),
    "both": (
        lambda f, a: f.interpolate(a(1, 8, 8), 4, 2.0),
        ValueError,
        r"size is 4 and scale_factor is 2\.0, expected one of them",
    ),
    "mode": (
        lambda f, a: f.interpolate(a(1, 8, 8), 4, mode="cubic"),
        ValueError,
        "mode is 'cubic', expected one of 'nearest'",
    ),
    "dimensions": (
        lambda f, a: f.interpolate(a(1, 8, 8), 4, mode="bilinear"),
        ValueError,
        r"input has shape \[1, 8, 8\], expected images, channels and 2 resized",
    ),
    "corners": (
        lambda f, a: f.interpolate(a(1, 8, 8), 4, align_corners=True),
        ValueError,
        "align_corners is given, expected None for mode 'nearest'",
    ),
    "antialias": (
        lambda f, a: f.interpolate(a(1, 8, 8), 4, mode="linear", antialias=True),
        ValueError,
        "antialias is True, expected False for mode 'linear'",
    ),
    "small": (
        lambda f, a: f.interpolate(a(1, 8, 8), 0),
        ValueError,
        "size is 0, expected an integer from 1 on",
    ),
    "factor": (
        lambda f, a: f.interpolate(a(1, 8, 8), scale_factor=0.1),
        ValueError,
        r"scale_factor is 0\.1, expected a positive number",
    ),
    "sizes": (
        lambda f, a: f.interpolate(a(1, 8, 8), (4, 4)),
        ValueError,
        r"size is \(4, 4\), expected one number or 1",
    ),
    "dtype": (
        lambda f, a: f.interpolate(a(1, 8, 8, dtype="int32"), 4),
        TypeError,
        "input has dtype int32, expected one of float16",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_in_the_same_words(case: str) -> None:
    assert_refused(REFUSED[case], "interpolate: ")
