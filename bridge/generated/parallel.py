"""Many requests compiled at once, while the caller waits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from bridge.generated.requests import Request

# A compiler takes a few hundred MiB.
_MOST_COMPILERS = 8


def compile_all(requests: Iterable[Request]) -> None:
    """Compiles the requests in parallel.

    Raises:
      CompileError: the error of the first one that fails; requests not yet begun are dropped.
    """
    with ThreadPoolExecutor(min(_MOST_COMPILERS, os.cpu_count() or 1)) as pool:
        asked = [pool.submit(request.compile) for request in requests]
        try:
            for each in asked:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
