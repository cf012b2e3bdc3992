"""A right port has no part, whatever operations it makes of those of its original."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from tests.compare.forms import FORMS, MODELS
from tests.compare.language import params_of
from tests.compare.test_planted_mistakes import PORTS, image

CASES = [(port, form) for port, (_, forms) in FORMS.items() for form in forms]


def inputs_of(port: str) -> Any:
    """Returns a model and the inputs of both sides."""
    torch.manual_seed(1)
    make = PORTS[port] if port in PORTS else partial(image, MODELS[port], None, 8)
    model, _, ours, theirs = make(np.random.default_rng(1))
    return model.eval(), ours, ours if theirs is None else theirs


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("port", "form"), CASES, ids=[f"{p}-{f}" for p, f in CASES])
def test_a_decomposition_is_no_part(port: str, form: str, dtype: torch.dtype) -> None:
    model, ours, theirs = inputs_of(port)
    params = params_of(model, dtype)
    own = jnp.dtype(str(dtype)[6:])
    ours = [torch.tensor(x).to(dtype) if x.dtype == np.float32 else x for x in ours]
    theirs = [jnp.asarray(x, own) if x.dtype == np.float32 else x for x in theirs]
    function, _ = FORMS[port]
    report = bridge.compare(
        model, lambda *x: function(params, *x, form=form), *ours, jax_inputs=tuple(theirs)
    )
    assert not report.parts, str(report)
    assert report.error < 1e-9, str(report)
    assert report.own_error < (0.1 if dtype == torch.bfloat16 else 1e-4)
