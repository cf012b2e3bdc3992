"""Wheels: the builder, its compiler, the files of CUDA kernels, frameworks that are too old."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from bridge import _cuda_files, _native
from bridge._installed import VERSIONS, is_older, need, why_no_native_module
from bridge._version import __version__
from scripts import build_wheels, try_wheels

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("-march=x86-64-v4", "-march=x86_64_v4"),
        ("-march=x86-64", "-march=x86_64"),
        ("-mprefer-vector-width=512", "-mprefer-vector-width=512"),
        ('-DNAME="a b"', '-DNAME="a b"'),
        ("$(false) *", "$(false) *"),
    ],
)
def test_the_compiler_passes_arguments_on(given: str, passed: str, tmp_path: Path) -> None:
    zig = tmp_path / "zig"
    zig.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script = tmp_path / "c++"
    script.write_text(build_wheels.COMPILER.format(zig=zig, arch="aarch64", glibc="2.28"))
    for path in (zig, script):
        path.chmod(0o755)
    found = subprocess.run([str(script), "-c", given, "x.cpp"], capture_output=True, text=True)
    wanted = ["c++", "-target", "aarch64-linux-gnu.2.28", "-c", passed, "x.cpp"]
    assert found.stdout.splitlines() == wanted


def test_every_instruction_set_has_a_name_that_zig_knows() -> None:
    text = (ROOT / "cpp" / "CMakeLists.txt").read_text()
    flags = [word for word in text.replace(")", " ").split() if word.startswith("-march=")]
    assert len(flags) == 3
    for flag in flags:
        assert flag == "-march=x86-64" or flag.startswith("-march=x86-64-v")


def test_wheels_have_the_settings_of_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for arch in build_wheels.ARCHS:
        options = build_wheels.settings(arch)
        for name, value in project["tool"]["cibuildwheel"]["config-settings"].items():
            assert f"--config-settings={name}={value}" in options
        image = project["tool"]["cibuildwheel"][f"manylinux-{arch}-image"]
        assert image == f"manylinux_{build_wheels.GLIBC.replace('.', '_')}"
    least = project["tool"]["scikit-build"]["wheel"]["py-api"].removeprefix("cp3")
    assert f"3.{least}" == build_wheels.PYTHONS[-1]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"bridge/_native.abi3.so": 10}, None),
        ({"bridge/_native.abi3.so": 9 << 20}, "expected at most 8"),
        ({"bridge/_native.abi3.so": 10, "bridge/libbridge_cuda.so": 10}, "libbridge_cuda"),
        ({"bridge/_native.abi3.so": 10, "bridge_ops.libs/libc10-1.so": 10}, "libc10"),
        ({"bridge/__init__.py": 10}, "expected bridge/_native alone"),
    ],
)
def test_a_wheel_that_is_too_large_or_has_other_libraries(
    files: dict[str, int], words: str | None, tmp_path: Path
) -> None:
    wheel = tmp_path / "bridge_ops.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, size in files.items():
            archive.writestr(name, bytes(size))
    found = build_wheels.fault(wheel)
    assert found is None if words is None else words in (found or "")


def test_the_cuda_distribution_has_the_version_and_package_that_the_core_looks_for() -> None:
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cuda = tomllib.loads((ROOT / "cuda13" / "pyproject.toml").read_text())
    assert core["optional-dependencies"]["cuda13"] == [cuda["project"]["name"]]
    assert cuda["tool"]["scikit-build"]["wheel"]["packages"] == [_cuda_files.PACKAGE]
    assert (ROOT / "cuda13" / _cuda_files.PACKAGE / "__init__.py").is_file()
    cmake = (ROOT / "cpp" / "cuda" / "CMakeLists.txt").read_text()
    assert f"set(destination {_cuda_files.PACKAGE})" in cmake


def written(folder: Path, version: str | None, library: bool) -> None:
    package = folder / _cuda_files.PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    if version is not None:
        (package / "_version.py").write_text(f'__version__ = "{version}"\n')
    if library:
        (package / _cuda_files.LIBRARY).touch()


@pytest.mark.parametrize(
    ("version", "library", "words"),
    [
        (__version__, True, ""),
        (__version__, False, f"has no {_cuda_files.LIBRARY}"),
        ("0.0.1", True, f"bridge-ops-cuda13 has version 0.0.1, bridge {__version__}"),
        (None, True, "has version unknown"),
        ("absent", True, "no CUDA kernels are installed"),
    ],
)
def test_the_package_of_cuda_kernels(
    version: str | None,
    library: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "bridge" / "_native.so"))
    if version != "absent":
        written(tmp_path, version, library)
        monkeypatch.syspath_prepend(str(tmp_path))
    folder, why = _cuda_files.find.__wrapped__()
    assert folder == (None if words else tmp_path / _cuda_files.PACKAGE)
    assert words in why
    assert "\n" not in why
    assert not words or _cuda_files.INSTALL in why


def test_kernels_beside_the_native_module_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "_native.so"))
    (tmp_path / _cuda_files.LIBRARY).touch()
    written(tmp_path, "0.0.1", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _cuda_files.find.__wrapped__() == (tmp_path, "")


COMPILED = ["80", "90", "100", "90-virtual"]


@pytest.mark.parametrize(
    ("arch", "compiled", "expected"),
    [
        ("sm_80", COMPILED, False),
        ("sm_86", COMPILED, False),
        ("sm_90", COMPILED, False),
        ("sm_100", COMPILED, False),
        ("sm_120", COMPILED, False),
        ("sm_75", COMPILED, True),
        ("sm_70", ["80"], True),
        ("sm_90", ["80"], True),
        ("sm_90", ["100", "100-virtual"], True),
        ("sm_80", ["86"], True),
        ("sm_103", ["100"], False),
    ],
)
def test_architectures_that_kernels_run_on(arch: str, compiled: list[str], expected: bool) -> None:
    assert _cuda_files.misfit(arch, compiled) is expected


@pytest.mark.parametrize(
    ("missing", "devices", "arch", "driver", "words"),
    [
        ("no CUDA kernels", 0, "", True, "no CUDA kernels"),
        ("invalid ELF header", 0, "", True, f"invalid ELF header: {_cuda_files.INSTALL} --force"),
        ("", 0, "", False, "there is no NVIDIA driver: install one"),
        ("", 0, "", True, "CUDA_VISIBLE_DEVICES may hide them, or the driver may be older"),
        ("", 1, "sm_75", True, "device 0 is sm_75, and the kernels are compiled for 80, 90"),
        ("", 1, "sm_90", True, None),
    ],
)
def test_the_reason_why_cuda_is_not_usable(
    missing: str,
    devices: int,
    arch: str,
    driver: bool,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = (None, missing) if missing.startswith("no CUDA") else (tmp_path, "")
    monkeypatch.setattr(_cuda_files, "find", lambda: found)
    monkeypatch.setattr(_native, "cuda_unavailable", lambda: missing)
    monkeypatch.setattr(_native, "cuda_device_count", lambda: devices)
    monkeypatch.setattr(_native, "cuda_arch", lambda device: arch)
    monkeypatch.setattr(_native, "cuda_archs", lambda: ",".join(COMPILED))
    file = tmp_path / "version"
    if driver:
        file.touch()
    monkeypatch.setattr(_cuda_files, "DRIVER", file)
    why = _cuda_files.why_not()
    assert why is None if words is None else words in (why or "")
    assert why is None or "\n" not in why


@pytest.mark.parametrize(
    ("version", "least", "expected"),
    [
        ("2.10.9+cpu", "2.11", True),
        ("2.11.0", "2.11", False),
        ("2.11.0a0+git12", "2.11", False),
        ("3.0", "2.11", False),
        ("0.9.0", "0.9.1", True),
        ("0.9.1.dev2026", "0.9.1", False),
        ("0.10", "0.9.1", False),
        ("unknown", "2.11", False),
        ("", "2.11", False),
    ],
)
def test_versions_are_compared(version: str, least: str, expected: bool) -> None:
    assert is_older(version, least) is expected


def test_a_framework_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_one.py").write_text('__version__ = "1.9.0"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(VERSIONS, "old_one", ">=1.10,<2")
    words = r"bridge.x needs old_one>=1.10,<2, and old_one 1.9.0 is installed: pip install 'old_one"
    with pytest.raises(ImportError, match=words):
        need("bridge.x", "old_one")
    monkeypatch.setitem(VERSIONS, "old_one", ">=1.9,<1.9")  # a newer one is tried
    need("bridge.x", "old_one")


@pytest.mark.parametrize(
    ("files", "path", "words"),
    [
        (None, None, "cannot run from an archive"),
        ([], None, "this is the source folder"),
        (["_native.pyi"], None, "this is the source folder"),
        (
            ["_native.cpython-399-x.so"],
            None,
            "another Python: it has _native.cpython-399",
        ),
        (["_native.abi3.so"], "_native.abi3.so", "cannot be loaded: GLIBC_2.99 not found"),
    ],
)
def test_the_reason_why_there_is_no_native_module(
    files: list[str] | None, path: str | None, words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "bridge"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    error = ImportError("GLIBC_2.99 not found", name="_native", path=path)
    said = why_no_native_module(error, folder)
    assert words in said
    assert "\n" not in said


def test_environments_have_the_versions_of_their_files() -> None:
    found = {each.name: each.packages() for each in try_wheels.ENVIRONMENTS}
    assert "torch==2.11.0" in found["oldest"]
    assert "jaxlib==0.9.1" in found["oldest"]
    assert not any(line.startswith("jax") for line in found["torch"])
    assert found["neither"] == ["numpy", "ml_dtypes"]


def test_an_environment_whose_frameworks_cannot_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are tried all the same, and the exit status tells."""

    said = "WARNING: x\nERROR: no torch here\n"

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, "download" in command, "", said)

    monkeypatch.setattr(try_wheels, "FOLDER", tmp_path)
    monkeypatch.setattr(try_wheels, "find_python", lambda version: "python")
    monkeypatch.setattr(try_wheels.subprocess, "run", run)
    (environment,) = (e for e in try_wheels.ENVIRONMENTS if e.name == "oldest")
    assert "torch==2.11.0" in (why := environment.make() or "")
    assert why.endswith(": ERROR: no torch here")
    assert not (environment.folder / "made").exists()


def test_only_python_is_on_the_path_of_an_environment() -> None:
    variables = try_wheels.ENVIRONMENTS[0].variables()
    assert variables["PATH"] == str(try_wheels.ENVIRONMENTS[0].folder / "bin")
    assert "CXX" not in variables
    check = [sys.executable, "-c", try_wheels.NO_COMPILER]
    assert subprocess.run(check, env=variables).returncode == 0
