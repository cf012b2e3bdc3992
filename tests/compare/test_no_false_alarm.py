"""A right port has no part, however it decomposes the original, in float32 and bfloat16."""

from __future__ import annotations

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import bridge
from bridge.testing import assert_same
from tests.compare.test_planted_mistakes import PORTS, compared

FORMS = {
    "transformer": ["", "three products", "fused attention", "einsum", "scan"],
    "decoder": ["", "grouped", "remat"],
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize(("port", "form"), [(p, f) for p, forms in FORMS.items() for f in forms])
def test_a_decomposition_is_no_part(port: str, form: str, dtype: torch.dtype | None) -> None:
    report = compared(port, "", form, dtype)
    assert not report.parts, str(report)
    assert report.first is None
    assert report.error < 1e-9
    assert report.paired > report.values // 2


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("port", [p for p in PORTS if p not in (*FORMS, "bicubic")])
def test_a_right_port_has_no_part(port: str, dtype: torch.dtype | None) -> None:
    report = compared(port, dtype=dtype)
    assert not report.parts, str(report)
    assert report.error < 1e-9


def test_gradients_of_a_right_port_are_paired() -> None:
    report = compared("transformer", "", "three products", gradients=True)
    assert not report.parts, str(report)
    assert not report.gradients


def pair() -> tuple[torch.nn.Module, nnx.Module, np.ndarray]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 4))
    port = nnx.Sequential(
        nnx.Linear(6, 5, rngs=nnx.Rngs(0)),
        lambda x: jax.nn.gelu(x, approximate=False),
        nnx.Linear(5, 4, rngs=nnx.Rngs(0)),
    )
    for ours, theirs in ((model[0], port.layers[0]), (model[2], port.layers[2])):
        theirs.kernel.set_value(jnp.asarray(ours.weight.detach().numpy().T))
        theirs.bias.set_value(jnp.asarray(ours.bias.detach().numpy()))
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    return model, port, x


def test_an_nnx_module_itself_and_nothing_is_changed() -> None:
    model, port, x = pair()
    before = [t.clone() for t in model.parameters()]
    kernel = port.layers[0].kernel.get_value()
    report = bridge.compare(model, port, x)
    assert not report.parts, str(report)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert port.layers[0].kernel.get_value() is kernel
    assert kernel.dtype == jnp.float32
    assert torch.get_default_dtype() == torch.float32
    assert not jax.config.read("jax_enable_x64")


def test_a_bound_linen_module() -> None:
    model, _, x = pair()

    class Port(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = jax.nn.gelu(linen.Dense(5)(x), approximate=False)
            return linen.Dense(4)(x)

    layers = {
        f"Dense_{k}": {
            "kernel": jnp.asarray(layer.weight.detach().numpy().T),
            "bias": jnp.asarray(layer.bias.detach().numpy()),
        }
        for k, layer in enumerate((model[0], model[2]))
    }
    assert_same(model, Port().bind({"params": layers}), x)


def test_assert_same_raises_with_the_text() -> None:
    model, port, x = pair()
    with pytest.raises(AssertionError, match="The models part at 1 line"):
        assert_same(model, lambda x: port.layers[2](jax.nn.gelu(port.layers[0](x))), x)


def test_a_recorded_name_is_an_identity_and_in_the_report() -> None:
    model, port, x = pair()

    def named(x: jax.Array) -> jax.Array:
        y = port.layers[0](x) * 1.5
        return port.layers[2](jax.nn.gelu(bridge.jax.record("hidden", y), approximate=False))

    import bridge.jax

    assert not bridge.compare(model, port, x).parts
    report = bridge.compare(model, named, x)
    assert report.first is not None
    assert report.first.jax.code == "y = port.layers[0](x) * 1.5"
    record = bridge.jax.record
    value = jnp.arange(3.0)
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda v: f(v).sum())):
        transformed = transform(lambda v: record("v", v * 2))(value)
        assert transformed.shape == value.shape
