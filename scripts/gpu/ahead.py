"""Compiles the programs that a GPU run times and tests, without a GPU, into a portable cache.

python -m scripts.gpu.ahead FOLDER ARCH    FOLDER becomes BRIDGE_CACHE_DIR there; ARCH as sm_90
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor


def compile_rows(arch: str, part: int, parts: int) -> int:
    """Runs a part of kernel_speed's rows on the CPU, with their programs compiled for a GPU."""
    os.environ["BRIDGE_COMPILE"] = "now"
    from bridge.generated import requests
    from scripts.gpu import kernel_speed

    requests.archs_of = lambda _: [arch]
    rows = list(kernel_speed.rows(kernel_speed.Device.array_bytes))
    # Programs do not depend on the number of columns.
    rows = [row for row in rows if row.columns == rows[0].columns]
    for row in rows[part::parts]:
        kernel_speed.call_of(row, "cpu")
    return len(rows[part::parts])


def compile_declarations(arch: str, name: str) -> int:
    """Compiles an op of tests/cuda."""
    from tests.cuda.test_declared import OPS

    OPS[name].compile("cuda", dtypes=["float32", "bfloat16"], arch=arch)
    return 1


def main() -> int:
    from tests.cuda.test_declared import OPS

    folder, arch = sys.argv[1:]
    os.environ["BRIDGE_CACHE_DIR"] = folder
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        jobs = [pool.submit(compile_rows, arch, part, cores) for part in range(cores)]
        jobs += [pool.submit(compile_declarations, arch, name) for name in OPS]
        print(f"{sum(job.result() for job in jobs)} rows and ops are compiled for {arch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
