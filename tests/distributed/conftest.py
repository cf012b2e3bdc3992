"""Sets of processes that many tests share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import pytest

from tests.distributed.processes import Processes

# Each process has a framework in memory.
_SETS_AT_ONCE = 3


@pytest.fixture(scope="session")
def processes() -> Iterator[Callable[[str, int], Processes]]:
    """Returns `processes(setup, world_size)`: a living set, reused until a check breaks it."""
    sets: OrderedDict[tuple[str, int], Processes] = OrderedDict()

    def get(setup: str, world_size: int) -> Processes:
        key = (setup, world_size)
        found = sets.pop(key, None)
        if found is None or not found.usable:
            while len(sets) >= _SETS_AT_ONCE:
                sets.popitem(last=False)[1].close()
            found = Processes(world_size, setup)
        sets[key] = found
        return found

    yield get
    for living in sets.values():
        living.close()
