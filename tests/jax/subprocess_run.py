"""Python code in a fresh process, for settings that a process fixes at its start."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.run_from_tree import FROM_TREE

# The code starts in the same way as the tests themselves.
_FROM_TREE = "from tests.run_from_tree import forget_installed_package as f; f(); del f\n"


def run(code: str, **environment: str) -> str:
    """Returns the printed output of the code. Fails with its stderr if the exit status is not 0."""
    result = subprocess.run(
        [sys.executable, "-c", (_FROM_TREE if FROM_TREE in os.environ else "") + code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout.strip()
