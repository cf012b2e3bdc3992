"""Linear layers and embeddings of models by `replace(model, linear=True)`."""

from __future__ import annotations

import copy
import io
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode

import bridge.torch as bt
from bridge.torch import huggingface
from tests.torch import test_huggingface_changed as changed
from tests.torch.expected import assert_same_bits
from tests.torch.test_huggingface import SIZES, assert_like, model_of, tokens

transformers = pytest.importorskip("transformers")

OFF = dict.fromkeys(("norms", "mlps", "activations", "rotary", "loss"), False)
undone = changed.undone


def gpt2() -> Any:
    torch.manual_seed(2)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64}
    sizes |= dict.fromkeys(("bos_token_id", "eos_token_id"), 1)
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


# GPT-2 has weights [in, out], biases, and a head that is tied to the embedding.
MODELS = {
    "Llama": ({"linear": 15, "embedding": 1}, lambda: model_of("Llama")),
    "GPTNeoX": ({"linear": 9, "embedding": 1}, lambda: model_of("GPTNeoX")),
    "GPT2": ({"linear": 9, "embedding": 2}, gpt2),
}
every_model = pytest.mark.parametrize("name", MODELS)


class Seen(TorchDispatchMode):
    """Counts the calls of each op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def gradients_of(model: Any, logits: Tensor) -> list[Tensor]:
    cotangent = torch.randn(logits.shape, generator=torch.Generator().manual_seed(6))
    return list(torch.autograd.grad(logits, [*model.parameters()], cotangent.to(logits.dtype)))


@every_model
def test_values_gradients_undo_and_again(name: str) -> None:
    counts, make = MODELS[name]
    model, ids = make().train(), tokens(2, 9)
    ids[:, 3] = ids[:, 5] = 0  # the padding of Llama
    kinds = [type(m) for m in model.modules()]
    state = {key: value.data_ptr() for key, value in model.state_dict(keep_vars=True).items()}
    expected = model(ids).logits
    gradients = gradients_of(model, expected)
    replaced = huggingface.replace(model, **OFF, linear=True)
    assert Counter(replaced.done.values()) == counts
    assert not replaced.left
    after = {key: value.data_ptr() for key, value in model.state_dict(keep_vars=True).items()}
    assert after == state
    with Seen() as seen:
        found = model(ids).logits
    assert seen.calls["bridge.matmul"] == counts["linear"]
    assert not seen.calls.keys() & {"aten.mm", "aten.addmm", "aten.linear", "aten.embedding"}
    assert_like([found], [expected])
    assert_like(gradients_of(model, found), gradients)
    for copied in (copy.deepcopy(model), _from_file(model)):
        assert_same_bits(copied(ids).logits, found)
    again = huggingface.replace(model, **OFF, linear=True)
    assert not again.done
    assert Counter(again.before.values()) == counts
    replaced.undo()
    assert [type(m) for m in model.modules()] == kinds
    assert torch.equal(model(ids).logits, expected)


def _from_file(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_layer_has_the_bits_of_its_op(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    plain, bare, of_gpt2 = (
        nn.Linear(700, 33),
        nn.Linear(700, 5, bias=False),
        transformers.pytorch_utils.Conv1D(33, 700),
    )
    table = nn.Embedding(19, 700, padding_idx=-2)
    model = nn.ModuleList([plain, bare, of_gpt2, table]).to(dtype)
    huggingface.replace(model, linear=True)
    x = torch.randn(3, 7, 700).to(dtype)
    assert_same_bits(plain(x), bt.linear(x, plain.weight, plain.bias))
    assert_same_bits(bare(input=x), bt.linear(x, bare.weight))
    assert_same_bits(of_gpt2(x), bt.linear(x, of_gpt2.weight.mT, of_gpt2.bias))
    ids, g = torch.randint(0, 19, (4, 300)), torch.randn(4, 300, 700).to(dtype)
    ids[0, :9] = 17
    (found,) = torch.autograd.grad(table(ids), table.weight, g)
    (expected,) = torch.autograd.grad(bt.embedding(ids, table.weight), table.weight, g)
    expected[17] = 0
    assert_same_bits(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert plain(x.float()).dtype == torch.bfloat16


def test_torch_compile_has_the_bits_of_eager() -> None:
    torch.manual_seed(4)
    layers = nn.Embedding(9, 20, 0), nn.Linear(20, 7), transformers.pytorch_utils.Conv1D(5, 7)
    model, ids = nn.Sequential(*layers), torch.randint(0, 9, (2, 11))
    assert len(huggingface.replace(model, linear=True).done) == 3
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found, expected = compiled(ids), model(ids)
    assert_same_bits(found, expected)
    for own, other in zip(gradients_of(model, found), gradients_of(model, expected), strict=True):
        assert_same_bits(own, other)


class Scaled(nn.Embedding):
    """An embedding as those of Gemma 3 and, with an offset, of OPT."""

    def forward(self, ids: Tensor, offset: int = 0) -> Tensor:
        return super().forward(ids + offset) * 3.0


def test_an_embedding_that_calls_its_base_class() -> None:
    torch.manual_seed(5)
    table, ids = Scaled(9, 5), torch.randint(0, 8, (700,))
    g = torch.randn(700, 5)
    replaced = huggingface.replace(table, linear=True)
    assert replaced.done == {"": "embedding"}
    for each in (table, copy.deepcopy(table), _from_file(table)):
        (found,) = torch.autograd.grad(y := each(ids, offset=1), each.weight, g)
        expected = bt.embedding(ids + 1, each.weight) * 3.0
        assert_same_bits(y, expected)
        assert_same_bits(found, torch.autograd.grad(expected, each.weight, g)[0])
    replaced.undo()
    assert type(table) is Scaled


@pytest.mark.parametrize("change", changed.CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("family", ["Llama", "GPTNeoX"])
def test_weights_that_change_after_replace(family: str, change: Any, undone: Any) -> None:
    original = model_of(family)
    mine = copy.deepcopy(original)
    undone.append(huggingface.replace(mine, linear=True))
    change(original)
    change(mine)
    changed.assert_alike(mine, original)


def test_fsdp_with_flat_parameters(undone: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel

    original = model_of("GPTNeoX")
    mine = copy.deepcopy(original)
    undone.append(huggingface.replace(mine, linear=True))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a single process shards nothing, and torch warns
            on_cpu = {"device_id": torch.device("cpu")}
            models = [FullyShardedDataParallel(each, **on_cpu) for each in (mine, original)]
            changed.assert_alike(*models)
    finally:
        dist.destroy_process_group()


class Doubled(nn.Linear):
    """A layer as the quantised ones and those with adapters are: a subclass that computes more."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Renamed(nn.Linear):
    """A subclass without a forward of its own."""


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(3, 2, dtype=torch.int8))
        self.register_buffer("table", torch.zeros(3, 2))


