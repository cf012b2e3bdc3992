"""A Python environment with the versions of the GPU machine, for rehearsals and for packing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.gpu.libraries import ROOT

VENV = ROOT / "build" / "rehearse" / "venv"
REQUIREMENTS = ROOT / "requirements" / "gpu-machine.txt"
PYTHON = "3.12"
TORCH = "2.11.0"


def rehearsal_python() -> Path:
    """Makes the environment at the first use; returns its interpreter."""
    python = VENV / "bin" / "python"
    stamp = VENV / "requirements.sha256"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + TORCH.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"making {VENV} with Python {PYTHON} and torch {TORCH}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([find_python(), "-m", "venv", str(VENV)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The build for CPUs has a tenth of the size, but not every package index has it; the index's
    # own build, with the CUDA libraries (4 GB), is the one of the GPU machine and runs without one.
    if subprocess.run([*pip, f"torch=={TORCH}+cpu"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"no torch=={TORCH}+cpu here: taking torch=={TORCH}, some gigabytes", flush=True)
        subprocess.run([*pip, f"torch=={TORCH}"], check=True)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    stamp.write_text(digest)
    return python


def find_python() -> str:
    """Python 3.12: BRIDGE_PYTHON312, this one, one on the path, or one of pyenv's."""
    named = os.environ.get("BRIDGE_PYTHON312")
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pyenv = sorted(versions.glob(f"{PYTHON}*/bin/python{PYTHON}"))
    candidates = [named, sys.executable, shutil.which(f"python{PYTHON}"), *map(str, pyenv)]
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        try:
            found = subprocess.run([candidate, "-c", show], capture_output=True, text=True)
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.strip() == PYTHON:
            return candidate
    sys.exit(f"check_gpu: found no Python {PYTHON}: install one, or name it in BRIDGE_PYTHON312")
