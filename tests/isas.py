"""The compiled instruction sets that this processor has, strongest first."""

from __future__ import annotations

from bridge import _native


def _runs(isa: str) -> bool:
    try:
        _native.set_cpu_isa(isa)
    except ValueError:  # compiled in, but this processor lacks it
        return False
    finally:
        _native.set_cpu_isa(None)
    return True


ISAS = tuple(filter(_runs, _native.build_info()["cpu_isas"]))
