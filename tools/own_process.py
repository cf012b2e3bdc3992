"""Linux's counters of this process: sent bytes and peak memory."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BYTES_SENT = 200  # tcpi_bytes_sent in struct tcp_info


def bytes_sent() -> int:
    """Returns the bytes written to all TCP connections of this process that are open now."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed in the meantime, or not TCP
            continue
        total += struct.unpack_from("<Q", info, _BYTES_SENT)[0]
    return total


def bytes_at_peak(call: Callable[[], Any]) -> int:
    """Returns the rise of the process's memory during the call."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    result = call()
    peak = _status("VmHWM") - before
    del result
    return peak


def _status(field: str) -> int:
    """Returns a line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
