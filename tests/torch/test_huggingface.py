"""bridge.torch.huggingface, compared with the models and layers of transformers themselves."""

from __future__ import annotations

import copy
import inspect
import io
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from bridge.torch import huggingface
from tests.torch.expected import assert_close, assert_same_bits
from tests.torch.replay import replay

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# The families differ in their norms, gates, rotary embeddings, or uses of logits.
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "Llama": ({}, {"rms_norm": 5, "glu, silu": 2}),
    "Qwen3": ({}, {"rms_norm": 9, "glu, silu": 2}),
    "Gemma2": ({}, {"rms_norm": 9, "glu, gelu_tanh": 2}),
    "Phi3": ({}, {"rms_norm": 5, "glu, silu": 2}),
    "Granite": ({"logits_scaling": 8.0}, {"rms_norm": 5, "glu, silu": 2}),
    "Cohere": ({}, {"layer_norm": 3, "glu, silu": 2}),
    "Glm4": ({"partial_rotary_factor": 0.5}, {"rms_norm": 9, "glu, silu": 2}),
    "Nemotron": ({}, {"squared_relu": 2, "layer_norm": 5}),
    "GPTNeoX": ({}, {"layer_norm": 5, "bias_gelu, none": 2}),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def model_of(family: str) -> Any:
    torch.manual_seed(len(family))
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family][0])
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.fixture
def replaced_families():
    """Undoes replacements, above all of functions that other models call too."""
    done: list[huggingface.Replaced] = []
    yield done
    for each in reversed(done):
        each.undo()


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 96, shape, generator=torch.Generator().manual_seed(5))


def assert_like(found: Any, expected: Any, ulps: float = 100.0) -> None:
    """Compares results of a whole model, in which each layer rounds again."""
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, ulps)


@every_family
def test_a_replaced_model_computes_what_it_computed(family, replaced_families) -> None:
    model, ids = model_of(family), tokens(2, 9)
    mine = copy.deepcopy(model)
    expected = model(input_ids=ids, labels=ids)
    cotangent = torch.randn(expected.logits.shape, generator=torch.Generator().manual_seed(6))
    of = [*model.parameters()]
    gradients = grad([expected.loss, expected.logits], of, [torch.ones(()), cotangent])
    replaced_families.append(replaced := huggingface.replace(mine))
    assert [type(m).__name__ for m in mine.modules()] == [type(m).__name__ for m in model.modules()]
    assert all(map(isinstance, mine.modules(), map(type, model.modules())))
    assert mine.state_dict().keys() == model.state_dict().keys()
    found = mine(input_ids=ids, labels=ids)
    assert_like((found.loss, found.logits), (expected.loss, expected.logits))
    of = [*mine.parameters()]
    assert_like(grad([found.loss, found.logits], of, [torch.ones(()), cotangent]), gradients)
    counts = Counter(replaced.done.values())
    assert FAMILIES[family][1].items() <= counts.items()
    assert counts["rotary"] == counts["cross_entropy"] == 1
    assert not replaced.left


@every_family
def test_a_loss_without_logits(family, replaced_families) -> None:
    model, ids = model_of(family), tokens(2, 9)
    labels = torch.where(ids % 5 == 0, -100, ids)
    mine = copy.deepcopy(model).train()
    model.train()
    replaced_families.append(replaced := huggingface.replace(mine, linear_loss=True))
    assert replaced.done[""] == "linear_cross_entropy"
    assert inspect.signature(mine.forward) == inspect.signature(model.forward)
    for options in ({}, {"num_items_in_batch": torch.tensor(7)}, {"num_items_in_batch": 3}):
        expected = model(input_ids=ids, labels=labels, **options).loss
        found = mine(ids, labels=labels, **options)
        assert found.logits is None
        assert_like([found.loss], [expected])
        assert_like(
            *(grad(y, [*m.parameters()]) for y, m in ((found.loss, mine), (expected, model)))
        )
    for more in ({"logits_to_keep": 2}, {"return_dict": False}):
        assert_like(
            [mine(ids, labels=labels[:, -2:] if "logits_to_keep" in more else labels, **more)[1]],
            [model(ids, labels=labels[:, -2:] if "logits_to_keep" in more else labels, **more)[1]],
        )
    assert mine.eval()(ids, labels=labels).logits.shape == (2, 9, 96)


