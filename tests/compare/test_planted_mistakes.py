"""Each planted mistake of a port is named at its line on both sides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from tests.compare import language, vision
from tests.compare.language import params_of

# mistake: (port, words of torch's line or operation, words of the cause)
VISION = {
    "eps": ("transformer", "norm", "eps 1e-05 here, 0.001 there"),
    "eps outside": ("transformer", "norm", "outside of it there"),
    "gelu": ("transformer", "gelu", "GELU: erf here, tanh there"),
    "transposed": ("transformer", "self.square", ""),
    "variance": ("transformer", "norm", "n − 1"),
    "softmax axis": ("transformer", "scaled_dot", ""),
    "scale": ("transformer", "scaled_dot", "a factor"),
    "heads": ("transformer", "qkv", ""),
    "swap": ("transformer", "scaled_dot", "transposed"),
    "bias": ("transformer", "self.proj", "a bias"),
    "dropout": ("transformer", "norm2", "dropout is on"),
    "padding": ("residual", "conv1", "padding [(1, 1), (1, 1)] here"),
    "dilation": ("residual", "conv2", "[2, 2] here, [1, 1] there"),
    "pool": ("residual", "avg_pool2d", ""),
    "momentum": ("training", "self.bn1", ""),
    "biased": ("training", "self.bn1", ""),
    "bicubic": ("bicubic", "interpolate", "coefficient -0.75"),
    "antialias": ("bilinear", "interpolate", "antialias"),
}
LANGUAGE = {
    "interleaved": ("decoder", "torch.cat", ""),
    "rounded": ("decoder", "cos", "rounded to bfloat16"),
    "mask": ("decoder", "scaled_dot", ""),
    "window": ("decoder", "scaled_dot", ""),
    "untied": ("decoder", "self.embed.weight.T", ""),
    "smoothing": ("encoder_decoder", "cross_entropy", ""),
    "router": ("experts", "weights", ""),
    "cell": ("recurrent", "lstm", ""),
}


def planted(module: Any, mistake: str) -> set[int]:
    """Returns the numbers of the lines with a mistake."""
    lines = Path(module.__file__).read_text().splitlines()
    return {
        k
        for k, line in enumerate(lines, 1)
        if "# plant:" in line
        and mistake in line.partition("# plant:")[2].split("#")[0].strip().split(", ")
    }


def compared(
    name: str, mistake: str = "", form: str = "", dtype: Any = None, **options: Any
) -> Any:
    """Compares a model with its port."""
    torch.manual_seed(1)
    random = np.random.default_rng(1)
    model, port, inputs, jax_inputs = PORTS[name](random)
    params = params_of(model, dtype)
    model.train(name == "training")
    if mistake == "untied":
        params["head"] = params["embed.weight"] + 0.1 * random.standard_normal((40, 32))
    changes = {"m": mistake} | ({"form": form} if form else {})
    jax_inputs = inputs if jax_inputs is None else jax_inputs
    if dtype is not None:
        inputs = [torch.tensor(x).to(dtype) if x.dtype == np.float32 else x for x in inputs]
        jax_inputs = [
            jnp.asarray(x, params[next(iter(params))].dtype) if x.dtype == np.float32 else x
            for x in jax_inputs
        ]
    function = _training if name == "training" else port
    return bridge.compare(
        model,
        lambda *args: function(params, *args, **changes),
        *inputs,
        jax_inputs=tuple(jax_inputs),
        **options,
    )


def _training(params: Any, x: Any, m: str) -> Any:
    return vision.residual(params, x, m, True)


def image(model: Callable[[], Any], port: Any, channels: int, random: Any) -> Any:
    x = random.standard_normal((2, channels, 16, 16)).astype(np.float32)
    return model(), port, [x], [x.transpose(0, 2, 3, 1)]


def _tokens(model: Callable[[], Any], port: Any, most: int, count: int, random: Any) -> Any:
    return model(), port, [random.integers(0, most, (2, 9)) for _ in range(count)], None


def _rows(model: Callable[[], Any], port: Any, shape: tuple[int, ...], random: Any) -> Any:
    return model(), port, [random.standard_normal(shape).astype(np.float32)], None


class _Training(vision.Residual):
    """Returns the statistics too, as a port must."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y, *(
            s for bn in (self.bn1, self.bn2) for s in (bn.running_mean, bn.running_var)
        )  # fmt: skip


