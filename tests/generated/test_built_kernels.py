"""CUDA kernels from the build: they need no compiler, and are used only if they match."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch

import bridge
import bridge.jax as bj
import bridge.torch as bt
from bridge import _native
from bridge.catalogue import ahead_of_time
from bridge.generated import asked_for, built_kernels, cuda_compiler, requests
from bridge.generated.requests import Request
from bridge.ops import run_program

ROOT = Path(__file__).resolve().parents[2]
WRITER = ROOT / "cmake" / "write_ahead_of_time.py"
CHOSEN = list(ahead_of_time.cuda_requests())
IMAGE = b"\x7fELF, the machine code of "


def write(folder: Path, seed: str = "0") -> dict[str, str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run(
        [sys.executable, str(WRITER), str(folder), "cuda", "all"], env=environment, check=True
    )
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write(tmp_path_factory.mktemp("written"))


@pytest.fixture
def archive(
    written: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Makes an archive like the build's for sm_90, with other machine code."""
    path = tmp_path / built_kernels.ARCHIVE
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(built_kernels.INDEX, written[built_kernels.INDEX])
        for name in sorted(written):
            if name.endswith(".cu"):
                file.writestr(name.replace(".cu", ".sm_90.cubin"), IMAGE + name.encode())
    monkeypatch.setattr(built_kernels, "_archive", lambda: path)
    monkeypatch.setattr(built_kernels, "_loaded", set())
    built_kernels.built_kernels.cache_clear()
    yield path
    built_kernels.built_kernels.cache_clear()


class Machine:
    """GPUs of an architecture; records their kernels, and requests to the compiler."""

    def __init__(self) -> None:
        self.arch, self.count, self.in_use = "sm_90", 2, 2
        self.refuses: Callable[[bytes], bool] = lambda image: False
        self.added: list[tuple[Any, ...]] = []
        self.asked: list[Request] = []

    def add(self, *given: Any) -> bool:
        words, dtypes, free, device, image, *facts = given
        if device >= self.in_use:
            return False
        if self.refuses(image):
            raise RuntimeError("what was compiled gives other bits than the interpreter")
        self.added.append((words, tuple(dtypes), tuple(free), device, image, *facts))
        return True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Returns a machine without a compiler."""
    machine = Machine()

    def fails(*_: Any) -> Any:
        raise AssertionError("a compiler is looked for")

    monkeypatch.setenv("BRIDGE_COMPILE", "background")
    monkeypatch.setattr(_native, "cuda_device_count", lambda: machine.count)
    monkeypatch.setattr(_native, "cuda_arch", lambda device: machine.arch)
    monkeypatch.setattr(_native, "add_generated_cuda", machine.add)
    monkeypatch.setattr(cuda_compiler, "find_nvrtc", fails)
    monkeypatch.setattr(cuda_compiler.shutil, "which", fails)
    monkeypatch.setattr(requests._worker, "ask", machine.asked.append)
    monkeypatch.setattr(requests._worker, "seen", set())
    monkeypatch.setattr(requests._worker, "partly", {})
    return machine


def ask(request: Request) -> None:
    asked_for(request.program, request.arithmetic, request.dtypes, request.has_start, "cuda")


def file_of(request: Request) -> str:
    return f"{hashlib.sha256(request.emitted().source.encode()).hexdigest()}.cu"


def expected(request: Request, device: int = 0) -> tuple[Any, ...]:
    """Returns the kernels that a device gets for a request."""
    emitted = request.emitted()
    image = IMAGE + file_of(request).encode()
    facts = astuple(emitted)[1:]
    dtypes, free = tuple(request.dtype_numbers()), tuple(request.free())
    return (request.words(), dtypes, free, device, image, *facts)


def test_all_are_added_with_the_first_request(archive: Path, machine: Machine) -> None:
    """They go to the devices in use, and equal the kernels of separate requests."""
    machine.in_use = 1
    ask(CHOSEN[0])
    assert not machine.asked
    assert {expected(each) for each in CHOSEN} == set(machine.added)
    machine.in_use = 2
    ask(CHOSEN[0])
    assert {expected(each, 1) for each in CHOSEN} <= set(machine.added)


@pytest.mark.parametrize("chosen", CHOSEN, ids=range(len(CHOSEN)))
def test_a_request_needs_no_compiler(archive: Path, machine: Machine, chosen: Request) -> None:
    ask(chosen)
    assert not machine.asked
    machine.added.clear()
    # This simulates an empty native module: op.compile, and operands of other kinds with the same
    # source.
    Request(chosen.program, chosen.arithmetic, chosen.dtypes, arch="sm_90").compile()
    assert machine.added == [expected(chosen), expected(chosen, 1)]


def test_labels_of_any_dtype(archive: Path, machine: Machine) -> None:
    """JAX's labels are int32."""
    chosen = next(each for each in CHOSEN if "int64" in each.dtypes)
    dtypes = [dtype.replace("int64", "int32") for dtype in chosen.dtypes]
    asked_for(chosen.program, chosen.arithmetic, dtypes, platform="cuda")
    assert not machine.asked


