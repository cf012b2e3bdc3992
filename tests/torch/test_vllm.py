"""bridge.torch.vllm: the signatures of vLLM's custom ops, and their registration in a stand-in."""

from __future__ import annotations

import inspect
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bridge.torch as bt
from bridge.torch import vllm as bvllm
from tests.torch.expected import assert_same_bits
from tests.torch.vllm_stand_in import vllm

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rms_norm", ["out", "input", "weight", "epsilon"]),
        ("fused_add_rms_norm", ["input", "residual", "weight", "epsilon"]),
        ("silu_and_mul", ["out", "input"]),
        ("gelu_and_mul", ["out", "input"]),
        ("gelu_tanh_and_mul", ["out", "input"]),
        ("log_softmax", ["input", "dim"]),
    ],
)
def test_signatures(name: str, arguments: list[str]) -> None:
    assert [*inspect.signature(getattr(bvllm, name)).parameters] == arguments


@every_dtype
def test_norms_have_the_bits_of_bridge(dtype: torch.dtype, draw: Any) -> None:
    x, residual, weight = draw(5, 33, dtype=dtype), draw(5, 33, dtype=dtype), draw(33, dtype=dtype)
    out = torch.empty_like(x)
    assert bvllm.rms_norm(out, x, weight, 1e-5) is None
    assert_same_bits(out, bt.rms_norm(x, weight, eps=1e-5))
    bvllm.rms_norm(out, x, None, 1e-5)
    assert_same_bits(out, bt.rms_norm(x, eps=1e-5))
    wide = draw(33, dtype=torch.float32)
    bvllm.rms_norm(out, x, wide, 1e-5)
    assert_same_bits(out, bt.rms_norm(x, wide, eps=1e-5).to(dtype))
    y, h = bt.rms_norm(x, weight, residual, eps=1e-5)
    places = x.data_ptr(), residual.data_ptr()
    assert bvllm.fused_add_rms_norm(x, residual, weight, 1e-5) is None
    assert (x.data_ptr(), residual.data_ptr()) == places
    assert_same_bits(x, y)
    assert_same_bits(residual, h)


@every_dtype
@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu_and_mul", "silu"), ("gelu_and_mul", "gelu"), ("gelu_tanh_and_mul", "gelu_tanh")],
)
def test_gates_have_the_bits_of_bridge(name, activation, dtype, draw) -> None:
    x, out = draw(2, 3, 34, dtype=dtype), torch.empty(2, 3, 17, dtype=dtype)
    assert getattr(bvllm, name)(out, x) is None
    assert_same_bits(out, bt.glu(x, activation=activation))


def test_a_norm_writes_into_a_part_of_a_larger_tensor(draw: Any) -> None:
    """vLLM passes views of the tensors of its graphs."""
    x, weight, out = (
        draw(4, 9, dtype=torch.float32),
        draw(9, dtype=torch.float32),
        torch.zeros(6, 9),
    )
    bvllm.rms_norm(out[:4], x, weight, 1e-6)
    assert_same_bits(out[:4], bt.rms_norm(x, weight))
    assert not out[4:].any()


def test_wrong_arguments(draw: Any) -> None:
    x = draw(4, 8, dtype=torch.float32)
    wide = torch.ones(8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"rms_norm: out has shape \[2, 4, 8\], expected \[4, 8\]"):
        bvllm.rms_norm(torch.empty(2, 4, 8), x, wide, 1e-6)
    with pytest.raises(ValueError, match=r"out has shape \[4, 8\], expected \[4, 4\]"):
        bvllm.silu_and_mul(torch.empty(4, 8), x)
    with pytest.raises(ValueError, match="eps is 0"):
        bvllm.rms_norm(torch.empty_like(x), x, None, 0.0)
    with pytest.raises(ValueError, match="log_softmax: dim is 0, expected the last dimension"):
        bvllm.log_softmax(x, 0)
    assert_same_bits(bvllm.log_softmax(x, 1), bt.log_softmax(x))


def test_a_refused_sum_writes_nothing(draw: Any) -> None:
    x, residual = draw(3, 9, dtype=torch.float32), draw(3, 9, dtype=torch.float32)
    before, expanded = x.clone(), draw(1, 9, dtype=torch.float32).expand(3, 9)
    with pytest.raises(ValueError, match=r"residual is expanded, with strides \[0, 1\], expected"):
        bvllm.fused_add_rms_norm(x, expanded, None, 1e-5)
    weight = torch.nn.Parameter(torch.ones(9))
    for given in ((x, residual.clone().requires_grad_(), None), (x, residual, weight)):
        with pytest.raises(RuntimeError, match=r"requires gradients, expected torch\.no_grad"):
            bvllm.fused_add_rms_norm(*given, 1e-5)
    assert_same_bits(x, before)
    with torch.no_grad():
        bvllm.fused_add_rms_norm(x, residual, weight, 1e-5)
    assert not x.requires_grad


def test_results_of_another_dtype(draw: Any) -> None:
    x, out = draw(3, 9, dtype=torch.float32), torch.empty(3, 9, dtype=torch.bfloat16)
    bvllm.rms_norm(out, x, None, 1e-5)
    assert_same_bits(out, bt.rms_norm(x, eps=1e-5).bfloat16())
    with pytest.raises(TypeError, match=r"out has dtype torch\.int32, expected a floating-point"):
        bvllm.rms_norm(out.int(), x, None, 1e-5)


