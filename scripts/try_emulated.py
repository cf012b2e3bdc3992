#!/usr/bin/env python3
"""Runs the aarch64 wheel in an emulator, and compares its bits with the stored ones.

An aarch64 Python of Debian and aarch64 wheels of NumPy and JAX are unpacked into
build/wheels/emulated; qemu-user runs them here. Every STEP-th case of tests/golden is computed, and
the C++ checks run, cross-compiled. Debian's packages qemu-user-static and apt are needed.
docs/parity/aarch64-emulated.json gets the numbers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.build_wheels import DIST, PYTHONS, tools, variables  # noqa: E402

ARCH, VERSION, STEP = "aarch64", PYTHONS[0], 10
FOLDER = ROOT / "build" / "wheels" / "emulated"
SYSTEM, SITE = FOLDER / "system", FOLDER / "site"
RECORD = ROOT / "docs" / "parity" / "aarch64-emulated.json"
QEMU = ["qemu-aarch64-static", "-L", str(SYSTEM)]
# Python with the libraries that its modules need.
DEBIAN = """python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1
zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libgomp1 libcrypt1"""
PACKAGES = ("jax", "jaxlib", "numpy", "ml-dtypes", "scipy", "opt-einsum")
GLIBCS = ("2_28", "2_27", "2_17")


def unpack_system() -> None:
    """Unpacks Debian's packages for aarch64, with a state of apt of its own."""
    if SYSTEM.exists():
        return
    apt, debs = FOLDER / "apt", FOLDER / "debs"
    for folder in (apt / "state/lists/partial", apt / "cache/archives/partial", debs):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"Dir::State={apt / 'state'}", f"Dir::Cache={apt / 'cache'}"]
    options += [f"APT::Architecture{plural}=arm64" for plural in ("", "s")]
    options.append("Dir::State::status=/dev/null")
    command = ["apt-get", "--quiet=2", *(part for each in options for part in ("-o", each))]
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "download", *DEBIAN.split()], check=True, cwd=debs)
    for package in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(SYSTEM)], check=True)


def unpack_packages() -> None:
    """Unpacks NumPy and JAX for aarch64 in the versions of the lock, and the wheel of bridge."""
    pip = [str(tools(VERSION) / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary=:all:", f"--python-version={VERSION}", "--upgrade"]
    pip += [f"--platform=manylinux_{each}_{ARCH}" for each in GLIBCS]
    pip += [f"--platform=manylinux2014_{ARCH}", f"--target={SITE}"]
    if not (SITE / "jax").exists():
        pins = [line.split(" ")[0] for line in (ROOT / "requirements/lock.txt").open()]
        # The first of two lines is for Python 3.11.
        wanted = [next(p for p in pins if p.startswith(f"{name}==")) for name in PACKAGES]
        subprocess.run([*pip, *wanted], check=True)
    shutil.rmtree(SITE / "bridge", ignore_errors=True)
    number = VERSION.replace(".", "")
    (wheel,) = DIST.glob(f"bridge_ops-*-cp{number}-*_{ARCH}.whl")
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)


def check_golden(framework: str, step: int) -> int:
    """Compares golden cases; returns the exit status."""
    tried = FOLDER / "tried"
    shutil.rmtree(tried, ignore_errors=True)
    shutil.copytree(ROOT / "tests", tried / "tests", ignore=shutil.ignore_patterns("__pyc*"))
    RECORD.parent.mkdir(exist_ok=True)
    arguments = ["-m", "tests.golden", "--check", framework, "--step", str(step)]
    arguments += ["--emulator", "qemu-user", "--json", str(RECORD)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
    environment |= {"PYTHONPATH": str(SITE), "BRIDGE_COMPILE": "0", "OMP_NUM_THREADS": "1"}
    python = [*QEMU, str(SYSTEM / "usr/bin" / f"python{VERSION}")]
    return subprocess.run([*python, *arguments], cwd=tried, env=environment).returncode


def check_cpp() -> int:
    """Cross-compiles the C++ checks and runs them; returns the exit status."""
    build, programs = FOLDER / "checks", tools(VERSION)
    environment = variables(programs, ARCH, VERSION)
    cmake = [str(programs / "cmake"), "-S", str(ROOT / "cpp"), "-B", str(build), "-G", "Ninja"]
    cmake += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={ARCH}"]
    cmake += [f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(QEMU)}", "-DBRIDGE_CPP_TESTS=ON"]
    subprocess.run(cmake, check=True, env=environment)
    subprocess.run([str(programs / "cmake"), "--build", str(build)], check=True, env=environment)
    ctest = [str(programs / "ctest"), "--test-dir", str(build), "--output-on-failure"]
    ctest += ["--exclude-regex", "isa_symbols"]
    status = subprocess.run(ctest, env=environment).returncode
    # Processes that library_check would start by itself.
    for isa in ("sparc", ARCH):
        command = [*QEMU, str(build / "library_check"), "--one-call", isa]
        status |= subprocess.run(command, env=environment | {"BRIDGE_CPU_ISA": isa}).returncode
    return status


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=STEP, help="of the golden cases")
    parser.add_argument("--cpp", action="store_true", help="run the C++ checks too")
    chosen = parser.parse_args()
    if shutil.which(QEMU[0]) is None:
        parser.error(f"{QEMU[0]} is missing: apt-get install qemu-user-static")
    unpack_system()
    unpack_packages()
    status = check_golden("jax", chosen.step)
    return check_cpp() or status if chosen.cpp else status


if __name__ == "__main__":
    sys.exit(main())
