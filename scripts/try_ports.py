"""Compares ports in a checkout of jax-ml/bonsai with transformers, on random weights.

    scripts/try_ports.py --checkout PATH [--only NAME ...]

It writes docs/benchmarks/ports.json and docs/ports.md. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "benchmarks" / "ports.json"
PAGE = ROOT / "docs" / "ports.md"
# A torch model, a JAX function, the inputs of torch and the inputs of JAX.
Pair = tuple[Any, Any, dict[str, Any], tuple[Any, ...]]


def _saved(model: Any, load: Callable[[str], Any], is_pickled: bool = False) -> tuple[Any, Any]:
    """Sets all parameters of a model to random numbers, and loads the port from its checkpoint."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        if is_pickled:
            torch.save(model.state_dict(), Path(folder) / "model.bin")
        else:
            model.save_pretrained(folder)
        port = load(folder)
    if hasattr(port, "eval"):
        port.eval()
    return model, port


def _image(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _tokens(*shape: int, most: int = 1000) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(5, most, shape)


def vit() -> Pair:
    from bonsai.models.vit import modeling, params
    from transformers import ViTConfig, ViTForImageClassification

    config = modeling.ModelConfig.vit_p16_224()
    model, port = _saved(
        ViTForImageClassification(ViTConfig(num_labels=1000)),
        lambda folder: params.create_vit_from_pretrained(folder, config),
    )
    x = _image(1, 3, 224, 224)
    return (
        lambda pixel_values: model(pixel_values).logits,
        lambda x: port(x, rngs=None),
        {"pixel_values": x},
        (x.transpose(0, 2, 3, 1),),
    )


def resnet50() -> Pair:
    from bonsai.models.resnet import modeling, params
    from transformers import ResNetConfig, ResNetForImageClassification

    config = modeling.ModelConfig.resnet50()
    model, port = _saved(
        ResNetForImageClassification(ResNetConfig(num_labels=1000)),
        lambda folder: params.create_resnet_from_pretrained(folder, config),
    )
    x = _image(1, 3, 128, 128)
    return (
        lambda pixel_values: model(pixel_values).logits,
        lambda x: port(x),
        {"pixel_values": x},
        (x.transpose(0, 2, 3, 1),),
    )


def dinov3() -> Pair:
    from bonsai.models.dinov3 import modeling, params
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    sizes = {
        "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_register_tokens": 4, "image_size": 64,
    }  # fmt: skip
    config = modeling.ModelConfig(**sizes)
    model, port = _saved(
        DINOv3ViTModel(DINOv3ViTConfig(**sizes)),
        lambda folder: params.create_model_from_safe_tensors(folder, config),
    )
    x = _image(1, 3, 64, 64)
    return (
        lambda pixel_values: model(pixel_values).last_hidden_state,
        lambda x: port(x)["last_hidden_state"],
        {"pixel_values": x},
        (x,),
    )


def vjepa2() -> Pair:
    from bonsai.models.vjepa2 import modeling, params
    from transformers import VJEPA2Config, VJEPA2Model

    config = modeling.ModelConfig.standard_test()
    model, port = _saved(
        VJEPA2Model(
            VJEPA2Config(
                crop_size=64,
                frames_per_clip=4,
                hidden_size=64,
                num_attention_heads=2,
                num_hidden_layers=2,
                mlp_ratio=4.0,
                pred_hidden_size=32,
                pred_num_attention_heads=2,
                pred_num_hidden_layers=2,
                patch_size=16,
                tubelet_size=2,
                in_chans=3,
                num_pooler_layers=1,
            )
        ),
        lambda folder: params.create_model_from_safe_tensors(folder, config, classifier=False),
    )
    x = _image(1, 4, 3, 64, 64)

    def original(pixel_values_videos: Any) -> Any:
        result = model(pixel_values_videos)
        return result.last_hidden_state, result.predictor_output.last_hidden_state

    def forward(x: Any) -> Any:
        result = port(x)
        return result["last_hidden_state"], result["predictor_last_hidden_state"]

    return (
        original,
        forward,
        {"pixel_values_videos": x},
        (x.transpose(0, 1, 3, 4, 2),),
    )


def qwen3() -> Pair:
    import jax.numpy as jnp
    import numpy as np
    from bonsai.models.qwen3 import modeling, params
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "num_layers": 3, "vocab_size": 1000, "emb_dim": 64, "mlp_dim": 128, "num_heads": 4,
        "head_dim": 16, "num_kv_heads": 2, "rope_theta": 1_000_000, "rope_scaling_factor": 1,
        "local_rope_theta": 1e4, "norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip
    config = modeling.ModelConfig(**sizes)
    model, port = _saved(
        Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=1000,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
                rms_norm_eps=1e-6,
            )
        ),
        lambda folder: params.create_model_from_safe_tensors(folder, config),
    )
    ids = _tokens(1, 16)

    cache = modeling.init_cache(config, 1, 16, 0, jnp.float32)

    def forward(tokens: Any) -> Any:
        return port(tokens, cache=cache, segment_ids=jnp.ones((1, 16), jnp.int32))

    return (
        lambda input_ids: model(input_ids, use_cache=False).logits,
        forward,
        {"input_ids": ids},
        (ids.astype(np.int32),),
    )