def test_without_vllm_register_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModuleNotFoundError, match=r"register needs vllm with .*: pip install vllm"):
        bvllm.register()


LAYERS = {"RMSNorm", "GemmaRMSNorm", "SiluAndMul", "GeluAndMul"}


@pytest.mark.parametrize("mode", ["native", "cuda", "cpu", "oot"])
def test_layers_run_on_bridge(mode: str, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm(monkeypatch)
    package.CustomOp.mode = mode
    done = bvllm.register()
    assert {name for name, how in done.items() if how == "layer"} == LAYERS
    assert package.registry.keys() == LAYERS
    assert bvllm.register() == done, "a second call changes nothing"
    x, residual = draw(5, 24, dtype=torch.bfloat16), draw(5, 24, dtype=torch.bfloat16)
    weight = draw(24, dtype=torch.float32)
    norm, gemma = package.norms.RMSNorm(24, 1e-5), package.norms.GemmaRMSNorm(24, 1e-5)
    for layer, offset in ((norm, 0.0), (gemma, 1.0)):
        layer.weight.data = weight
        assert_same_bits(layer(x), bt.rms_norm(x, weight, eps=1e-5, offset=offset).to(x.dtype))
        y, h = bt.rms_norm(x, weight, residual, eps=1e-5, offset=offset)
        found = layer(x, residual)
        assert_same_bits(found[0], y.to(x.dtype))
        assert_same_bits(found[1], h)
    halves = x.half(), residual.half()
    assert gemma(*halves)[1].dtype == torch.float32, "as in vLLM"
    assert_same_bits(gemma(*halves)[1], halves[0].float() + halves[1].float())
    bare = package.norms.RMSNorm(24, has_weight=False)
    assert_same_bits(bare(x), bt.rms_norm(x))
    assert package.norms.RMSNorm(24, var_hidden_size=8)(x) == "native"
    assert_same_bits(package.gates.SiluAndMul()(x), bt.swiglu(x))
    for approximate, activation in (("none", "gelu"), ("tanh", "gelu_tanh")):
        layer = package.gates.GeluAndMul(approximate)
        assert_same_bits(layer(x), bt.glu(x, activation=activation))


def test_ir_ops_get_a_provider(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm(monkeypatch)
    done = bvllm.register()
    assert done["ir.ops.rms_norm"] == done["ir.ops.fused_add_rms_norm"] == 'provider "bridge"'
    x, residual, weight = (draw(*s, dtype=torch.float32) for s in ((4, 9), (4, 9), (9,)))
    ours = package.ops.rms_norm("bridge", x, weight, 1e-5)
    assert_same_bits(ours, bt.rms_norm(x, weight, eps=1e-5))
    pair = package.ops.fused_add_rms_norm("bridge", x, residual, weight, 1e-5)
    for one, other in zip(pair, bt.rms_norm(x, weight, residual, eps=1e-5), strict=True):
        assert_same_bits(one, other)
    partly = package.ops.rms_norm("bridge", x, weight, 1e-5, 3)
    torch.testing.assert_close(partly, package.ops.rms_norm.impls["native"][0](x, weight, 1e-5, 3))
    without = vllm(monkeypatch, has_ir=False)
    monkeypatch.delitem(sys.modules, "vllm.ir")
    assert not any(name.startswith("ir.") for name in bvllm.register())
    assert without.registry.keys() == LAYERS


def test_the_batch_invariant_mode_calls_bridge(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package, x = vllm(monkeypatch), draw(3, 50, dtype=torch.float32)
    assert bvllm.register()["batch_invariant.log_softmax"] == "function"
    assert_same_bits(package.batch_invariant.log_softmax(x, dim=-1), bt.log_softmax(x))


def test_another_plugin_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm(monkeypatch)

    class Other(package.gates.SiluAndMul):  # type: ignore[misc,name-defined]
        pass

    package.CustomOp.register_oot(name="SiluAndMul")(Other)
    with pytest.raises(ValueError, match=r"vLLM's SiluAndMul is \S+Other already, expected the la"):
        bvllm.register()
    assert [*package.registry] == ["SiluAndMul"], "nothing has been changed"
    assert "bridge" not in package.ops.rms_norm.impls


def test_the_plugin_registers_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm(monkeypatch)
    for value in (None, "", "bridge_of_others,other"):
        if value is None:
            monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        else:
            monkeypatch.setenv("VLLM_PLUGINS", value)
        bvllm.plugin()
        assert not package.registry
    monkeypatch.setenv("VLLM_PLUGINS", "other,bridge")
    bvllm.plugin()
    assert package.registry.keys() == LAYERS
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    group = project["entry-points"]["vllm.general_plugins"]
    assert group == {"bridge": "bridge.torch.vllm:plugin"}


def test_layers_compile(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = vllm(monkeypatch)
    package.CustomOp.mode = "native"
    bvllm.register()
    layer, x = package.norms.RMSNorm(24), draw(5, 24, dtype=torch.float32)

    def run(x: Tensor) -> Tensor:
        return layer(x, x)[0]

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert_same_bits(compiled(x), run(x))
