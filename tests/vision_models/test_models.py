"""Vision models from torch.nn and from Flax NNX have the same bits after `replace`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bridge
import bridge.jax.nnx
import bridge.torch as bt
from tools.demo.vision import training
from tools.demo.vision.carried import as_tensor, numbers_of

MODELS = list(training.MODELS)


def assert_no_differences(found: dict[str, Any]) -> None:
    assert {kind: each["differing"] for kind, each in found["kinds"].items()} == dict.fromkeys(
        ("weights", "statistics", "momenta", "outputs"), 0
    )
    assert found["equal_losses"] == found["steps"]
    assert all(not replaced.left for replaced in found["replaced"].values())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_no_number_differs_after_steps(name: str) -> None:
    """Outputs, weights, running statistics and momenta after two steps."""
    found = training.train(name, 2)
    assert_no_differences(found)
    assert found["losses"]["torch"][0] != found["losses"]["torch"][1]
    assert (found["kinds"]["statistics"]["elements"] > 0) == (name == "ResNet-18")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_number_differs_after_all_steps(name: str) -> None:
    assert_no_differences(training.train(name))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_compare_runs_on_replaced_models(name: str) -> None:
    original, port = training.pair(name)
    bt.replace(original)
    bridge.jax.nnx.replace(port)
    original.eval()
    port.eval()
    images = training.batches(name, 0, batch=2)[0].images
    outputs: Any = original

    def last(x: Any) -> Any:
        return outputs(x).movedim(1, -1)

    report = bridge.compare(last, port, as_tensor(images), jax_inputs=(jnp.asarray(images),))
    assert report.first is None, str(report)
    assert report.same_bits


def test_reports_and_undo() -> None:
    original, port = training.pair("U-Net")
    state, numbers = original.state_dict(), numbers_of(nnx.state(port))
    in_torch, in_jax = bt.replace(original), bridge.jax.nnx.replace(port)
    assert not in_torch.left
    assert not in_jax.left
    counts = [[*replaced.done.values()] for replaced in (in_torch, in_jax)]
    assert [each.count("group_norm") for each in counts] == [10, 10]
    assert [each.count("silu") for each in counts] == [5, 5]
    assert counts[0].count("conv2d") == counts[1].count("conv_general_dilated") == 12
    for key, value in original.state_dict().items():
        assert value.data_ptr() == state[key].data_ptr()
    for key, array in numbers_of(nnx.state(port)).items():
        assert np.array_equal(array, numbers[key])
    in_torch.undo()
    in_jax.undo()
    kinds = {type(layer).__module__.partition(".")[0] for layer in original.modules()}
    kinds |= {type(layer).__module__.partition(".")[0] for _, layer in nnx.iter_modules(port)}
    assert kinds == {"torch", "flax", "tools"}
    assert not any("ByBridge" in str(type(layer).__mro__) for _, layer in nnx.iter_modules(port))


def test_a_padding_of_flax_is_found() -> None:
    """SAME pads another side than torch at stride 2: the outputs differ, and compare says so."""
    original, port = training.pair("ResNet-18")
    layer: Any = port
    layer.conv1.padding = "SAME"
    bt.replace(original)
    bridge.jax.nnx.replace(port)
    images = training.batches("ResNet-18", 0, batch=2)[0].images
    original.eval()
    port.eval()
    report = bridge.compare(original, port, as_tensor(images), jax_inputs=(jnp.asarray(images),))
    assert report.first is not None
    assert report.first.torch.module == "conv1"
