"""Separate Python environments with given versions of the frameworks."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def environment(folder: Path, python: str, torch: str, requirements: Sequence[Path]) -> Path:
    """Makes an environment at the first use, and again when its requirements have changed.

    Args:
        folder: the environment's place
        python: a version such as "3.12"
        torch: a version of torch, which overrides a line of `requirements`
        requirements: requirements files of pip

    Returns:
        Its interpreter.
    """
    interpreter = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    wanted = "".join(path.read_text() for path in requirements)
    wanted = re.sub(r"^torch==.*\n", "", wanted, flags=re.MULTILINE)
    digest = hashlib.sha256(f"{wanted}{python} {torch}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return interpreter
    print(f"making {folder} with Python {python} and torch {torch}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([find_python(python), "-m", "venv", str(folder)], check=True)
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The CPU build has a tenth of the size, but not every package index has it. The index's own
    # build brings the CUDA libraries (4 GB) and also runs without a GPU.
    if subprocess.run([*pip, f"torch=={torch}+cpu"], stderr=subprocess.DEVNULL).returncode != 0:
        print(f"no torch=={torch}+cpu here: taking torch=={torch}, some gigabytes", flush=True)
        subprocess.run([*pip, f"torch=={torch}"], check=True)
    (folder / "requirements.txt").write_text(f"{wanted}torch=={torch}\n")
    subprocess.run([*pip, "-r", str(folder / "requirements.txt")], check=True)
    stamp.write_text(digest)
    return interpreter


def named_torch(requirements: Path) -> str:
    """Returns the version of torch in a requirements file."""
    found = re.search(r"^torch==(\S+)", requirements.read_text(), flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"{requirements} names no version of torch: expected a line torch==…")
    return found[1]


def find_python(version: str) -> str:
    """Returns an interpreter of a version.

    It is the one in BRIDGE_PYTHON312 (for 3.12), this one, one on the path, or one of pyenv's.
    """
    variable = f"BRIDGE_PYTHON{version.replace('.', '')}"
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pyenv = map(str, sorted(folder.glob(f"{version}*/bin/python{version}")))
    candidates = [
        os.environ.get(variable),
        sys.executable,
        shutil.which(f"python{version}"),
        *pyenv,
    ]
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        try:
            found = subprocess.run([candidate, "-c", show], capture_output=True, text=True)
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    sys.exit(f"found no Python {version}: install one, or name it in {variable}")
