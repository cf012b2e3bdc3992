"""Bad input that both frameworks refuse with the same message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import bridge.jax
import bridge.torch

# run(module, make) calls a function of bridge.torch or bridge.jax on arrays of ones, which
# make(*shape, dtype=...) creates; then the exception, and a part of its message.
Refusal = tuple[Callable[..., Any], type[Exception], str]


def assert_refused(refusal: Refusal, function: str = "") -> None:
    """Makes the call in both frameworks; `function` is the first word of the message."""
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
