"""The local repository of Hugging Face's kernel hub that bridge writes."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bridge
import bridge.torch as bt
from bridge.torch import huggingface
from tests.torch.expected import assert_same_bits

transformers = pytest.importorskip("transformers")

from tests.torch.test_huggingface import assert_like, model_of, tokens  # noqa: E402

VARIANTS = ("torch-cpu", "torch-cuda")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    huggingface.write_kernels(tmp_path / "kernels")
    return tmp_path / "kernels"


def layers_in(repository: Path, variant: str = "torch-cpu") -> Any:
    """Imports a variant like the kernels package: by its file, under the id of its metadata."""
    folder = repository / "build" / variant
    name = json.loads((folder / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module.layers


def originals() -> dict[str, Callable[..., Any]]:
    """Returns the forward of transformers' layer for each name that has one."""
    models, acts = transformers.models, transformers.activations
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    return {
        "RMSNorm": models.llama.modeling_llama.LlamaRMSNorm.forward,
        "LlamaRMSNorm": models.llama.modeling_llama.LlamaRMSNorm.forward,
        "RMSNormZeroCentered": Qwen3_5RMSNorm.forward,
        "RMSNormGated": Qwen3NextRMSNormGated.forward,
        "GeLU": acts.GELUActivation.forward,
        "GeluTanh": acts.GELUTanh.forward,
        "NewGELU": acts.NewGELUActivation.forward,
        "FastGELU": acts.FastGELUActivation.forward,
        "QuickGELU": acts.QuickGELUActivation.forward,
    }


def test_the_layout(repository: Path) -> None:
    files = {str(file.relative_to(repository)) for file in repository.rglob("*.*")}
    parts = ("metadata.json", "__init__.py")
    assert files == {f"build/{variant}/{part}" for variant in VARIANTS for part in parts}
    for variant in VARIANTS:
        metadata = json.loads((repository / "build" / variant / "metadata.json").read_text())
        assert metadata["backend"] == {"type": variant.partition("-")[2]}
        assert bridge.__version__.replace(".", "_") in metadata["id"]
        assert layers_in(repository, variant).RMSNorm is layers_in(repository).RMSNorm


def test_layers_keep_the_rules_of_the_hub(repository: Path) -> None:
    """No constructor and no members of their own; as many arguments as the layer in the model."""
    names, layers = huggingface.write_kernels(repository), layers_in(repository)
    assert {*originals(), "rotary_pos_emb", "SiluAndMul"} <= {*names}
    of_every_module = {name for name, _ in inspect.getmembers(nn.Module)}
    for name in names:
        layer = getattr(layers, name)
        assert issubclass(layer, nn.Module)
        assert layer.__init__ is nn.Module.__init__
        own = {member for member, _ in inspect.getmembers(layer)} - of_every_module
        assert own == {"can_torch_compile", "has_backward"}
        if name in originals():
            ours, theirs = map(inspect.signature, (layer.forward, originals()[name]))
            kinds = [[p.kind for p in each.parameters.values()] for each in (ours, theirs)]
            assert kinds[0] == kinds[1]


def test_where_it_may_be_written(tmp_path: Path, repository: Path) -> None:
    names = huggingface.write_kernels(str(repository))  # again
    assert huggingface.write_kernels(tmp_path / "a" / "b") == names
    (tmp_path / "begun" / "build" / "torch-cpu").mkdir(parents=True)
    assert huggingface.write_kernels(tmp_path / "begun") == names
    other, file = tmp_path / "other", tmp_path / "file"
    other.mkdir()
    (other / "mine.txt").write_text("x")
    file.write_text("x")
    for path in (other, file):
        with pytest.raises(FileExistsError, match="has other files, expected a new or empty folde"):
            huggingface.write_kernels(path)
    assert [each.name for each in other.iterdir()] == ["mine.txt"]


class Norm(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 24, dtype=dtype))
        self.variance_epsilon, self.eps, self.activation = 1e-5, 1e-3, "silu"

    def forward(self, *given: Any) -> Any:
        return "its own"


