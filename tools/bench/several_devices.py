"""Timings of cases that are split over several devices."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tools.bench.cases import Case
from tools.bench.timing import Timing, interleave

DEVICES = 4  # on a CPU, whose cores they share


def timings(device: str, cases: Sequence[Case], seconds: float) -> list[dict[str, Timing]]:
    """Returns the timings of each case; none if there is only one GPU.

    On a CPU they run in a process of their own: the number of devices is fixed when JAX starts, and
    every other row uses one device.
    """
    if device == "cpu":
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(_on_cpu, cases, seconds).result() if cases else []
    import jax

    return _on(device, cases, seconds) if len(jax.devices(device)) > 1 else []


def _on_cpu(cases: Sequence[Case], seconds: float) -> list[dict[str, Timing]]:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    return _on("cpu", cases, seconds)


def _on(device: str, cases: Sequence[Case], seconds: float) -> list[dict[str, Timing]]:
    from tools.bench.in_jax import Contenders

    contenders = Contenders(device)
    return [interleave(contenders.of(case), seconds) for case in cases]
