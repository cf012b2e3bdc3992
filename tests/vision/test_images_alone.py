"""An image alone has the bits that it has in a batch, and channels first those of channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge.jax as bj
import bridge.torch as bt

FORMS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "max_pool": ("max_pool", (3, 2, 1), {}),
    "avg_pool": ("avg_pool", ((2, 3), 1, (1, 0)), {}),
    "adaptive_avg_pool to one": ("adaptive_avg_pool", (1,), {}),
    "adaptive_avg_pool": ("adaptive_avg_pool", ((3, 2),), {}),
    "bilinear": ("interpolate", (), {"size": (5, 11), "mode": "bilinear"}),
    "bicubic": ("interpolate", (), {"scale_factor": 1.7, "mode": "bicubic"}),
    "antialias": ("interpolate", (), {"size": (3, 4), "mode": "bilinear", "antialias": True}),
    "nearest": ("interpolate", (), {"size": (3, 17), "mode": "nearest-exact"}),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FORMS)
def test_an_image_alone(rng: np.random.Generator, name: str, dtype: str) -> None:
    function, arguments, keywords = FORMS[name]

    def form(x: torch.Tensor) -> torch.Tensor:
        return getattr(bt, function)(x, *arguments, **keywords)

    x = torch.tensor(rng.standard_normal((4, 3, 7, 9)), dtype=getattr(torch, dtype))
    together = form(x)
    for image, found in zip(x, together, strict=True):
        assert torch.equal(form(image[None])[0], found)
    last = form(x.to(memory_format=torch.channels_last))
    assert torch.equal(last, together)
    if dtype == "float32":
        in_jax = getattr(bj, function)(x[1:2].numpy(), *arguments, axis=1, **keywords)
        np.testing.assert_array_equal(in_jax[0], together[1])
