"""Bad input gives one error that names the argument, before anything is changed."""

from __future__ import annotations

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
