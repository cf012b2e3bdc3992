"""Hashes of the operands and the results of a case, in each framework.

A hash is the first 16 hexadecimal digits of a SHA-256. It covers every bit, also the sign of a zero
and the bits of a NaN: bridge writes one NaN, the same on every machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bridge.cli.parity.choice import FORMS
from bridge.cli.parity.grid import Case, Operands, cases
from bridge.cli.parity.places import CONTIGUOUS, Array
from bridge.cli.parity.setting import Variant

OPERANDS = "operands"  # beside the quantities of a case
# Memory layouts change no bits, and many small places would make the tables large.
LEAST_ELEMENTS = 600

Run = Callable[[], dict[str, Array]]


def cases_with_hashes(quick: bool = False, forms: tuple[str, ...] = FORMS) -> Iterator[Case]:
    """Yields the cases of tables, or a small part of them."""
    few = {*cases(True, forms)} if quick else None
    for case in cases(False, forms):
        is_large = np.prod(case.place.shape) >= LEAST_ELEMENTS or not case.entry.compared.usual
        if case.place.layout is CONTIGUOUS and is_large and (few is None or case in few):
            yield case


def in_json(
    case: Case, device: str, frameworks: Sequence[str], variants: Sequence[Variant] = ()
) -> list[dict[str, Any]]:
    """Returns a row for the operands, and one for each quantity, in JSON's types.

    Each has `hashes`, by the way to get them: a framework, or a framework under a variant.
    """
    given = case.operands()
    rows = [_row(case, OPERANDS, {"drawn": hash_of(given.items())})]
    with contextlib.ExitStack() as stack:
        if "jax" in frameworks:
            import jax

            stack.enter_context(jax.enable_x64(True))
            # On a GPU its matrix products use all digits of float32, like torch.
            stack.enter_context(jax.default_matmul_precision("highest"))
        runs = {name: _RUNS[name](case, given, device) for name in frameworks}
        found = {_WORDS[name]: run() for name, run in runs.items()}
        for variant in variants:
            with variant.set():
                for name, run in runs.items():
                    found[f"{_WORDS[name]}, {variant.name}"] = run()
    for quantity in case.quantities:
        every = {
            way: hash_of([(quantity, case.compared(results[quantity]))])
            for way, results in found.items()
        }
        rows.append(_row(case, quantity, every))
    return rows


def _row(case: Case, quantity: str, hashes: dict[str, str]) -> dict[str, Any]:
    return {
        "form": case.form,
        "dtypes": case.dtypes,
        "place": str(case.place),
        "quantity": quantity,
        "hashes": hashes,
        "passed": len({*hashes.values()}) == 1,
    }


def hash_of(arrays: Iterable[tuple[str, Array]]) -> str:
    """Returns the hash of arrays with names: of the name, dtype, shape and bytes of each."""
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _in_torch(case: Case, given: Operands, device: str) -> Run:
    import bridge.torch
    from bridge.cli.parity import in_torch

    tensors = in_torch.tensors(case, given, device)

    def run() -> dict[str, Array]:
        found = in_torch.quantities(lambda p: case.call(bridge.torch, p), case, tensors)
        return {name: in_torch.to_numpy(result) for name, result in found.items()}

    return run


def _in_jax(case: Case, given: Operands, device: str) -> Run:
    import jax

    import bridge.jax
    from bridge.cli.parity import in_jax

    arrays = in_jax.arrays(given, jax.devices(device)[0])
    jitted = in_jax.compiled(lambda p: case.call(bridge.jax, p), case)
    return lambda: {name: in_jax.to_numpy(result) for name, result in jitted(arrays).items()}


_RUNS = {"torch": _in_torch, "jax": _in_jax}
_WORDS = {"torch": "torch", "jax": "JAX"}
