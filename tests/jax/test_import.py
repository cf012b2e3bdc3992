"""The effects of importing bridge.jax, and its error if jaxlib is too old."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from bridge import _native
from bridge.jax._adapter import ffi
from tests.jax.subprocess_run import run


def test_no_backend_is_started() -> None:
    """A process may still choose its devices after the import."""
    code = """
import bridge.jax, jax
jax.config.update("jax_num_cpu_devices", 3)
print(len(jax.devices("cpu")))
"""
    assert run(code, JAX_PLATFORMS="cpu") == "3"


def test_torch_is_not_loaded_by_a_call() -> None:
    code = """
import sys, jax, jax.numpy as jnp, bridge.jax
jax.grad(lambda x: bridge.jax.bias_gelu(x).sum())(jnp.ones(3))
print("torch" in sys.modules)
"""
    assert run(code) == "False"


def test_this_jaxlib_is_new_enough() -> None:
    assert ffi._runtime_ffi_api() >= tuple(_native.build_info()["ffi_api"])


@pytest.mark.parametrize(("older", "refused"), [((0, 0), True), ((0, 99), False), ((1, 0), True)])
def test_ffi_versions(
    older: tuple[int, int], refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        f"#define XLA_FFI_API_MAJOR {older[0]}\n#define XLA_FFI_API_MINOR {older[1]}\n"
    )
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    if not refused:
        ffi.check_ffi_api()
        return
    built = ".".join(map(str, _native.build_info()["ffi_api"]))
    with pytest.raises(ImportError, match=rf"XLA FFI {built}, but jaxlib .* has {older[0]}\.") as e:
        ffi.check_ffi_api()
    assert f"has {older[0]}.{older[1]}." in str(e.value)


def test_a_jaxlib_without_headers_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    ffi.check_ffi_api()