def _whisper() -> tuple[Any, Any]:
    from bonsai.models.whisper import modeling, params
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {
        "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "max_source_positions": 50, "pad_token_id": 0,
    }  # fmt: skip
    small = dataclasses.replace(modeling.ModelConfig.whisper_tiny(), **sizes)
    config = WhisperConfig(**sizes, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3)
    # The port's loader knows one size; its checkpoints are those of the whole model.
    with mock.patch.object(modeling.ModelConfig, "whisper_tiny", return_value=small):
        model, port = _saved(
            WhisperForConditionalGeneration(config),
            lambda folder: params.create_whisper_from_pretrained(folder),
        )
    return model.model, port


def whisper_encoder() -> Pair:
    model, port = _whisper()
    encoder, theirs = model.encoder, port.encoder
    x = _image(1, 80, 100)
    return (
        lambda input_features: encoder(input_features).last_hidden_state,
        lambda x: theirs(x, None),
        {"input_features": x},
        (x.transpose(0, 2, 1),),
    )


def whisper_decoder() -> Pair:
    import jax.numpy as jnp
    import numpy as np

    model, port = _whisper()
    decoder, theirs = model.decoder, port.decoder
    ids, hidden = _tokens(1, 12), _image(1, 20, 64)
    causal = np.tril(np.ones((1, 1, 12, 12), bool))
    return (
        lambda input_ids, encoder_hidden_states: (
            decoder(
                input_ids, encoder_hidden_states=encoder_hidden_states, use_cache=False
            ).last_hidden_state
        ),
        lambda ids, hidden: theirs(ids, jnp.asarray(causal), hidden, None, False),
        {"input_ids": ids, "encoder_hidden_states": hidden},
        (ids, hidden),
    )


def umt5_encoder() -> Pair:
    import numpy as np
    from bonsai.models.umt5 import modeling, params
    from transformers import UMT5Config, UMT5EncoderModel

    sizes = {
        "vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3,
        "num_heads": 4, "feed_forward_proj": "gated-gelu",
    }  # fmt: skip
    config = modeling.ModelConfig(**sizes, dropout_rate=0.0)
    model, port = _saved(
        UMT5EncoderModel(UMT5Config(**sizes)),
        lambda folder: params.create_model(modeling.UMT5EncoderModel, folder, config),
        is_pickled=True,
    )
    ids = _tokens(2, 24)
    mask = np.ones((2, 24), np.int64)
    mask[1, 20:] = 0
    return (
        lambda input_ids, attention_mask: model(input_ids, attention_mask).last_hidden_state,
        lambda ids, mask: port(ids, mask),
        {"input_ids": ids, "attention_mask": mask},
        (ids, mask),
    )


def mamba2() -> Pair:
    from bonsai.models.mamba2 import modeling, params
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = modeling.ModelConfig.tiny()
    model, port = _saved(
        Mamba2ForCausalLM(
            Mamba2Config(
                vocab_size=1000,
                hidden_size=64,
                state_size=16,
                head_dim=16,
                num_heads=8,
                chunk_size=32,
                num_hidden_layers=2,
                n_groups=1,
                tie_word_embeddings=True,
            )
        ),
        lambda folder: params.create_random_model(config),
    )
    # transformers names the table "embeddings", but the checkpoints of the port "embedding".
    state = {
        key.replace("embeddings.", "embedding."): tensor.detach().numpy()
        for key, tensor in model.state_dict().items()
    }
    port, _, skipped = params.load_pytorch_weights(port, state)
    if skipped:
        raise ValueError(f"the port did not take {skipped}")
    ids = _tokens(1, 40)
    return (
        lambda input_ids: model(input_ids, use_cache=False).logits,
        lambda ids: port(ids)["logits"],
        {"input_ids": ids},
        (ids,),
    )


MODELS: dict[str, Callable[[], Pair]] = {
    "ViT-B/16": vit,
    "ResNet-50": resnet50,
    "DINOv3": dinov3,
    "V-JEPA 2": vjepa2,
    "Qwen3": qwen3,
    "Whisper encoder": whisper_encoder,
    "Whisper decoder": whisper_decoder,
    "UMT5 encoder": umt5_encoder,
    "Mamba 2": mamba2,
}


