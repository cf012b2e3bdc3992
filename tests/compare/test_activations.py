"""The causes of parts at activations: the functions of both sides by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge

IN_JAX = {
    "ReLU": jax.nn.relu,
    "SiLU": jax.nn.silu,
    "the logistic function": jax.nn.sigmoid,
    "the hyperbolic tangent": jnp.tanh,
    "GELU (erf)": lambda x: jax.nn.gelu(x, approximate=False),
    "GELU (tanh)": lambda x: jax.nn.gelu(x, approximate=True),
    "GELU (sigmoid)": lambda x: x * jax.nn.sigmoid(1.702 * x),
}
IN_TORCH = {
    "ReLU": torch.nn.ReLU(),
    "SiLU": torch.nn.SiLU(),
    "the logistic function": torch.nn.Sigmoid(),
    "the hyperbolic tangent": torch.nn.Tanh(),
    "GELU (erf)": torch.nn.GELU(),
    "GELU (tanh)": torch.nn.GELU(approximate="tanh"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("there", IN_JAX)
@pytest.mark.parametrize("here", IN_TORCH)
def test_the_cause_names_both_activations(here: str, there: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), IN_TORCH[here], torch.nn.Linear(7, 3))
    first, _, last = model
    w, b, v, c = (
        jnp.asarray(each.detach().numpy())
        for layer in (first, last)
        for each in (layer.weight, layer.bias)
    )
    x = np.random.default_rng(0).standard_normal((11, 5), np.float32)
    report = bridge.compare(model, lambda x: IN_JAX[there](x @ w.T + b) @ v.T + c, x)
    if here == there:
        assert not report.parts, str(report)
        return
    assert len(report.parts) == 1, str(report)
    if here == "the logistic function" and there in ("ReLU", "SiLU"):
        return  # ReLU leaves torch's value as it is, and SiLU computes it: a line too much there
    form = [each.removeprefix("GELU (").removesuffix(")") for each in (here, there)]
    is_gelu = here.startswith("GELU") and there.startswith("GELU")
    expected = (
        f"GELU: {form[0]} here, {form[1]} there" if is_gelu else f"{here} here, {there} there"
    )
    assert report.parts[0].cause == expected, str(report)
