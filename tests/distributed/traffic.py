"""What this process has sent to others, as the kernel counts it."""

from __future__ import annotations

import os
import socket
import struct

_BYTES_SENT = 200  # tcpi_bytes_sent in Linux's struct tcp_info


def bytes_sent() -> int:
    """Bytes written to all TCP connections of this process that are open now."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or no TCP
            continue
        (sent,) = struct.unpack_from("<Q", info, _BYTES_SENT)
        total += sent
    return total
