"""Real English text that Python includes: the Python language reference.

It is the text of `help("assert")`: the module `pydoc_data.topics` of the standard library.
"""

from __future__ import annotations

from functools import cache

import numpy as np

SOURCE = "the Python language reference (pydoc_data.topics, part of the interpreter)"
# The vocabulary is printable ASCII, and one character for everything else.
FIRST, SYMBOLS = 32, 96

Array = np.ndarray


@cache
def characters() -> Array:
    """Returns the text as int32 numbers from 0 to SYMBOLS − 1."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32) - FIRST
    return np.where((codes >= 0) & (codes < SYMBOLS - 1), codes, SYMBOLS - 1).astype(np.int32)


def batches(steps: int, batch: int, length: int, seed: int = 0) -> Array:
    """Returns pieces of the text from random places: int32 `[steps, batch, length + 1]`."""
    text = characters()
    starts = np.random.default_rng(seed).integers(0, len(text) - length, (steps, batch))
    return text[starts[..., None] + np.arange(length + 1)]
