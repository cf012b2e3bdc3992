"""Show this build of bridge, check its results, and measure its speed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bridge.cli.commands import COMMANDS, NOT_INSTALLED, is_here, load
from bridge.cli.errors import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status.

    The status is 1 if the command found a failure, 2 if it cannot run, and 130 after Ctrl-C, as in
    shells.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m bridge", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    module = None
    try:
        for name, (path, words) in COMMANDS.items():
            words = words if is_here(path) else NOT_INSTALLED
            subparser = subparsers.add_parser(name, help=words, description=words)
            if name == chosen:
                module = load(path)
                module.add_arguments(subparser)
        options = parser.parse_args(arguments)
        if module is None:
            parser.error("no command")
        return module.run(options)
    except CommandError as error:
        print(f"bridge {chosen}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bridge {chosen}: interrupted", file=sys.stderr)
        return 130