class Times(transformers.LlamaForCausalLM):
    def forward(self, *given: Any, **named: Any) -> Any:
        named.pop("labels")
        logits = super().forward(*given, **named).logits * 3.0
        return SimpleNamespace(loss=logits.square().mean())


TimesForCausalLM = type("TimesForCausalLM", (Times,), {})


def test_a_loss_without_logits_is_refused_where_it_would_be_another() -> None:
    model = model_of("Llama")
    with pytest.raises(ValueError, match=r"the model is LlamaModel, expected a …ForCausalLM"):
        huggingface.replace(model.model, linear_loss=True)
    with pytest.raises(ValueError, match=r"changes its logits in an unknown way"):
        huggingface.replace(TimesForCausalLM(model.config), linear_loss=True)
    sizes = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
    opt = transformers.OPTForCausalLM(transformers.OPTConfig(**sizes))
    with pytest.raises(ValueError, match=r"OPTForCausalLM needs more from its layers than hidden"):
        huggingface.replace(opt, linear_loss=True)
    with torch.device("meta"):
        of_meta = transformers.LlamaForCausalLM(model.config)
    with pytest.raises(ValueError, match="on the meta device, expected their numbers"):
        huggingface.replace(of_meta, linear_loss=True)
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(
        ValueError, match=r"its head is torch\S*Sequential, expected torch\.nn\.Lin"
    ):
        huggingface.replace(model, linear_loss=True)
    assert not any(hasattr(type(m), "replaces") for m in model.modules())
    home = sys.modules[type(model).__module__]
    assert not hasattr(home.apply_rotary_pos_emb, "__wrapped__")


class Adapted(nn.Module):
    """A head to which an adapter adds logits, like PEFT's."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.added = head, nn.Linear(head.in_features, head.out_features)
        self.weight = head.weight

    def forward(self, x: torch.Tensor, **named: Any) -> torch.Tensor:
        return self.base_layer(x, **named) + self.added(x)


def test_a_loss_without_logits_of_a_head_that_has_an_adapter_since(replaced_families) -> None:
    model, ids = model_of("Llama").train(), tokens(2, 9)
    replaced_families.append(huggingface.replace(model, linear_loss=True))
    model.lm_head = Adapted(model.lm_head)
    with pytest.raises(
        ValueError, match=r"has become Adapted, which changed .* to shape \[2, 9, 96\]"
    ):
        model(ids, labels=ids)


def test_undo_and_again() -> None:
    model, ids = model_of("Llama"), tokens(1, 5)
    kinds = [type(m) for m in model.modules()]
    home = sys.modules[type(model).__module__]
    rotary, expected = home.apply_rotary_pos_emb, model(ids, labels=ids)
    replaced = huggingface.replace(model, linear_loss=True)
    again = huggingface.replace(model)
    assert not again.done, "what is replaced stays"
    assert again.before["model.norm"] == "rms_norm"
    assert "2 × glu, silu, replaced by an earlier call" in str(again)
    assert str(replaced).splitlines()[0] == "2 × glu, silu"
    assert home.apply_rotary_pos_emb is not rotary
    replaced.undo()
    assert [type(m) for m in model.modules()] == kinds
    assert home.apply_rotary_pos_emb is rotary
    assert "_loss_function" not in vars(model)
    found = model(ids, labels=ids)
    assert_same_bits(found.loss, expected.loss)
    assert str(huggingface.replace(nn.ReLU())) == "nothing"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_replaced_inside_of_an_autocast(replaced_families, dtype) -> None:
    plain = huggingface.replace(model_of("Llama"))
    expected = str(plain)
    plain.undo()
    with torch.autocast("cpu", dtype):
        replaced_families.append(replaced := huggingface.replace(model_of("Llama")))
    assert str(replaced) == expected


def test_only_what_is_asked_for(replaced_families) -> None:
    model = model_of("Llama")
    others = {"mlps": False, "activations": False, "rotary": False, "loss": False}
    replaced_families.append(replaced := huggingface.replace(model, **others))
    assert set(replaced.done.values()) == {"rms_norm"}


def test_copies_and_files(replaced_families) -> None:
    model, ids = model_of("Llama").train(), tokens(1, 5)
    replaced_families.append(huggingface.replace(model, linear_loss=True))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    expected = model(ids, labels=ids).loss
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert_same_bits(other(ids, labels=ids).loss, expected)
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]


def test_generation_and_torch_compile(replaced_families) -> None:
    model, ids = model_of("Llama"), tokens(2, 5)
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    replaced_families.append(huggingface.replace(model))
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), expected)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same_bits(compiled(ids).logits, model(ids).logits)


class Clamped(nn.Module):
    """A layer that equals a norm except for rare numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x.clamp(-20, 20), (8,), self.weight, self.eps)


