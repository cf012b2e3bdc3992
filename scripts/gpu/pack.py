"""Fills build/for_gpu; see scripts/pack_for_gpu.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile

from scripts.gpu.environment import PYTHON, rehearsal_python
from scripts.gpu.libraries import (
    AHEAD,
    AHEAD_ARCHIVE,
    BUILD,
    CUDA_LIBRARY,
    CUDA_PROGRAMS,
    PREBUILT,
    PROGRAM_NAMES,
    ROOT,
    STAMP,
    build,
    commit,
    copy,
    digest_of_sources,
    module_name,
)

FOLDER = PREBUILT.parent
# requirements/build.txt has their versions.
WHEELS = ("nanobind", "scikit-build-core")
# The size limit of the files for the GPU machine.
MOST_MIB = 64
PACKING = "BRIDGE_PACKING"  # set in the Python with the versions of the GPU machine


def main() -> int:
    if PACKING not in os.environ:
        python = str(rehearsal_python())
        os.execve(python, [python, "-m", "scripts.gpu.pack"], {**os.environ, PACKING: "1"})
    os.environ["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ["PATH"], "/usr/local/cuda/bin"]
    )
    if shutil.which("nvcc") is None:
        sys.exit("pack_for_gpu: this machine has no nvcc to build the GPU programs")
    shutil.rmtree(FOLDER, ignore_errors=True)
    PREBUILT.mkdir(parents=True)
    build(BUILD, os.environ.get("BRIDGE_GPU_ARCH", "90"))
    for name in (module_name(), CUDA_LIBRARY, CUDA_PROGRAMS, *PROGRAM_NAMES):
        copy(next(path for path in BUILD.rglob(name) if path.is_file()), PREBUILT / name)
    (PREBUILT / STAMP).write_text(digest_of_sources() + "\n")
    (PREBUILT / "commit").write_text(f"{commit()}\n")
    arch = f"sm_{os.environ.get('BRIDGE_GPU_ARCH', '90')}"
    # The programs also run here, on the CPU.
    subprocess.run([sys.executable, "-m", "scripts.gpu.libraries"], check=True)
    shutil.rmtree(AHEAD, ignore_errors=True)  # it may contain programs of other sources
    ahead = [sys.executable, "-m", "scripts.gpu.ahead", str(AHEAD), arch]
    subprocess.run(ahead, check=True, cwd=ROOT)
    with tarfile.open(PREBUILT / AHEAD_ARCHIVE, "w:gz") as archive:
        archive.add(AHEAD, ".")
    pinned = (ROOT / "requirements" / "build.txt").read_text().split("\n")
    wanted = [line.split("#")[0].strip() for line in pinned if line.startswith(WHEELS)]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    download += ["--only-binary=:all:", "--dest", str(FOLDER / "wheels")]
    subprocess.run([*download, *wanted], check=True)
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    for path in sorted(files):
        print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path.relative_to(ROOT)}")
    size = sum(path.stat().st_size for path in files) / 2**20
    print(f"{size:8.2f} MiB  build/for_gpu, for Python {PYTHON}, of {MOST_MIB} MiB that may travel")
    return 0 if size <= MOST_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
