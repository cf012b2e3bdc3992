"""Every test starts with an empty cache of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()