class Gated(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 12), nn.Linear(8, 12)
        self.down_proj, self.dropout = nn.Linear(12, 8), dropout

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(nn.functional.dropout(h, self.dropout, self.training))


class Swapped(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.up_proj(x)) * self.gate_proj(x))


class Conditional(nn.RMSNorm):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x) if gate is None else super().forward(x) * gate


class WithActivation(nn.Module):
    def __init__(self, act_fn: Any, p: float = 0.0) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 16), nn.Linear(8, 16)
        self.down_proj, self.act_fn, self.dropout = nn.Linear(16, 8), act_fn, nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))


@pytest.mark.parametrize(
    ("first", "second", "done"),
    [
        ((nn.functional.silu,), (nn.functional.gelu,), ["glu, silu", "glu, gelu"]),
        ((nn.GELU("tanh"),), (nn.GELU(),), ["glu, gelu_tanh", "glu, gelu"]),
        ((nn.SiLU(),), (nn.SiLU(), 0.5), ["glu, silu"]),
        ((nn.SiLU(),), (nn.SiLU(),), ["glu, silu"] * 2),
    ],
)
def test_layers_of_a_class_that_differ(first, second, done, draw) -> None:
    model = nn.Sequential(WithActivation(*first), WithActivation(*second)).eval()
    x = draw(5, 8, dtype=torch.float32)
    expected = model(x)
    assert [*huggingface.replace(model, activations=False).done.values()] == done
    assert_close(model(x), expected.double(), 8)


def test_a_norm_of_channels_is_left_alone() -> None:
    """It is a layer norm on rows, but not on images."""
    model, x = nn.Sequential(nn.Conv1d(4, 16, 1), nn.GroupNorm(1, 16)), torch.randn(2, 4, 16)
    expected = model(x)
    assert [*huggingface.replace(model).left] == ["1"]
    assert_same_bits(model(x), expected)


def test_what_computes_something_else_is_left_alone() -> None:
    hooked = nn.LayerNorm(8)
    hooked.forward = hooked.forward
    layers = nn.Sequential(
        Clamped(), Gated(0.1), Conditional(8, eps=1e-6), hooked, Gated(0.0), Swapped(0)
    )
    state = torch.random.get_rng_state()
    replaced = huggingface.replace(layers)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert replaced.done == {"4": "glu, silu"}
    assert replaced.left == {
        "0": "it computes something else",
        "1": "it computes something else",
        "2": "it computes something else",
        "3": "its forward was replaced, as hooks of other packages do",
        "5": "it computes something else",
    }
    assert "left 4, such as 0, 1, 2: it computes something else" in str(replaced)


