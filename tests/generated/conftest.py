"""These tests compile into a separate folder, which is deleted afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import _native


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(cache))
    _native.forget_generated()
    yield
    _native.forget_generated()
    _native.set_cpu_isa(None)
