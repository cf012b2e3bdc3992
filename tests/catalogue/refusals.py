"""Bad input, which both frameworks refuse in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import bridge.jax
import bridge.torch

# run(module, make) calls a function of bridge.torch or bridge.jax on arrays of ones that
# make(*shape, dtype=...) makes; what it raises, and the words that are in it.
Refusal = tuple[Callable[..., Any], type[Exception], str]


def assert_refused(refusal: Refusal, function: str = "") -> None:
    """Calls it in both; `function` is what the words begin with."""
    run, kind, words = refusal
    said = []
    for module, make in (
        (bridge.torch, lambda *s, dtype="float32": torch.ones(s, dtype=getattr(torch, dtype))),
        (bridge.jax, lambda *s, dtype="float32": jnp.ones(s, dtype)),
    ):
        with pytest.raises(kind, match=words) as caught:
            run(module, make)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith(function)
