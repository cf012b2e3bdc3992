"""Puts the native module, the CUDA library, and the checking and timing programs in place.

They are taken from build/for_gpu/prebuilt if scripts/pack_for_gpu.sh made them from the same
sources for this Python. Otherwise they are built for the architecture of the present GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREBUILT = ROOT / "build" / "for_gpu" / "prebuilt"
# The cache of programs compiled ahead, and the archive that it travels in.
AHEAD = ROOT / "build" / "check_gpu" / "compiled"
AHEAD_ARCHIVE = "compiled.tar.gz"
BUILD = ROOT / "build" / "check_gpu" / "build"
PROGRAMS = ROOT / "build" / "check_gpu" / "programs"
# Kernels with a program that compares them with the CPU's.
KERNELS = ("interpreter",)
PROGRAM_NAMES = tuple(f"{name}_gpu" for name in KERNELS)
CUDA_LIBRARY = "libbridge_cuda.so"
CUDA_PROGRAMS = "bridge_cuda_programs.zip"
STAMP = "sources.sha256"


def module_name() -> str:
    """Returns the native module's file name for this Python."""
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"


def digest_of_sources() -> str:
    """Returns a hash of all sources of the libraries and programs."""
    digest = hashlib.sha256()
    files = [ROOT / "CMakeLists.txt"]
    for folder in ("cmake", "cpp", "third_party", "tests/cpp", "tests/simt"):
        files += sorted(path for path in (ROOT / folder).rglob("*") if path.is_file())
    for path in (path for path in files if "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(ROOT)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def commit() -> str | None:
    """Returns the checked commit, with "+" if files have changed since; None if unknown.

    Prebuilt files from these sources record their commit: the repository on this machine may be an
    older one.
    """
    packed, stamp = PREBUILT / "commit", PREBUILT / STAMP
    if packed.exists() and stamp.exists() and stamp.read_text().strip() == digest_of_sources():
        return packed.read_text().strip()
    if not (ROOT / ".git").exists():
        return None
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"]).returncode != 0
    except OSError:
        return None
    return head.stdout.strip() + ("+" if changed else "") if head.returncode == 0 else None


def place_prebuilt() -> str:
    """Copies prebuilt files; returns "", or the reason why they cannot be used."""
    if not (PREBUILT / STAMP).exists():
        return f"nothing prebuilt in {PREBUILT}"
    if (PREBUILT / STAMP).read_text().strip() != digest_of_sources():
        return "the prebuilt files were made from other sources"
    if not (PREBUILT / module_name()).exists():
        return f"the prebuilt files have no {module_name()}"
    place(PREBUILT)
    return ""


def place(folder: Path) -> None:
    """Copies the libraries to the package's Python files, and the programs to their folder."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    if (folder / AHEAD_ARCHIVE).exists():
        with tarfile.open(folder / AHEAD_ARCHIVE) as archive:
            archive.extractall(AHEAD, filter="data")
    targets = dict.fromkeys((module_name(), CUDA_LIBRARY, CUDA_PROGRAMS), ROOT / "bridge")
    for name, target in (targets | dict.fromkeys(PROGRAM_NAMES, PROGRAMS)).items():
        found = next((path for path in folder.rglob(name) if path.is_file()), None)
        if found is not None:
            copy(found, target / name)


def copy(source: Path, target: Path) -> None:
    """Replaces a file that a process may still have mapped."""
    part = target.with_name(f".{target.name}.part")
    shutil.copy2(source, part)
    part.replace(target)


def build(folder: Path, arch: str) -> None:
    """Compiles for `arch` ("90"); without nvcc no CUDA library and no programs."""
    nvcc = shutil.which("nvcc")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja"]
    command += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-DBRIDGE_CUDA={'ON' if nvcc else 'OFF'}", f"-DBRIDGE_CUDA_ARCHS={arch}-real"]
    command += [f"-DBRIDGE_SIMT_GPU={'ON' if nvcc else 'OFF'}", "-DBRIDGE_HOT_ISAS=all"]
    targets = [
        "_native",
        *(("bridge_cuda", "bridge_cuda_programs", *PROGRAM_NAMES) if nvcc else ()),
    ]
    if nvcc is None:
        print("no nvcc: without the CUDA library and the programs", flush=True)
    subprocess.run(command, check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", *targets], check=True)


def arch_of_device() -> str:
    """Returns the compute capability of the first GPU, "90" if none answers."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    except OSError:
        return "90"
    return found.split("\n")[0].strip().replace(".", "") or "90"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--anew", action="store_true", help="build even if prebuilt files exist")
    options = parser.parse_args()
    why = "--anew" if options.anew else place_prebuilt()
    if why:
        print(f"building: {why}", flush=True)
        os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"
        try:
            build(options.build, arch_of_device())
        except subprocess.CalledProcessError as error:
            return error.returncode
        place(options.build)
    check = "import bridge; print(bridge.__file__, bridge.build_info())"
    return subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
