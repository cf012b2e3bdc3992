"""Fused ops that PyTorch and JAX share: what this build is, whether it is right, how fast."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = {
    "info": ("bridge.cli.info", "versions, instruction sets, threads, CUDA"),
    "parity": ("bridge.cli.parity", "torch against JAX, bit for bit, and both against float64"),
    "bench": ("tools.bench", "speed beside the frameworks' own ops"),
    "scaling": ("tools.scaling", "all-gather measured here, modelled to 65,536 devices"),
    "demo": ("tools.demo.main", "a sentence encoder in torch and JAX, parity, speed, a report"),
}
NOT_INSTALLED = (
    "this command is not installed with the library; run it from bridge's source tree, "
    "where `make` has built it"
)
SOURCES = Path(__file__).resolve().parent.parent.parent


class CommandError(Exception):
    """What the user asked for cannot be done here; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 1 if it found a failure, 2 if it cannot run."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m bridge", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    module = None
    for name, (path, help_text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            if path.startswith("tools."):
                if not (SOURCES / "tools" / "bench").is_dir():
                    print(f"bridge {name}: {NOT_INSTALLED}", file=sys.stderr)
                    return 2
                sys.path.insert(0, str(SOURCES))
            try:
                module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith(("bridge", "tools")):
                    raise
                print(
                    f"bridge {name}: the package {error.name} is missing; "
                    'install the extra: pip install "bridge-ops[cli]"',
                    file=sys.stderr,
                )
                return 2
            module.add_arguments(subparser)
    options = parser.parse_args(arguments)
    if module is None:
        parser.error("no command")
    try:
        return module.run(options)
    except CommandError as error:
        print(f"bridge {options.command}: {error}", file=sys.stderr)
        return 2