class Sums(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding_bag(ids, self.weight)


def _hooked() -> nn.Linear:
    made = nn.Linear(2, 2)
    made.forward = made.forward  # type: ignore[method-assign]
    return made


def test_layers_that_stay_and_the_reasons() -> None:
    layers = {
        "renamed": (Renamed(2, 2), "linear"),
        "doubled": (Doubled(2, 2), "its class Doubled has a forward of its own"),
        "table": (nn.Embedding(4, 2, max_norm=1.0), "max_norm is 1.0, expected None"),
        "sparse": (nn.Embedding(4, 2, sparse=True), "sparse is True, expected False"),
        "frequent": (
            nn.Embedding(4, 2, scale_grad_by_freq=True),
            "scale_grad_by_freq is True, expected False",
        ),
        "sums": (Sums(4, 2), "its class Sums has a forward of its own"),
        "images": (nn.Conv2d(1, 2, 3), "its class Conv2d computes with weight itself"),
        "packed": (Packed(), "its class Packed computes with qweight itself"),
        "short": (
            nn.Linear(2, 2).to(torch.float8_e4m3fn),
            "its weight has dtype float8_e4m3fn, expected a float of 16 to 64 bits",
        ),
        "hooked": (_hooked(), "its forward was replaced, as hooks of other packages do"),
        "pruned": (prune.l1_unstructured(nn.Linear(2, 2), "weight", 0.5), COMPUTED),
        "normed": (parametrizations.weight_norm(nn.Linear(2, 2)), COMPUTED),
        "own": (bt.Linear(2, 2), None),
        "norm": (nn.LayerNorm(3), None),
    }
    model = nn.ModuleDict({name: layer for name, (layer, _) in layers.items()})
    replaced = huggingface.replace(model, **OFF, linear=True)
    for name, (_, words) in layers.items():
        assert replaced.done.get(name, replaced.left.get(name)) == words
    assert list(replaced.done) == ["renamed"]


COMPUTED = "its weight is computed from other parameters: call replace before setting that up"


def test_the_parts_of_torchs_attention_stay() -> None:
    layer = nn.MultiheadAttention(8, 2)
    replaced = huggingface.replace(layer, linear=True)
    assert not replaced.done
    assert replaced.left == {
        "": "its class MultiheadAttention computes with in_proj_weight itself",
        "out_proj": "the layer around it computes with its weight",
    }


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(model_of("Llama").config)
    replaced = huggingface.replace(model, **OFF, linear=True)
    assert Counter(replaced.done.values()) == MODELS["Llama"][0]
    x = torch.zeros(2, model.config.hidden_size)
    assert model.lm_head(x.to("meta")).shape == (2, 96)
    with pytest.raises(ValueError, match="linear: weight is on meta, expected cpu, where x is"):
        model.lm_head(x)


@pytest.mark.parametrize("together", [True, False])
def test_with_a_loss_without_logits(together: bool) -> None:
    model, ids = model_of("Llama").train(), tokens(2, 9)
    plain = copy.deepcopy(model)
    if together:
        calls = [huggingface.replace(model, **OFF, linear=True, linear_loss=True)]
    else:
        calls = [huggingface.replace(model, **OFF, linear=True)]
        calls.append(huggingface.replace(model, **OFF, linear_loss=True))
    output = model(ids, labels=ids)
    assert output.logits is None
    assert_like([output.loss], [plain(ids, labels=ids).loss])
    with Seen() as seen:
        model(ids)
    assert seen.calls["bridge.matmul"] == 15  # with the head
    for each in reversed(calls):
        each.undo()
    assert type(model.lm_head) is nn.Linear
    huggingface.replace(model, **OFF, linear_loss=True)
    late = huggingface.replace(model, **OFF, linear=True)
    words = "an earlier call replaced it for linear_loss: give both arguments to one call"
    assert late.left == {"lm_head": words}


# Sequences beyond 256 tokens, where a key at another place is in another leaf of the sums.
@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_long_sequences_from_a_cache(family: str, undone: Any) -> None:
    torch.manual_seed(3)
    window = {"sliding_window": 16} if family == "Mistral" else {}
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **window, "eos_token_id": None})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    undone.append(huggingface.replace(model, linear=True, attention=True))
    prompts, mask = tokens(2, 254), torch.ones(2, 254, dtype=torch.long)
    if family == "Llama":
        mask[1, :40] = 0
    found = model.eval().generate(
        prompts,
        attention_mask=mask,
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        cache=transformers.DynamicCache(),  # without a config it drops no key
    )
    mask = torch.nn.functional.pad(mask, (0, 8), value=1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    whole = model.train()(found.sequences, attention_mask=mask, position_ids=places).logits
    assert_same_bits(torch.stack(found.logits, 1), whole[:, 253:-1])
