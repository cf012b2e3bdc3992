"""One rank of `processes.Processes`: runs the checks from its pipe until the pipe closes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import struct
import sys
import traceback
import warnings
from typing import Any, BinaryIO

from tests.run_from_tree import FROM_TREE, forget_installed_package

_PR_SET_PDEATHSIG = 1


def _run(place: Any, check: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        module, _, function = check.partition(":")
        value = getattr(importlib.import_module(module), function)(place, **arguments)
        pickle.dumps(value)
    except Exception as error:
        return {
            "kind": "raised",
            "error": type(error).__name__,
            "text": str(error),
            "details": traceback.format_exc(),
        }
    return {"kind": "returned", "value": value}


def _receive(checks: BinaryIO) -> Any:
    header = checks.read(8)
    if len(header) < 8:
        return None
    (size,) = struct.unpack("<Q", header)
    return pickle.loads(checks.read(size))


def main() -> None:
    if FROM_TREE in os.environ:
        forget_installed_package()
    if sys.platform == "linux":  # the process must not outlive the test
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.filterwarnings("error", module=r"bridge\.")
    checks = os.fdopen(int(sys.argv[1]), "rb")
    replies = os.fdopen(int(sys.argv[2]), "wb")
    place = _receive(checks)
    while (message := _receive(checks)) is not None:
        data = pickle.dumps(_run(place, *message))
        with contextlib.suppress(BrokenPipeError):
            replies.write(struct.pack("<Q", len(data)) + data)
            replies.flush()
    # A framework's own shutdown may wait for ranks that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
