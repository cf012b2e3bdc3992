"""Attention of transformers' models by `replace(model, attention=True)`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bridge.torch import huggingface
from tests.torch.test_huggingface import SIZES, tokens

transformers = pytest.importorskip("transformers")

# The families have grouped queries; a window and a softcap; a window; sinks.
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma2": {"sliding_window": 4, "attn_logit_softcapping": 2.0},
    "Qwen3": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "GptOss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4},
    "Bert": {},
}
OFF = dict.fromkeys(("norms", "mlps", "activations", "rotary", "loss"), False)


def model_of(family: str, **options: Any) -> Any:
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(
        **SIZES, **{"attention_dropout": 0.0, **FAMILIES[family], **options}
    )
    kind = "Model" if family == "Bert" else "ForCausalLM"
    model = getattr(transformers, f"{family}{kind}")._from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def assert_near(own: torch.Tensor, other: torch.Tensor) -> None:
    """Compares relative to the largest number: each layer of the model rounds again."""
    assert (own - other).abs().max() <= 1e-4 * other.abs().max()


def first(output: Any) -> torch.Tensor:
    return output[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_values_of_eager_attention(family: str) -> None:
    model = model_of(family)
    ids = tokens(2, 11)
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :3] = 0  # the padding of the second sequence
    expected = [first(model(ids)), first(model(ids, attention_mask=mask))[mask == 1]]
    replaced = huggingface.replace(model, **OFF, attention=True)
    assert list(replaced.done.values()) == ["attention"]
    found = [first(model(ids)), first(model(ids, attention_mask=mask))[mask == 1]]
    for own, other in zip(found, expected, strict=True):
        assert_near(own, other)
        assert not torch.equal(own, other)  # the function was called
    again = huggingface.replace(model, **OFF, attention=True)
    assert not again.done
    assert list(again.before.values()) == ["attention"]
    replaced.undo()
    assert model.config._attn_implementation == "eager"
    assert torch.equal(first(model(ids)), expected[0])


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GptOss"])
def test_gradients(family: str) -> None:
    model = model_of(family)
    ids = tokens(2, 9)
    parameters = list(model.parameters())

    def gradients() -> Any:
        loss = first(model(ids)).square().sum()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    expected = gradients()
    huggingface.replace(model, **OFF, attention=True)
    for own, other in zip(gradients(), expected, strict=True):
        assert (own is None) == (other is None)
        if own is not None:
            assert_near(own, other)


def test_tokens_from_a_cache() -> None:
    model = model_of("Gemma2")
    ids = tokens(2, 7)
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **options)
    huggingface.replace(model, **OFF, attention=True)
    for cache in (None, "static"):
        found = model.generate(ids, **options, cache_implementation=cache)
        assert torch.equal(found, expected)


def test_a_query_from_a_cache_has_the_bits_of_the_whole() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8), torch.randn(2, 2, 300, 8)
    run = huggingface.attention_forward
    whole, _ = run(nn.Module(), q, k, v, None)
    for i in (0, 1, 128, 299):
        alone, _ = run(nn.Module(), q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], None)
        assert torch.equal(alone, whole[:, i : i + 1])
        seen = (torch.arange(300) <= i)[None, None, None]
        cached, _ = run(nn.Module(), q[:, :, i : i + 1], k, v, seen)
        assert torch.equal(cached, whole[:, i : i + 1])


def test_models_without_the_interface_stay() -> None:
    replaced = huggingface.replace(nn.Linear(2, 2), **OFF, attention=True)
    assert replaced.left == {"attention": "no part is a model of transformers"}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"dropout": 0.1},
            ValueError,
            "dropout is 0.1, expected 0: layers take it from the config",
        ),
        ({"position_bias": torch.zeros(1)}, ValueError, "position_bias is given, expected None"),
        ({"output_attentions": True}, ValueError, "output_attentions is True, expected False"),
        ({"attention_mask": torch.zeros(2, 2)}, TypeError, "has dtype float32, expected bool"),
    ],
)
def test_refusals(given: dict[str, Any], error: type, words: str) -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(error, match=words):
        huggingface.attention_forward(nn.Module(), x, x, x, **{"attention_mask": None, **given})


def test_the_message_about_dropout_says_how_to_get_rid_of_it() -> None:
    model = model_of("Llama", attention_dropout=0.5).train()
    huggingface.replace(model, **OFF, attention=True)
    model.config.attention_dropout = 0.0  # the layers have their own copy
    with pytest.raises(ValueError, match="so build the model with a config"):
        model(tokens(2, 5))
    other = model_of("Bert", attention_probs_dropout_prob=0.0).train()
    huggingface.replace(other, **OFF, attention=True)
    assert first(other(tokens(2, 5))).isfinite().all()