def measure(name: str, folder: str) -> dict[str, Any]:
    """Compares one port; returns its record."""
    import torch

    import bridge

    torch.manual_seed(0)
    model, port, torch_inputs, jax_inputs = MODELS[name]()
    start = time.process_time()
    report = bridge.compare(model, port, torch_inputs=torch_inputs, jax_inputs=jax_inputs)
    seconds = time.process_time() - start
    return {
        "seconds": round(seconds, 1),
        "error_float32": float(f"{report.own_error:.1e}"),
        "error_float64": float(f"{report.error:.1e}"),
        "paired": report.paired,
        "values": report.values,
        "notes": [_relative(note, folder) for note in report.notes],
        "parts": [
            {
                "name": part.name,
                "error": float(f"{part.error:.1e}"),
                "count": part.count,
                "cause": part.cause,
                "torch": {
                    "source": _relative(part.torch.source, folder),
                    "op": part.torch.op,
                    "code": part.torch.code,
                },
                "jax": {
                    "source": _relative(part.jax.source, folder),
                    "op": part.jax.op,
                    "code": part.jax.code,
                },
            }
            for part in report.parts
        ],
    }


def _relative(text: str, folder: str) -> str:
    text = text.replace(f"{folder}/", "")
    if "site-packages/" in text:
        head, _, tail = text.rpartition("site-packages/")
        text = head[: head.rfind(" ") + 1] + tail
    return text


def write_page(record: dict[str, Any]) -> None:
    """Writes docs/ports.md from the record."""
    rows = []
    details = []
    for name, entry in record["models"].items():
        if "refused" in entry:
            rows.append(f"| {name} | – | – | not run: {entry['refused']} | |")
            continue
        parts = entry["parts"]
        count = f"{len(parts)}" if parts else "none"
        rows.append(
            f"| {name} | {entry['error_float32']:.0e} | {entry['error_float64']:.0e} | {count} | "
            f"{entry.get('seconds', '–')} |"
        )
        if parts:
            details.append(f"\n## {name}\n")
        for part in parts:
            times = f", {part['count']} times" if part["count"] > 1 else ""
            cause = f": {part['cause']}" if part["cause"] else ""
            details.append(
                f"- **{part['name'] or 'model'}**, error {part['error']:.0e}{times}{cause}\n"
                f"  - torch `{part['torch']['op']}`, {part['torch']['source']}: "
                f"`{part['torch']['code']}`\n"
                f"  - JAX `{part['jax']['op']}`, {part['jax']['source']}: `{part['jax']['code']}`"
            )
    head = [
        "# Ports by others, compared\n",
        "`scripts/try_ports.py --checkout PATH` runs `bridge.compare` on ports in a checkout of",
        "[jax-ml/bonsai](https://github.com/jax-ml/bonsai) beside the models of transformers, with",
        "random weights: ViT-B/16 and ResNet-50 whole, the others in small configurations. It",
        "writes this page and [benchmarks/ports.json](benchmarks/ports.json). The error is the",
        "largest difference of an output relative to its scale: in float32 from single elements,",
        "in float64 from sums and extremes. A part is a line where the two models part;",
        "[compare.md](compare.md) says how parts are found.\n",
        f"bonsai {record['commit']}, transformers {record['transformers']}, torch "
        f"{record['torch']}, jax {record['jax']}, flax {record['flax']}.\n",
        "| model | error in float32 | error in float64 | parts | processor seconds |",
        "|---|---|---|---|---|",
    ]
    PAGE.write_text("\n".join([*head, *rows, *details]) + "\n")


def _commit(checkout: Path) -> str:
    """Returns the commit of a checkout, nothing without its .git folder."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="a checkout of jax-ml/bonsai")
    parser.add_argument("--commit", help="its commit, if the checkout has no .git folder")
    parser.add_argument("--only", nargs="*", choices=list(MODELS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = str(options.checkout.resolve())
    if not (options.checkout / "bonsai" / "models").is_dir():
        parser.error(f"--checkout {folder}: expected a folder with bonsai/models")
    if options.one:
        sys.path[:0] = [str(ROOT), folder]
        print("\n" + json.dumps(measure(options.one, folder)))
        return 0
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"models": {}}
    from importlib.metadata import version

    record["commit"] = options.commit or _commit(options.checkout)
    if not record["commit"]:
        parser.error(f"--commit: expected one, since {folder} has no .git folder")
    record |= {package: version(package) for package in ("transformers", "torch", "jax", "flax")}
    for name in options.only or MODELS:
        command = [sys.executable, __file__, "--checkout", folder, "--one", name]
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if result.returncode:
            errors = [row for row in result.stderr.splitlines() if "Error: " in row]
            error = _relative((errors or result.stderr.strip().splitlines())[-1], folder)
            print(f"{name}: {error}", file=sys.stderr)
            record["models"][name] = {"refused": error[:300]}
        else:
            record["models"][name] = json.loads(result.stdout.strip().splitlines()[-1])
            entry = record["models"][name]
            print(f"{name}: {len(entry['parts'])} parts, {entry['seconds']} s", flush=True)
    record["models"] = {name: record["models"][name] for name in MODELS if name in record["models"]}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    write_page(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
