"""Published figures of links and devices, each with its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Link:
    """A link between devices in the alpha-beta model.

    Attributes:
      name: the name in tables.
      alpha: seconds that each step takes at least.
      bandwidth: bytes per second that a device sends while it receives as many.
      reach: the largest number of devices it joins in machines on the market; None for a network.
      source: the source of both figures.
    """

    name: str
    alpha: float
    bandwidth: float
    reach: int | None
    source: str

    @property
    def is_network(self) -> bool:
        """True if the link joins nodes, rather than the devices of one node."""
        return self.reach is None

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1.0 / self.bandwidth

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_NCCL = "latency of a ring step, protocol Simple: hwLatencies in NVIDIA/nccl, src/graph/tuning.cc"

NVLINK = Link(
    "NVLink 4",
    3.4e-6,
    450e9,
    8,
    "900 GB/s in both directions together: NVIDIA H100 Tensor Core GPU datasheet; " + _NCCL,
)
INFINIBAND = Link(
    "InfiniBand",
    14e-6,
    50e9,
    None,
    "NDR, a port of 400 Gb/s for each GPU: NVIDIA DGX H100 user guide, ConnectX-7 user manual; "
    + _NCCL,
)
ETHERNET = Link(
    "Ethernet",
    50e-6,
    12.5e9,
    None,
    "100 Gb/s for each GPU: IEEE 802.3ba; TCP from kernel to kernel takes about 50 µs: "
    "WWT, The Basics of High-Performance Networking",
)

LINKS = (NVLINK, INFINIBAND, ETHERNET)
NETWORKS = tuple(link for link in LINKS if link.is_network)
NODE = 8  # the number of GPUs that NVLink joins in a DGX H100


@dataclass(frozen=True)
class Device:
    """The device that times on links are compared with.

    Attributes:
      memory: bytes.
      memory_bandwidth: bytes per second.
      flops: multiplications and additions per second, in dense bfloat16.
    """

    name: str
    memory: float
    memory_bandwidth: float
    flops: float
    source: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


H100 = Device(
    "H100 SXM", 80e9, 3.35e12, 989.4e12, "peaks of the NVIDIA H100 Tensor Core GPU datasheet"
)
