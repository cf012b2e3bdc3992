"""One process of a measurement: `python -m tools.scaling.rank TASK`, run by `measure`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    task = json.loads(sys.argv[1])
    # This process must not outlive its parent, even while torch is imported.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != task["parent"]:
        return
    from tools.scaling.cases import run

    run(task)


if __name__ == "__main__":
    main()
