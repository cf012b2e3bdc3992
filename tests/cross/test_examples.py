"""The examples with half a model in each framework reach the accuracy that they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.parametrize("example", ["flax_loss_in_torch.py", "torch_vision_in_optax.py"])
def test_digits(example: str) -> None:
    warnings = ["-W", "error", "-W", "ignore:::torch.jit._script"]
    result = subprocess.run(
        [sys.executable, *warnings, str(ROOT / "examples" / example)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    accuracy = re.search(r"accuracy on digits not seen: ([\d.]+) %", result.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 97.0
    assert re.search(r"crossing, per step: +-?[\d.]+ ms", result.stdout)
