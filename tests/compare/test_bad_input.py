"""Bad input gives one error that names the argument, before anything is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bridge

X = np.ones((2, 4), np.float32) * np.arange(4, dtype=np.float32) * 0.37
MODEL = nn.Linear(4, 3)
WEIGHT = jnp.asarray(MODEL.weight.detach().numpy())


def port(x: Any) -> Any:
    return x @ WEIGHT.T


def test_models_must_be_callable() -> None:
    with pytest.raises(TypeError, match="torch_model is a int"):
        bridge.compare(3, port, X)
    with pytest.raises(TypeError, match="jax_function is a str"):
        bridge.compare(MODEL, "port", X)
    with pytest.raises(TypeError, match=r"jax_function is a torch\.nn\.Module"):
        bridge.compare(MODEL, MODEL, X)


def test_the_dtype_is_float64() -> None:
    with pytest.raises(ValueError, match="dtype is 'float16'"):
        bridge.compare(MODEL, port, X, dtype="float16")


def test_inputs_must_fit() -> None:
    with pytest.raises(ValueError, match="torch_model does not take the inputs"):
        bridge.compare(MODEL, port, np.ones((2, 5), np.float32))
    with pytest.raises(ValueError, match="jax_function does not take the inputs"):
        bridge.compare(MODEL, port, X, jax_inputs=(np.ones((2, 5), np.float32),))
    with pytest.raises(TypeError, match="jax_inputs is a ndarray"):
        bridge.compare(MODEL, port, X, jax_inputs=X)


def test_another_number_of_outputs() -> None:
    with pytest.raises(ValueError, match="torch_model returns 1 tensors and jax_function 2 arrays"):
        bridge.compare(MODEL, lambda x: (port(x), x), X)


def test_a_function_that_cannot_be_traced() -> None:
    def by_value(x: Any) -> Any:
        y = port(x)
        return y * 2 if float(y.sum()) > 1e9 else y

    def by_mask(x: Any) -> Any:
        y = port(x)
        return y[y[:, 0] > -1e9]

    def by_numpy(x: Any) -> Any:
        return jnp.asarray(np.tanh(np.asarray(port(x))))

    for function, line in ((by_value, 2), (by_mask, 2), (by_numpy, 1)):
        number = function.__code__.co_firstlineno + line
        with pytest.raises(ValueError, match=rf"cannot be traced: at .*test_bad_input.py:{number}"):
            bridge.compare(MODEL, function, X)


def test_a_function_that_runs_once() -> None:
    calls: list[int] = []

    def once(x: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no second call")
        return port(x)

    with pytest.raises(ValueError, match=r"in float64: at .* raises RuntimeError: no second call"):
        bridge.compare(MODEL, once, X)


def test_models_of_whole_numbers() -> None:
    model = nn.Module()
    model.table = nn.Parameter(torch.arange(4), requires_grad=False)
    model.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(TypeError, match=r"torch_model holds only \['torch.int64'\]"):
        bridge.compare(model, lambda x: x, X)


def test_a_model_that_changes_its_parameters() -> None:
    class Changing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.add_(1)
            return super().forward(x)

    model = Changing(4, 3)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="changes its own parameter 'weight'"):
        bridge.compare(model, port, X)
    assert torch.equal(model.weight, before)


class Uncalled(nn.Linear):
    """A model that must not run."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the model ran")


def uncalled(x: Any) -> Any:
    raise AssertionError("the function ran")


def test_a_model_without_numbers() -> None:
    words = "on the meta device, which holds no numbers; compare runs both models on their numbers"
    model = nn.Sequential(Uncalled(4, 3), Uncalled(3, 2, device="meta"))
    with pytest.raises(ValueError, match=rf"torch_model has '1.weight' and 1 other {words}"):
        bridge.compare(model, uncalled, X)
    with pytest.raises(ValueError, match=rf"torch_model has '0.weight' and 3 others {words}"):
        bridge.compare(model.to("meta"), uncalled, X)
    table, layer = torch.ones(3, device="meta"), Uncalled(4, 3)
    with pytest.raises(ValueError, match=rf"torch_model has 'table' {words}"):
        bridge.compare(lambda x: layer(x) + table, uncalled, X)
    with pytest.raises(ValueError, match=r"an input is a tensor of shape \(2, 4\) on the meta"):
        bridge.compare(layer, uncalled, torch.ones(2, 4, device="meta"))


def test_arrays_that_jax_has_deleted() -> None:
    gone = jnp.ones((3, 4))
    gone.delete()
    layer = Uncalled(4, 3)
    with pytest.raises(ValueError, match="jax_function holds 'gone', which JAX has deleted"):
        bridge.compare(layer, lambda x: uncalled(x @ gone.T), X)
    with pytest.raises(ValueError, match=r"an input is an array of shape \(3, 4\) that JAX has"):
        bridge.compare(layer, uncalled, gone)


DEVICES = """
import jax, torch, bridge
import jax.numpy as jnp
import numpy as np

cpu = jax.devices("cpu")
model = torch.nn.Linear(4, 3)
weight, bias = (jnp.asarray(p.detach().numpy()) for p in model.parameters())
x = np.ones((2, 4), np.float32) * np.arange(4, dtype=np.float32)
there, here = jax.device_put(weight, cpu[1]), jax.device_put(bias, cpu[0])
runs = []

def port(x, weight, bias):
    runs.append(1)
    return x @ weight.T + bias

for bias in (bias, jax.device_put(bias, cpu[1])):  # free to move, and beside the weight
    assert not bridge.compare(model, lambda x: port(x, there, bias), x).parts
runs.clear()
for function, given, words in (
    (lambda x: port(x, there, here), x, "'there' on cpu:1 and 'here' on cpu:0"),
    (lambda x: port(x, weight, here), jax.device_put(x, cpu[1]),
     "'here' on cpu:0 and 'input 0' on cpu:1"),
):
    try:
        bridge.compare(model, function, x, jax_inputs=(given,))
    except ValueError as error:
        text = "jax_function's arrays lie on different devices: " + words
        text += "; compare runs it on one: move them with jax.device_put"
        assert str(error) in (text, text.replace(words, " and ".join(words.split(" and ")[::-1])))
    else:
        raise AssertionError("no error")
assert not runs
"""


@pytest.mark.processes
@pytest.mark.parametrize("is_typed", [False, True])
def test_jax_arrays_on_two_devices(is_typed: bool, tmp_path: Path) -> None:
    """They are found in a file, and in what was typed into Python."""
    (tmp_path / "script.py").write_text(DEVICES)
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-" if is_typed else str(tmp_path / "script.py")],
        env=environment,
        input=DEVICES if is_typed else None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_nothing_is_paired() -> None:
    other = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)
    with pytest.raises(ValueError, match="nothing could be paired"):
        bridge.compare(MODEL, lambda x: (x * 1.7) @ other.T, X, jax_inputs=(X * 3.3,))


def test_a_page_needs_its_folder(tmp_path: Any) -> None:
    report = bridge.compare(MODEL, lambda x: port(x) + jnp.asarray(MODEL.bias.detach().numpy()), X)
    assert not report.parts, str(report)
    with pytest.raises(ValueError, match="its folder does not exist"):
        report.html(tmp_path / "none" / "page.html")
    report.html(tmp_path / "page.html")
    assert "<h1>The models are the same</h1>" in (tmp_path / "page.html").read_text()