PORTS: dict[str, Callable[[Any], Any]] = {
    "transformer": partial(image, vision.Transformer, vision.transformer, 3),
    "residual": partial(image, vision.Residual, vision.residual, 3),
    "training": partial(image, _Training, vision.residual, 3),
    "bicubic": partial(
        image,
        partial(vision.Resized, "bicubic", 24),
        partial(vision.resized, mode="linear", size=24),
        8,
    ),
    "bilinear": partial(
        image,
        partial(vision.Resized, "bilinear", 8),
        partial(vision.resized, mode="linear", size=8),
        8,
    ),
    "decoder": partial(_tokens, language.Decoder, language.decoder, 40, 1),
    "encoder_decoder": partial(_tokens, language.EncoderDecoder, language.encoder_decoder, 30, 2),
    "experts": partial(_rows, language.Experts, language.experts, (10, 16)),
    "recurrent": partial(_rows, language.Recurrent, language.recurrent, (2, 6, 8)),
}


@pytest.mark.parametrize("mistake", [*VISION, *LANGUAGE])
def test_a_mistake_is_named_at_its_line(mistake: str) -> None:
    module = vision if mistake in VISION else language
    port, torch_words, cause = {**VISION, **LANGUAGE}[mistake]
    report = compared(port, mistake)
    lines = planted(module, mistake)
    assert report.parts, str(report)
    sources = {part.jax.source for part in report.parts}
    name = Path(module.__file__).name
    files = {source.rpartition("/")[2].partition(":")[0] for source in sources}
    assert files == {name}, f"{files}\n{report}"
    found = {int(source.rpartition(":")[2]) for source in sources}
    assert found <= lines, f"{found} are named, {lines} planted\n{report}"
    assert int(report.parts[0].jax.source.rpartition(":")[2]) in lines, str(report)
    first = report.first
    assert first is not None
    words = f"{first.torch.module} {first.torch.op} {first.torch.code}"
    assert torch_words in words, f"{words}\n{report}"
    assert cause in first.cause, str(report)
    assert first.error > 1e-6


def test_two_mistakes_are_both_named() -> None:
    torch.manual_seed(1)
    model = vision.Transformer()
    params = params_of(model)
    x = np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32)

    def port(x: Any) -> Any:
        x = vision.jax.lax.conv_general_dilated(
            x,
            params["patch.weight"].transpose(2, 3, 1, 0),
            (4, 4),
            "VALID",
            dimension_numbers=vision.NHWC,
        )
        x = (x + params["patch.bias"]).reshape(len(x), 16, 24) + params["pos"]
        x = vision.block(params, "blocks.0.", x, "gelu", "")
        x = vision.block(params, "blocks.1.", x, "scale", "")
        return vision.norm(params, "norm", x, "").mean(1)

    report = bridge.compare(model, port, x, jax_inputs=(x.transpose(0, 2, 3, 1),))
    lines = [int(part.jax.source.rpartition(":")[2]) for part in report.parts]
    assert [{line} <= planted(vision, name) for line, name in zip(lines, ("gelu", "scale"), strict=True)] == [True, True], str(report)  # fmt: skip  # noqa: E501


def test_the_page_shows_the_part_and_keeps_parameters_folded(tmp_path: Path) -> None:
    report = compared("transformer", "gelu")
    report.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    values, parameters = page.split("<details>")
    assert "<b>blocks.0</b>: error " in values
    assert "GELU: erf here, tanh there." in values
    assert values.count(' red"') == 2 * report.parts[0].count
    assert "blocks.0.norm1.weight" not in values.partition("<h2>Values")[2]
    assert "blocks.0.norm1.weight" in parameters
    assert "paired with a rearranged value" in values
    for script in ("<script", "http://", "https://"):
        assert script not in page
