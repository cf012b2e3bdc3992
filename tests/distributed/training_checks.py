"""Training on torch's ranks, each with its part of the batch or of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed.checkpoint as checkpoints
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import bridge.torch as bt
from bridge.torch import huggingface
from tests.distributed.dtensor_checks import whole
from tests.distributed.gather_checks import numbers, same_bits
from tests.distributed.processes import Place
from tools.demo import gpt, text, torch_gpt

_WIDTH, _VOCABULARY = 16, 48


class _Gate(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return nn.functional.silu(gate) * up


class _Block(nn.Module):
    def __init__(self, by: Any, norm: str, gate: nn.Module) -> None:
        super().__init__()
        self.norm = getattr(by, norm)(_WIDTH)
        self.gate, self.up = (nn.Linear(_WIDTH, 32, bias=False) for _ in range(2))
        self.activation = gate
        self.down = nn.Linear(32, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self._change, x, use_reentrant=False)

    def _change(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.down(self.activation(self.gate(h), self.up(h)))


class _Model(nn.Module):
    """A model with norms from `by`, which is `bridge.torch` or `torch.nn`."""

    def __init__(self, by: Any, gate: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.blocks = nn.ModuleList(_Block(by, norm, gate()) for norm in ("RMSNorm", "LayerNorm"))
        self.norm = by.RMSNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        h = self.embedding(tokens)
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        return (
            self.head(h) if labels is None else bt.linear_cross_entropy(h, self.head.weight, labels)
        )


def _models() -> tuple[_Model, _Model]:
    """Returns a model of torch's modules and one of bridge's, with the same parameters."""
    original, ours = (m.double() for m in (_Model(nn, _Gate), _Model(bt, bt.SwiGLU)))
    for i, parameter in enumerate(original.parameters()):
        parameter.data = 0.3 * numbers(i, tuple(parameter.shape))
    ours.load_state_dict(original.state_dict())
    return original, ours


def _tokens(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = torch.randint(_VOCABULARY, (2, rows, 8), generator=generator)
    return found[0], found[1]


def _part(tokens: Tensor, index: int, parts: int) -> Tensor:
    return tokens.chunk(parts)[index]


def _assert_same_gradients(found: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(found.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            whole(a.grad), b.grad, msg=lambda text, name=name: f"{name}: {text}"
        )


def fully_sharded(place: Place) -> None:
    """Gradients accumulate over two batches; a checkpoint loads into torch's own modules."""
    original, ours = _models()
    for module in (*ours.blocks, ours):
        fully_shard(module)
    for is_last in (False, True):
        tokens, labels = (t.roll(int(is_last), 1) for t in _tokens(4))
        logits = original(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        ours.set_requires_gradient_sync(is_last)
        ours(*(_part(t, place.rank, place.world_size) for t in (tokens, labels))).backward()
    _assert_same_gradients(ours, original)

    torch.optim.SGD(ours.parameters(), 0.1).step()
    torch.optim.SGD(original.parameters(), 0.1).step()
    path = str(place.directory / "checkpoint")
    checkpoints.save(get_model_state_dict(ours), checkpoint_id=path)
    state = {name: torch.zeros_like(value) for name, value in original.state_dict().items()}
    checkpoints.load(state, checkpoint_id=path)
    torch.testing.assert_close(state, dict(original.state_dict()))


def tensor_parallel(place: Place) -> None:
    """2 × 2 ranks: FSDP over the batch, the norms on sequences, the loss on split logits."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    along = mesh["model"]
    original, ours = _models()
    sequence = Shard(1)
    of_blocks = {
        "norm": SequenceParallel(),
        "gate": ColwiseParallel(input_layouts=sequence),
        "up": ColwiseParallel(input_layouts=sequence),
        "down": RowwiseParallel(output_layouts=sequence),
    }
    of_model = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=sequence),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sequence, use_local_output=False),
    }
    for block in ours.blocks:
        parallelize_module(block, along, of_blocks)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(parallelize_module(ours, along, of_model), mesh=mesh["data"])

    tokens, labels = _tokens(4)
    nn.functional.cross_entropy(original(tokens).flatten(0, 1), labels.flatten()).backward()
    tokens, labels = (_part(t, mesh.get_local_rank("data"), 2) for t in (tokens, labels))
    logits = ours(tokens)
    loss = bt.cross_entropy(logits, labels)
    assert same_bits(whole(loss), bt.cross_entropy(whole(logits), labels))
    loss.backward()
    _assert_same_gradients(ours, original)


def huggingface_replaced(place: Place) -> None:
    """Under DDP and FSDP2: a loss without logits calls the head's module, as FSDP needs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=_VOCABULARY, num_hidden_layers=1, **sizes)
    original = LlamaForCausalLM(config).double().train()
    replaced = huggingface.replace(original, linear_loss=True)
    try:
        tokens, _ = _tokens(4)
        own = _part(tokens, place.rank, place.world_size)
        expected = original(tokens, labels=tokens).loss
        expected.backward()
        for way in ("DDP", "with the norm", "alone"):
            ours = copy.deepcopy(original)
            ours.zero_grad()
            if way == "DDP":
                model: nn.Module = DistributedDataParallel(ours)
            else:
                head = ours.lm_head if way == "alone" else [ours.model.norm, ours.lm_head]
                for module in (*ours.model.layers, head, ours):
                    model = fully_shard(module)
            model(own, labels=own).loss.backward()
            _assert_same_gradients(ours, original)
    finally:
        replaced.undo()


def gpt_in_parts(place: Place) -> None:
    """Each process has a part of the batch; ten steps give the weights of one process."""
    with mock.patch.multiple(gpt, LENGTH=256, LAYERS=1):
        alone = torch_gpt.Training(gpt.initial_weights(), True, steps=10)
        in_parts = torch_gpt.Training(gpt.initial_weights(), True, steps=10)
        mesh = init_device_mesh("cpu", (place.world_size,))

        def spread(tensor: torch.Tensor, placement: Any) -> Any:
            return distribute_tensor(tensor.detach(), mesh, [placement])

        in_parts.weights = {
            name: spread(w, Replicate()).requires_grad_() for name, w in in_parts.weights.items()
        }
        in_parts.tables = tuple(spread(table, Replicate()) for table in in_parts.tables)
        in_parts.optimizer = type(alone.optimizer)(
            list(in_parts.weights.values()),
            eps=gpt.ADAM_EPSILON,
            weight_decay=gpt.WEIGHT_DECAY,
        )
        for step, batch in enumerate(text.batches(10, 8, 256)):
            given = torch.from_numpy(batch)
            one = alone.step(given, step)
            assert same_bits(in_parts.step(spread(given, Shard(0)), step).full_tensor(), one)
        for name, weight in alone.weights.items():
            assert same_bits(in_parts.weights[name].full_tensor(), weight), name
        for name, moment in alone.state().items():
            assert same_bits(in_parts.state()[name].full_tensor(), moment), name
