"""`huggingface.replace` of models with their own norms, tables, gates or dtypes."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad

from bridge.torch import huggingface
from tests.torch.expected import assert_close
from tests.torch.test_huggingface import SIZES, tokens

transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]

TOKENS = {name: SIZES[name] for name in SIZES if name.endswith("_id") or name == "vocab_size"}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **TOKENS}
T5["decoder_start_token_id"] = 0
EXPERTS = {"num_local_experts": 4, "intermediate_size": 16}
SSM = {"hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "num_heads": 8, "state_size": 8}
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
LINEAR |= {"linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}
LINEAR |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
PACKED = "one parameter holds the weights of all experts"
# By family: its sizes, some of its replacements, and counts of layers left, with reasons.
CAUSAL: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, int]]] = {
    "Bloom": (
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, **TOKENS},
        {"layer_norm": 6, "bias_gelu, tanh": 2},
        {},
    ),
    "GptOss": ({**SIZES, **EXPERTS}, {"rms_norm": 5, "rotary": 1}, {PACKED: 2}),
    "Mixtral": ({**SIZES, **EXPERTS}, {"rms_norm": 5, "rotary": 1}, {PACKED: 2}),
    "Mamba2": ({**SSM, "n_groups": 2, **TOKENS}, {"rms_norm": 3, "rms_norm, silu gate": 2}, {}),
    "Qwen3Next": (
        {**SIZES, **LINEAR, "num_hidden_layers": 4},
        {"rms_norm": 11, "rms_norm, silu gate": 3, "rotary": 1, "glu, silu": 4},
        {PACKED: 4},
    ),
}


@pytest.fixture
def done() -> Iterator[list[huggingface.Replaced]]:
    found: list[huggingface.Replaced] = []
    yield found
    for each in found:
        each.undo()


def randomised(model: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


@pytest.mark.parametrize("family", CAUSAL)
def test_a_family_computes_what_it_computed(family, done) -> None:
    sizes, expected_done, expected_left = CAUSAL[family]
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**sizes)
    original = randomised(getattr(transformers, f"{family}ForCausalLM")(config))
    mine, ids = copy.deepcopy(original), tokens(2, 9)
    expected = original(ids, labels=ids)
    of = [p for p in original.parameters() if p.requires_grad]
    gradients = grad(expected.loss, of, allow_unused=True)
    done.append(replaced := huggingface.replace(mine))
    counts = Counter(replaced.done.values())
    assert {name: counts[name] for name in expected_done} == expected_done
    left = Counter(why.partition(":")[0] for why in replaced.left.values())
    assert left == expected_left
    found = mine(ids, labels=ids)
    assert_close(found.logits, expected.logits, 100.0)
    assert_close(found.loss, expected.loss, 100.0)
    of = [p for p in mine.parameters() if p.requires_grad]
    for one, other in zip(grad(found.loss, of, allow_unused=True), gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other.abs().max() > 1e-7:
            assert_close(one, other, 1000.0)


@pytest.mark.parametrize("family", ["Mamba2", "Qwen3Next", "GptOss"])
def test_the_page_names_every_layer_that_stays(family: str, done) -> None:
    """A layer without parts is replaced, or the page tells why not."""
    page = (ROOT / "docs/huggingface.md").read_text()
    section = page.partition("### What stays in")[2].partition("## Speed")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    config = getattr(transformers, f"{family}Config")(**CAUSAL[family][0])
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    done.append(replaced := huggingface.replace(model, linear=True, attention=True))
    stays = [
        (name, layer)
        for name, layer in model.named_modules()
        if name not in replaced.done and (name in replaced.left or not [*layer.children()])
    ]
    assert stays
    unnamed = [name for name, layer in stays if type(layer).__name__ not in named]
    assert not unnamed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
@pytest.mark.parametrize("form", ["relu", "gated-gelu"])
def test_t5_as_it_is_loaded(family, form, dtype, done, tmp_path) -> None:
    """In float16 transformers keeps the last weights of each MLP in float32."""
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(**T5, feed_forward_proj=form)
    kind = getattr(transformers, f"{family}ForConditionalGeneration")
    randomised(kind(config)).save_pretrained(tmp_path)
    original = kind.from_pretrained(tmp_path, dtype=dtype).eval()
    wo = original.encoder.block[0].layer[1].DenseReluDense.wo
    assert wo.weight.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    mine, ids = copy.deepcopy(original), tokens(2, 9)
    expected = original(input_ids=ids, labels=ids)
    done.append(replaced := huggingface.replace(mine))
    found = mine(input_ids=ids, labels=ids)
    assert found.logits.dtype == expected.logits.dtype
    assert_close(found.logits, expected.logits, 100.0 if dtype == torch.float32 else 8.0)
    counts = Counter(replaced.done.values())
    assert counts["rms_norm"] == 12
    assert counts["cross_entropy"] == 0, "the model's forward computes its loss by itself"
    assert replaced.left["loss_function"] == "the model's forward does not call it"
    is_gated = form == "gated-gelu"
    assert counts["glu, gelu_tanh"] == (4 if is_gated else 0)
    plain = [name for name, why in replaced.left.items() if why.startswith("it has no gate")]
    assert len(plain) == (0 if is_gated else 4)


@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_attention_with_a_bias_of_positions_stays(family: str, done) -> None:
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(**T5)
    original = randomised(getattr(transformers, f"{family}ForConditionalGeneration")(config)).eval()
    mine, ids = copy.deepcopy(original), tokens(2, 9)
    off = dict.fromkeys(("norms", "mlps", "activations", "rotary", "loss"), False)
    done.append(replaced := huggingface.replace(mine, **off, attention=True))
    assert not replaced.done
    (why,) = {*replaced.left.values()}
    assert why.startswith("its layers add a bias of positions")
    found, expected = (m(input_ids=ids, labels=ids).logits for m in (mine, original))
    assert torch.equal(found, expected)


def test_t5_drops_the_same_elements_in_training(done) -> None:
    torch.manual_seed(2)
    config = transformers.T5Config(**T5, feed_forward_proj="gated-gelu", dropout_rate=0.4)
    original = randomised(transformers.T5ForConditionalGeneration(config)).train()
    mine, ids = copy.deepcopy(original), tokens(2, 9)
    done.append(huggingface.replace(mine))
    results = []
    for model in (original, mine):
        torch.manual_seed(4)
        results.append(model(input_ids=ids, labels=ids).logits)
    assert_close(results[1], results[0], 100.0)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_replace_under_another_default_device(device, done) -> None:
    """Trials run on the CPU, whatever the default device is; without a GPU a tensor raises."""
    config = transformers.LlamaConfig(**SIZES)
    torch.manual_seed(3)
    model = randomised(transformers.LlamaForCausalLM(config)).train()
    plain = huggingface.replace(model, linear_loss=True)
    expected = str(plain)
    plain.undo()
    with torch.device(device):
        done.append(replaced := huggingface.replace(model, linear_loss=True))
    assert str(replaced) == expected
    assert "5 × rms_norm" in expected


def test_a_model_on_the_meta_device(done) -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        done.append(replaced := huggingface.replace(model))
    assert Counter(replaced.done.values())["rms_norm"] == 5
    assert not replaced.left


class Linear(nn.Linear):
    """A layer with the same name as torch's, like PEFT's."""


def test_a_head_of_another_class_is_named_with_its_module() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.lm_head = Linear(32, 96, bias=False)
    with pytest.raises(ValueError, match=rf"its head is {__name__}\.Linear, expected torch\.nn\.L"):
        huggingface.replace(model, linear_loss=True)


class GatedNorm(nn.Module):
    def __init__(self, size: int, gate_first: bool, groups: int = 1) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 2.0, size)), 1e-5
        self.gate_first, self.group_size = gate_first, size // groups

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        h, dtype = hidden_states.float(), hidden_states.dtype
        if gate is not None and self.gate_first:
            h = h * nn.functional.silu(gate.float())
        h = h.unflatten(-1, (-1, self.group_size))
        h = (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)).flatten(-2)
        h = self.weight * h.to(dtype)
        if gate is not None and not self.gate_first:
            h = h * nn.functional.silu(gate.float())
        return h.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("of_weight", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_gated_norms(groups, gate_first, of_weight, dtype, draw) -> None:
    original = GatedNorm(48, gate_first, groups).to(of_weight)
    mine = copy.deepcopy(original)
    replaced = huggingface.replace(mine)
    assert replaced.done == {"": "rms_norm, silu gate"}
    given = [draw(3, 5, 48, dtype=dtype).requires_grad_() for _ in range(2)]
    for count in (1, 2):
        x, gate = [*given[:count], None][:2]
        found, expected = mine(x, gate), original(x, gate)
        assert found.dtype == expected.dtype
        one, other = ([*grad(y.sum(), given[:count])] for y in (found, expected))
        eps = max(torch.finfo(t).eps for t in (dtype, of_weight))
        ulps = 8.0 * eps / torch.finfo(dtype).eps
        for mine_, theirs in zip([found, *one], [expected, *other], strict=True):
            assert_close(mine_, theirs, ulps)
    assert torch.equal(mine(hidden_states=given[0], gate=given[1]), mine(*given))
    with pytest.raises(TypeError):
        mine(given[0], other=given[1])
