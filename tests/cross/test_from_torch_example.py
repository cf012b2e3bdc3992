"""The example with a torch vision network in an optax training loop learns what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_digits() -> None:
    script = ROOT / "examples" / "torch_vision_in_optax.py"
    warnings = ["-W", "error", "-W", "ignore::DeprecationWarning:torch.jit._script"]
    result = subprocess.run(
        [sys.executable, *warnings, str(script)],
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
