"""A Python environment with the versions of the GPU machine, for rehearsals and for packing."""

from __future__ import annotations

from pathlib import Path

from scripts.environment import environment
from scripts.gpu.libraries import ROOT

VENV = ROOT / "build" / "rehearse" / "venv"
REQUIREMENTS = ROOT / "requirements" / "gpu-machine.txt"
PYTHON = "3.12"
TORCH = "2.11.0"


def rehearsal_python() -> Path:
    """Makes the environment at the first use; returns its interpreter."""
    return environment(VENV, PYTHON, TORCH, [REQUIREMENTS])
