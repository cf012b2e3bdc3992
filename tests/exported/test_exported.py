"""Programs that an earlier bridge exported run, with the bits of today's ops."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest
import torch

from bridge import lang as bl
from bridge.lang import codes, roles
from bridge.lang.operations import VERSION
from bridge.lang.tracing import declared, trace
from tests.exported import programs
from tests.exported.programs import Values, gradients_in_jax, gradients_in_torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STORED: dict[str, list[int]] = json.loads(programs.VERSIONS.read_text())


def skip_older(framework: str) -> None:
    if programs.versions()[framework] < STORED[framework]:
        pytest.skip(f"the file is of {framework} {STORED[framework]}, which is newer")


def same_bits(found: Any, expected: Any) -> None:
    for own, today in zip(found, expected, strict=True):
        assert own.dtype == today.dtype
        assert own.shape == today.shape
        pair = [y.view(torch.uint8) if isinstance(y, torch.Tensor) else y for y in (own, today)]
        first, second = (np.asarray(y).tobytes() for y in pair)
        assert first == second


@pytest.mark.parametrize("name", programs.TORCH)
def test_torch_programs(name: str) -> None:
    skip_older("torch")
    stored: Any = torch.export.load(programs.TORCH[name]).module()
    if name == "blocks":
        arrays = programs.torch_blocks()
        return same_bits(stored(*arrays), programs.blocks_in_torch(*arrays))
    arrays = programs.torch_inputs()
    found = stored(*arrays) if name == "gradients" else gradients_in_torch(stored, *arrays)
    same_bits(found, gradients_in_torch(Values(), *arrays))


@pytest.mark.parametrize("name", programs.JAX)
def test_jax_programs(name: str) -> None:
    skip_older("jax")
    stored = jax.export.deserialize(bytearray(programs.JAX[name].read_bytes()))
    if name == "blocks":
        function, arrays = programs.blocks_in_jax, programs.jax_blocks()
    else:
        function, arrays = gradients_in_jax, programs.jax_inputs()
    same_bits(stored.call(*arrays), jax.jit(function)(*arrays))


def shifted(x: roles.Full, shift: roles.Row) -> Any:
    return x - bl.sum(x) * shift


TEXT = codes.code_of(trace(declared(shifted), [True, True], {}))


def derived(text: str) -> list[str]:
    """Returns a text of each kind."""
    first = codes.vjp(text, [True], [True, True], False)
    sums = codes.summands(first, [True, True])
    staged = codes.stage(text, (True,), 0, 8, True)
    return [text, codes.jvp(text, [True, False], False), first, sums, staged]


def test_a_text_without_version_is_read() -> None:
    """Programs exported before there were versions have such texts."""
    before = TEXT.replace(f'"version":{VERSION},', "")
    assert before != TEXT
    for old, new in zip(derived(before), derived(TEXT), strict=True):
        assert codes.parse(old).program == codes.parse(new).program


def test_a_later_version_is_named() -> None:
    fields = json.loads(TEXT)
    later = json.dumps({**fields, "version": VERSION + 1, "operands": [["x", "Unknown"]]})
    of = json.loads(later)
    message = rf"version {VERSION + 1}, but this bridge reads versions 1 to {VERSION}: install"
    for text in (later, json.dumps({"unknown": 1, "of": {"vjp": [[1], [1]], "kept": 0, "of": of}})):
        with pytest.raises(ValueError, match=message):
            torch.ops.bridge.program.few(
                torch.ones(2, 3),
                code=text,
                arithmetic="float32",
                dtypes="float32",
                batch_ndim=0,
                index_cols=0,
            )
