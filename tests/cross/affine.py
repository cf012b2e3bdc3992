"""A function in both frameworks."""

from __future__ import annotations

from typing import Any

import torch
from jax import numpy as jnp


def affine(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def torch_affine(params: Any, x: Any) -> Any:
    return torch.tanh(x @ params["w"] + params["b"])


def affine_arguments(draw: Any, dtype: torch.dtype = torch.float64) -> Any:
    params = {"w": draw(4, 3, dtype=dtype, grad=True), "b": draw(3, dtype=dtype, grad=True)}
    return params, draw(5, 4, dtype=dtype)