def run(repository: Path, name: str, layer: nn.Module, *given: Any) -> Any:
    return MethodType(getattr(layers_in(repository), name).forward, layer)(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_have_the_bits_of_bridge(repository: Path, dtype: torch.dtype, draw: Any) -> None:
    layer, x, gate = Norm(dtype), draw(3, 24, dtype=dtype), draw(3, 24, dtype=dtype)
    y = bt.rms_norm(x, layer.weight, eps=1e-5)
    assert_same_bits(run(repository, "RMSNorm", layer, x), y)
    centered = bt.rms_norm(x, layer.weight, eps=1e-3, offset=1.0)
    assert_same_bits(run(repository, "RMSNormZeroCentered", layer, x), centered)
    gated = bt.gated_rms_norm(x, gate, layer.weight, eps=1e-5)
    assert_same_bits(run(repository, "RMSNormGated", layer, x, gate), gated)
    for name, approximate in (("GeLU", "none"), ("FastGELU", "tanh"), ("QuickGELU", "sigmoid")):
        found = run(repository, name, nn.Module(), x)
        assert_same_bits(found, bt.bias_gelu(x, approximate=approximate))
    for name, activation in (("SiluAndMul", "silu"), ("GeluTanhAndMul", "gelu_tanh")):
        assert_same_bits(run(repository, name, nn.Module(), x), bt.glu(x, activation=activation))
    other = draw(3, 24, dtype=torch.float64)
    assert run(repository, "RMSNorm", layer, other) == "its own"
    assert run(repository, "RMSNormGated", layer, x) == "its own"
    layer.activation = "tanh"
    assert run(repository, "RMSNormGated", layer, x, gate) == "its own"


def test_rotary(repository: Path, draw: Any) -> None:
    q, k = draw(2, 3, 5, 8, dtype=torch.float32), draw(2, 1, 5, 8, dtype=torch.float32)
    half = [draw(2, 5, 4, dtype=torch.float32) for _ in range(2)]
    doubled = [torch.cat((table, table), -1) for table in half]
    original = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    expected = original(q, k, *doubled)
    for tables in (doubled, half):
        found = run(repository, "rotary_pos_emb", Norm(torch.float32), q, k, *tables)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    swapped = [x.transpose(1, 2) for x in (q, k)]
    found = run(repository, "rotary_pos_emb", Norm(torch.float32), *swapped, *doubled, 2)
    torch.testing.assert_close(found[0].transpose(1, 2), expected[0])
    odd = [table.double() for table in doubled]
    assert run(repository, "rotary_pos_emb", Norm(torch.float32), q, k, *odd) == "its own"


def test_kernelize_a_model(repository: Path) -> None:
    """The kernels package loads the repository, and the model's norms run on bridge."""
    kernels = pytest.importorskip("kernels")
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
    model, ids = model_of("Llama"), tokens(2, 9)
    expected = model(ids).logits
    norm.kernel_layer_name, norm.kernel_condition = "RMSNorm", staticmethod(lambda module: True)
    try:
        mapping = {
            name: {"cpu": kernels.LocalLayerRepository(repository, layer_name=name)}
            for name in huggingface.write_kernels(repository)
        }
        mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
        with kernels.use_kernel_mapping(mapping):
            kernels.kernelize(model, mode=mode, device="cpu")
    finally:
        del norm.kernel_layer_name, norm.kernel_condition
    norms = [layer for layer in model.modules() if isinstance(layer, norm)]
    assert len(norms) == 5
    for each in norms:
        assert each.forward.__func__ is layers_in(repository).RMSNorm.forward
    found = model(ids).logits
    assert_like([found], [expected])
    of = [*model.parameters()]
    assert_like(
        torch.autograd.grad(found.sum(), of), torch.autograd.grad(expected.sum(), of), 1000.0
    )


def test_kernelize_a_function(repository: Path, draw: Any) -> None:
    kernels = pytest.importorskip("kernels")

    @kernels.use_kernel_forward_from_hub("rotary_pos_emb")
    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        return "its own"

    @kernels.use_kernelized_func(turned)
    class Attention(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return turned(*given)

    model = Attention()
    q, table = draw(2, 3, 5, 8, dtype=torch.float32), draw(2, 5, 8, dtype=torch.float32)
    assert model(q, q, table, table) == "its own"
    local = kernels.LocalLayerRepository(repository, layer_name="rotary_pos_emb")
    with kernels.use_kernel_mapping({"rotary_pos_emb": {"cpu": local}}):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")
    tables = [table[:, None, :, :4]] * 2
    for found in model(q, q, table, table):
        assert_same_bits(found, bt.rotary(q, *tables))
    assert model(q, q, table.double(), table.double()) == "its own"
