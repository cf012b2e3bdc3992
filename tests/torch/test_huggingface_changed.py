"""Models whose weights change after `huggingface.replace`, compared with the originals."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from bridge.torch import huggingface
from tests.torch.expected import assert_close
from tests.torch.test_huggingface import model_of, tokens

FAMILIES = ("Llama", "Gemma2", "GPTNeoX", "Nemotron")


def norms_of(model: nn.Module) -> list[Any]:
    """Returns the modules with a 1-dimensional weight."""
    found = [m for m in model.modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 1]
    assert found
    return found


def linears_of(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and name != "lm_head"
    ]


class Scaled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 1.75


class Adapted(nn.Module):
    """A linear layer and a product of two narrow ones, as in LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        generator = torch.Generator().manual_seed(base.in_features)
        narrow = torch.randn(2, base.in_features, generator=generator)
        wide = torch.randn(base.out_features, 2, generator=generator)
        self.lora_a, self.lora_b = nn.Parameter(narrow * 0.2), nn.Parameter(wide * 0.2)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + x @ self.lora_a.T @ self.lora_b.T


class EightBits(nn.Module):
    """A linear layer of 8-bit weights and one scale per row."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.scale, self.bias)


def pruned(model: nn.Module) -> None:
    for norm in norms_of(model):
        prune.l1_unstructured(norm, "weight", amount=0.5)
    for _, _, linear in linears_of(model):
        prune.l1_unstructured(linear, "weight", amount=0.5)


def parametrized(model: nn.Module) -> None:
    for norm in norms_of(model):
        for name in ("weight", "bias"):
            if getattr(norm, name, None) is not None:
                parametrize.register_parametrization(norm, name, Scaled())


def weight_normed(model: nn.Module) -> None:
    for norm in norms_of(model):
        parametrizations.weight_norm(norm, "weight", dim=None)
    for _, _, linear in linears_of(model):
        parametrizations.weight_norm(linear, "weight")


def weight_normed_by_hooks(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for norm in norms_of(model):
            nn.utils.weight_norm(norm, "weight", dim=None)
        for _, _, linear in linears_of(model):
            nn.utils.weight_norm(linear, "weight")


def adapted(model: nn.Module) -> None:
    for parent, name, linear in linears_of(model):
        setattr(parent, name, Adapted(linear))


def of_eight_bits(model: nn.Module) -> None:
    for parent, name, linear in linears_of(model):
        setattr(parent, name, EightBits(linear))


def tied(model: nn.Module) -> None:
    first, *others = norms_of(model)
    for other in others:
        if other.weight.shape == first.weight.shape:
            other.weight = first.weight
    model.lm_head.weight = model.get_input_embeddings().weight  # type: ignore[attr-defined]


def of_plain_tensors(model: nn.Module) -> None:
    """Every parameter of a norm becomes an attribute of twice its value, as under FSDP."""
    for norm in norms_of(model):
        for name, parameter in [*norm.named_parameters(recurse=False)]:
            delattr(norm, name)
            setattr(norm, name, (parameter * 2).detach().requires_grad_())


CHANGES: list[Callable[[nn.Module], None]] = [
    *(pruned, parametrized, weight_normed, weight_normed_by_hooks),
    *(adapted, of_eight_bits, tied, of_plain_tensors),
]


@pytest.fixture
def undone() -> Iterator[list[huggingface.Replaced]]:
    done: list[huggingface.Replaced] = []
    yield done
    for each in done:  # the replaced layers have been exchanged: only functions remain
        while each._undo:
            try:
                each._undo.pop()()
            except RuntimeError as error:
                assert "has changed its class to" in str(error)  # noqa: PT017


def trained(model: Any) -> list[Tensor]:
    """Returns logits, loss and the gradients of all parameters of a step."""
    ids = tokens(2, 9)
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    return [found.logits, found.loss, *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_alike(mine: Any, original: Any) -> None:
    found, expected = trained(mine), trained(original)
    assert len(found) == len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, 1000.0)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_change_after_replace(family, change, undone) -> None:
    original = model_of(family)
    mine = copy.deepcopy(original)
    undone.append(huggingface.replace(mine))
    change(original)
    change(mine)
    assert_alike(mine, original)


@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.parametrize("family", ["Llama", "GPTNeoX"])
def test_fsdp_with_flat_parameters(family, use_orig_params, undone) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel

    original = model_of(family)
    mine = copy.deepcopy(original)
    undone.append(huggingface.replace(mine))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a single process shards nothing, and torch warns
            models = [
                FullyShardedDataParallel(
                    model, use_orig_params=use_orig_params, device_id=torch.device("cpu")
                )
                for model in (mine, original)
            ]
            assert_alike(*models)
    finally:
        dist.destroy_process_group()


def test_a_norm_whose_weight_is_computed_already_is_left() -> None:
    """A parametrization has made its class, which another class on top would hide."""
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8))
    parametrize.register_parametrization(model[0], "weight", Scaled())
    prune.l1_unstructured(model[1], "weight", amount=0.5)
    parametrizations.weight_norm(model[2], "weight", dim=None)
    replaced = huggingface.replace(model)
    assert replaced.done == {"3": "layer_norm"}
    assert list(replaced.left) == ["0", "1", "2"]
    assert all("computed from other parameters" in why for why in replaced.left.values())
