"""The setting of a run: frameworks, device, instruction set and threads."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bridge import _native
from bridge.cli import machine
from bridge.cli.errors import CommandError
from bridge.cli.info import usable_isas

FRAMEWORKS = ("torch", "jax")
MOST_THREADS = 1024  # far more threads would end the process


def installed() -> tuple[str, ...]:
    """Returns the names of the installed frameworks.

    Raises:
      CommandError: if none is installed.
    """
    found = tuple(name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None)
    if not found:
        raise CommandError("hashes need torch or jax, and neither is installed")
    return found


def require_device(device: str, frameworks: tuple[str, ...] = FRAMEWORKS) -> None:
    """Raises:
    CommandError: if one of the frameworks does not find the device.
    """
    if device == "cpu":
        return
    machine.require_cuda()
    if "torch" in frameworks and not machine.require("torch").cuda.is_available():
        raise CommandError("--device cuda: this torch finds no CUDA device")
    if "jax" in frameworks:
        try:
            machine.require("jax").devices("cuda")
        except RuntimeError as error:
            raise CommandError(f"--device cuda: this JAX finds no CUDA device ({error})") from error


@contextlib.contextmanager
def forced(isa: str | None, threads: int | None) -> Iterator[None]:
    """Runs the body with an instruction set, and torch's thread count; None changes nothing.

    Raises:
      CommandError: if this processor lacks the instruction set, or the number of threads cannot be.
    """
    torch = sys.modules.get("torch")
    previous_isa = _native.cpu_isa()
    previous_threads = torch.get_num_threads() if torch is not None else None
    try:
        if isa is not None:
            _force_isa(isa)
        if threads is not None:
            if not 1 <= threads <= MOST_THREADS:
                raise CommandError(f"--threads {threads}: expected 1 to {MOST_THREADS}")
            if torch is None:
                raise CommandError(f"--threads {threads}: they are torch's, which is not installed")
            torch.set_num_threads(threads)
        yield
    finally:
        _native.set_cpu_isa(previous_isa)
        if torch is not None:
            torch.set_num_threads(previous_threads)


def _force_isa(name: str) -> None:
    try:
        _native.set_cpu_isa(name)
    except (ValueError, RuntimeError) as error:
        raise CommandError(
            f"--isa {name}: {error}; this machine can use {', '.join(usable_isas())}"
        ) from error


@dataclass(frozen=True)
class Variant:
    """Another setting under which the bits must be the same."""

    isa: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.isa}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def set(self) -> contextlib.AbstractContextManager[None]:
        """Runs the body under this setting."""
        has_threads = "torch" in sys.modules
        return forced(self.isa, self.threads if has_threads else None)


def variants() -> list[Variant]:
    """Returns every instruction set of this machine, on one thread and on two."""
    return [Variant(isa, count) for isa in usable_isas() for count in (1, 2)]