@pytest.mark.parametrize("of_weight", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["Llama", "Gemma"])
def test_norms_by_name(family, dtype, of_weight, draw) -> None:
    if dtype == torch.float32 and of_weight != dtype:
        pytest.skip("no model has it")
    home = getattr(transformers.models, family.lower())
    original = getattr(getattr(home, f"modeling_{family.lower()}"), f"{family}RMSNorm")(
        33, eps=1e-5
    )
    module = getattr(huggingface, f"{family}RMSNorm")(33, eps=1e-5)
    assert module.extra_repr() == original.extra_repr()
    assert module.state_dict().keys() == original.state_dict().keys()
    x, weight = draw(2, 3, 33, dtype=dtype), draw(33, dtype=of_weight)
    module.weight.data = original.weight.data = weight
    assert module(x).dtype == original(x).dtype
    offset = 1.0 if family == "Gemma" else 0.0

    def ours(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(module, {"weight": weight}, (x,))

    def exact(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * (offset + weight)

    replay(ours, exact, [x, weight], dtypes=[original(x).dtype])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_the_mlp_by_name(act, draw) -> None:
    config = transformers.LlamaConfig(**SIZES, hidden_act=act, mlp_bias=True)
    original = transformers.models.llama.modeling_llama.LlamaMLP(config)
    module = huggingface.LlamaMLP(config)
    module.load_state_dict(original.state_dict())
    x = draw(2, 32, dtype=torch.float32)
    assert_close(module(x), original.double()(x.double()), 8.0)
    config.hidden_act = "mish"
    with pytest.raises(ValueError, match=r"config\.hidden_act is 'mish', expected one of silu, "):
        huggingface.LlamaMLP(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_rotary_by_name(heads, dtype, draw) -> None:
    original = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    half = [draw(2, 5, 4, dtype=dtype) for _ in range(2)]
    tables = [torch.cat((t, t), -1) for t in half]
    shapes = [(2, 3, 5, 8), (2, 1, 5, 8)] if heads == 1 else [(2, 5, 3, 8), (2, 5, 1, 8)]
    replay(
        lambda q, k: huggingface.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=heads),
        lambda q, k: original(q, k, *(t.double() for t in tables), heads),
        [draw(*shape, dtype=dtype) for shape in shapes],
    )


@pytest.mark.parametrize(
    "name",
    [
        *("NewGELUActivation", "GELUTanh", "FastGELUActivation", "GELUActivation"),
        *("QuickGELUActivation", "ReLUSquaredActivation"),
    ],
)
def test_activations_by_name(name, draw) -> None:
    original = getattr(transformers.activations, name)()
    replay(getattr(huggingface, name)(), original, [draw(3, 7, dtype=torch.float32)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["ForCausalLMLoss", "ForMaskedLMLoss"])
def test_losses_by_name(name, dtype, draw) -> None:
    ours = getattr(huggingface, name)
    original = getattr(transformers.loss.loss_utils, name)
    labels = torch.where(tokens(2, 5) % 4 == 0, -100, tokens(2, 5) % 11)
    for options in ({}, {"num_items_in_batch": torch.tensor(5)}, {"ignore_index": 3}):
        given = labels if "ignore_index" not in options else labels.clamp(min=0)
        if name == "ForCausalLMLoss" and "ignore_index" in options:
            options = {**options, "shift_labels": given}

        def exact(x: Tensor, given=given, options=options) -> Tensor:
            return original(x, given, 11, **options)

        def mine(x: Tensor, given=given, options=options) -> Tensor:
            return ours(x, given, 11, **options)

        replay(mine, exact, [draw(2, 5, 11, dtype=dtype)], dtypes=[torch.float32], ulps=32.0)
    empty = torch.full((2, 5), -100)
    assert ours(draw(2, 5, 11, dtype=dtype), empty, 11) == 0.0
    logits, bytes_ = draw(2, 5, 11, dtype=dtype), (tokens(2, 5) % 11).to(torch.uint8)
    assert torch.equal(ours(logits, bytes_, 11), ours(logits, bytes_.long(), 11))