def test_what_training_calls_in_bfloat16_is_among_them(
    archive: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(run_program, "asked_for", lambda *of: calls.append(of[:4]))
    torch.manual_seed(0)
    x, residual = (torch.randn(3, 72, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    weight, bias = (torch.randn(72, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    # Kinds of calls that no earlier test made: each kind asks once per process.
    for y in (
        bt.rms_norm(x, weight, eps=0.03125),
        bt.swiglu(x),
        bt.swiglu(x, residual),
        bt.bias_gelu(x, bias),
        bt.bias_dropout_add(x, bias, residual, p=0.375, seed=1),
        bt.cross_entropy(x, torch.tensor([1, 2, -100])),
    ):
        y.sum().backward()
    for call in calls:
        asked_for(*call, "cuda")
    assert not machine.asked


def test_so_is_what_jax_calls(
    archive: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    import jax.numpy as jnp

    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(run_program, "asked_for", lambda *of: calls.append(of[:4]))

    def loss(x: Any, weight: Any, bias: Any, labels: Any) -> Any:
        y = bj.rms_norm(x, weight)
        y = bj.bias_gelu(y + bj.swiglu(y, x), bias)
        y = bj.bias_dropout_add(y, bias, x, p=0.1, seed=1)
        return bj.cross_entropy(y + jnp.tile(bj.swiglu(y), 2), labels)

    row = jax.ShapeDtypeStruct((72,), "bfloat16")
    x, labels = (jax.ShapeDtypeStruct((3, *s), d) for s, d in (((72,), "bfloat16"), ((), "int32")))
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    step.trace(x, row, row, labels).lower(lowering_platforms=("cuda",))
    assert len(calls) >= 12
    # A seed is two words in JAX, and a 64-bit integer for the kernels, whose check draws one.
    assert not any("uint32" in dtypes for _, _, dtypes, _ in calls)
    for call in calls:
        asked_for(*call, "cuda")
    assert not machine.asked


def test_another_architecture_is_compiled_for(archive: Path, machine: Machine) -> None:
    machine.arch = "sm_80"
    ask(CHOSEN[0])
    assert not machine.added
    assert [each.arch for each in machine.asked] == ["sm_80"]


def test_a_program_that_is_not_among_them_is_compiled(archive: Path, machine: Machine) -> None:
    ask(next(ahead_of_time.requests_of("rms_norm", "float32")))
    assert len(machine.asked) == 1


def test_a_device_that_is_used_later_gets_what_others_have(
    archive: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are compiled once, and requested again for each device that lacks them."""
    machine.in_use = 1
    compiled: list[str] = []

    def cubin_of(source: str, arch: str, what: str) -> Path:
        compiled.append(source)
        path = tmp_path / "program.cubin"
        path.write_bytes(IMAGE)
        return path

    monkeypatch.setattr(requests, "cubin_of", cubin_of)
    request = next(ahead_of_time.requests_of("layer_norm", "float32"))
    assert request not in CHOSEN
    for in_use, devices in ((1, [0]), (1, [0]), (2, [0, 1]), (2, [])):
        machine.in_use = in_use
        machine.added.clear()
        machine.asked.clear()
        ask(request)
        assert [each.program for each in machine.asked] == [request.program] * bool(devices)
        for each in machine.asked:
            requests._worker.seen.add(each.key)
            each.compile()
        own = [given for given in machine.added if given[0] == request.words()]
        assert [device for _, _, _, device, *_ in own] == devices
    assert len(compiled) == 1


def test_what_a_device_refuses_is_compiled(archive: Path, machine: Machine) -> None:
    """The archive has another program's machine code, whose bits are not the interpreter's."""
    wrong = expected(CHOSEN[0])[4]
    machine.refuses = lambda image: image == wrong
    for each in CHOSEN:
        ask(each)
    assert [each.words() for each in machine.asked] == [CHOSEN[0].words()]
    assert {expected(each) for each in CHOSEN[1:]} <= set(machine.added)


@pytest.mark.parametrize("damage", ["absent", "no archive", "half", "an image", "the index"])
def test_what_is_missing_or_damaged_is_compiled(
    archive: Path, machine: Machine, damage: str
) -> None:
    content = archive.read_bytes()
    image, index = expected(CHOSEN[0])[4], content.index(built_kernels.INDEX.encode())
    changed = {
        "no archive": b"text",
        "half": content[: len(content) // 2],
        "an image": content.replace(image, image.replace(b"ELF", b"elf")),
        "the index": content[:index] + content[index:].replace(b'"', b"'", 1),
    }
    if damage == "absent":
        archive.unlink()
    else:
        assert changed[damage] != content
        archive.write_bytes(changed[damage])
    for each in CHOSEN:
        ask(each)
    is_one = damage == "an image"
    assert len(machine.asked) == (1 if is_one else len(CHOSEN))
    assert len({words for words, *_ in machine.added}) == (len(CHOSEN) - 1 if is_one else 0)


def test_nothing_is_added_where_nothing_is_to_be_compiled(
    archive: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_COMPILE", "0")
    for each in CHOSEN:
        ask(each)
    assert not machine.added
    assert not machine.asked


def test_they_are_there_without_any_compiler_for_a_gpu_that_is_not(
    archive: Path, machine: Machine
) -> None:
    machine.count = 0
    Request(**{**vars(CHOSEN[0]), "arch": "sm_90"}).compile()
    with pytest.raises(AssertionError, match="a compiler is looked for"):
        Request(**{**vars(CHOSEN[0]), "arch": "sm_80"}).compile()


def test_the_build_writes_the_same_again(written: dict[str, str], tmp_path: Path) -> None:
    """Otherwise all would be compiled again, and no request would find them."""
    assert write(tmp_path, seed="1") == written
    assert len(written) == len(CHOSEN) + 1
    for each in CHOSEN:
        assert written[file_of(each)] == each.emitted().source


@pytest.mark.skipif(not bridge.build_info()["cuda"], reason="needs a build with CUDA")
def test_the_package_that_is_installed_has_them() -> None:
    """It has them for each architecture of the library except PTX; `make` builds outdated ones.

    A build on a machine without a GPU has two.
    """
    built_kernels.built_kernels.cache_clear()
    archs = [f"sm_{arch}" for arch in _native.cuda_archs().split(",") if arch.isdecimal()]
    for arch in archs:
        found = built_kernels.built_kernels(arch)
        assert len(found) in (2, len(CHOSEN))
        by_key = {
            built_kernels.key_of(each.words(), each.dtype_numbers(), each.free()): each
            for each in CHOSEN
        }
        for key, kernels in found.items():
            each = by_key[key]
            emitted = each.emitted()
            own = each.words(), each.dtype_numbers(), each.free()
            assert kernels[:4] == (*own, [*astuple(emitted)[1:]])
            assert kernels.image[:4] == b"\x7fELF"
            names = [f"bridge_{kind}".encode() for kind in ("short_aligned", "long_any")]
            assert all(name in kernels.image for name in names)
